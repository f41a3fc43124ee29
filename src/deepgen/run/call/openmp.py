"""The threads that torch computes with on a processor, for kernels in its process.

OpenMP's threads wait for more work without sleeping, for up to milliseconds. Threads of a kernel's own would not get
the cores meanwhile: kernels of twice torch's speed made a layer slower. Torch's threads are there already.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path
from typing import Any


def torchs_threads() -> int | None:
    """The address of the function that calls another one on all threads of the OpenMP that torch uses.

    None where no torch was imported, or where it has no OpenMP.
    """
    torch = sys.modules.get("torch")
    return None if torch is None else _parallel(torch)


@cache
def _parallel(torch: Any) -> int | None:
    """GNU's OpenMP, LLVM's and Intel's have it by the same name. One that was loaded for the whole process, as a
    preloaded one is, takes the place of the one that torch brings."""
    if not torch.backends.openmp.is_available():
        return None
    for path in (None, *Path(torch.__file__).with_name("lib").glob("libtorch_cpu.*")):
        try:
            library = ctypes.CDLL(None if path is None else str(path))  # torch has loaded it before
            if torch.get_num_threads() == library.omp_get_max_threads():
                return ctypes.cast(library.GOMP_parallel, ctypes.c_void_p).value
        except (AttributeError, OSError):
            continue
    return None
