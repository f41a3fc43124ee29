"""The pool of faults: kernels that are wrong in one way each, and what must become of them.

`FAULTS` has all of them. `runner.tried` tunes one as a user would. `python tests/faults/pool` runs all, on whatever
this machine has; `tests/faults/test_pool.py` is the same as tests.
"""

from __future__ import annotations

from pool.fault import Due, Fault
from pool.others import EXPRESSIONS, TRITON
from pool.process import PROCESS, WATCHING
from pool.results import RESULTS

FAULTS: tuple[Fault, ...] = (*RESULTS, *PROCESS, *WATCHING, *TRITON, *EXPRESSIONS)

__all__ = ["FAULTS", "Due", "Fault"]
