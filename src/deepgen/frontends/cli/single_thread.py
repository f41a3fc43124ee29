"""numpy without the threads of its BLAS, for commands in which nothing is measured, or started to be measured."""

from __future__ import annotations

import os
import sys

_VARIABLE = "OPENBLAS_NUM_THREADS"


def import_numpy() -> None:
    """On many cores its threads take more time to start than a space to be counted, and disturb what is measured."""
    if "numpy" in sys.modules:
        return
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "1"
    try:
        import numpy  # noqa: F401
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before
