"""Threads of torch's and of kernels on the same cores.

OpenMP, which torch computes with on a processor, lets threads that have finished wait for more work without sleeping,
for up to milliseconds. Kernels have threads of their own, which these keep from the cores: two kernels of twice torch's
speed made a layer no faster. GNU's OpenMP lets threads sleep within microseconds once it has more of them than cores.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread

import torch

_GRAIN = 1 << 15  # elements that torch gives each thread at least


def several() -> bool:
    """Whether torch computes with several threads."""
    return bool(torch.get_num_threads() > 1)


def work() -> Callable[[], object]:
    """A short operator that torch computes with all its threads."""
    numbers = torch.zeros(_GRAIN * torch.get_num_threads())
    return lambda: numbers.add_(1.0)


class ShortWaits:
    """Once opened, torch's threads sleep soon after their work: another thread keeps as many of its own, asleep.

    Where torch has another OpenMP than GNU's, or threads for half of the cores only, nothing changes.
    """

    def __init__(self) -> None:
        self._thread: Thread | None = None
        self._end = Event()

    def open(self) -> None:
        if self._thread is not None or not several():
            return
        ready, self._end = Event(), Event()
        self._thread = Thread(target=_keep, args=(ready, self._end), daemon=True)
        self._thread.start()
        ready.wait()

    def close(self) -> None:
        """Its threads end, and torch's wait as before."""
        if self._thread is not None:
            self._end.set()
            self._thread.join()
            self._thread = None


def _keep(ready: Event, end: Event) -> None:
    try:
        work()()
    finally:
        ready.set()
    end.wait()
