"""The pool of faults: kernels that are each wrong in one way, and the expected outcome.

`FAULTS` has all of them. `runner.tried` tunes one as a user would. `python tests/faults/pool` runs all of them on this
machine's devices; `tests/faults/test_pool.py` does the same as tests.
"""

from __future__ import annotations

from pool.fault import Due, Fault
from pool.others import EXPRESSIONS, TRITON
from pool.process import PROCESS, WATCHING
from pool.results import RESULTS

FAULTS: tuple[Fault, ...] = (*RESULTS, *PROCESS, *WATCHING, *TRITON, *EXPRESSIONS)

__all__ = ["FAULTS", "Due", "Fault"]
