"""Kernels on torch's threads.

OpenMP, which torch computes with on a processor, lets threads that have finished wait for more work without sleeping,
for up to milliseconds. Threads of a kernel's own would not get the cores meanwhile: kernels of twice torch's speed made
a layer slower. So kernels run on torch's threads, which are there already.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from deepgen.runtime.calling import Loaded

_GRAIN = 1 << 15  # elements that torch gives each thread at least


def several() -> bool:
    """Whether torch computes with several threads."""
    return bool(torch.get_num_threads() > 1)


def lend(kernel: Loaded) -> bool:
    """A kernel's work is done by torch's threads from now on. False: it has others, or torch's cannot be had."""
    parallel = _parallel()
    return parallel is not None and kernel.run_on(parallel)


def work() -> Callable[[], object]:
    """A short operator that torch computes with all its threads."""
    numbers = torch.zeros(_GRAIN * torch.get_num_threads())
    return lambda: numbers.add_(1.0)


@cache
def _parallel() -> int | None:
    """The address of the function that calls another one on all threads, in the OpenMP that torch uses.

    GNU's, LLVM's and Intel's have it by the same name. One that was loaded for the whole process, as a preloaded one
    is, takes the place of the one that torch brings.
    """
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
