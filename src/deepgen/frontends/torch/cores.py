"""Torch's threads, on which kernels run, and what threads of their own would cost it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from deepgen.run.call.calling import Loaded
from deepgen.run.call.native import torchs_threads

_GRAIN = 1 << 15  # elements that torch gives each thread at least


def several() -> bool:
    """Whether torch computes with several threads."""
    return bool(torch.get_num_threads() > 1)


def lend(kernel: Loaded) -> bool:
    """A kernel's work is done by torch's threads from now on. False: it has others, or torch's cannot be had."""
    parallel = torchs_threads()
    return parallel is not None and kernel.run_on(parallel)


def work() -> Callable[[], object]:
    """A short operator that torch computes with all its threads."""
    numbers = torch.zeros(_GRAIN * torch.get_num_threads())
    return lambda: numbers.add_(1.0)
