"""Work on arrays, shared by threads: numpy and C let others run meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress

_PARTS = 8  # of the work for each thread: the last ones to end do not keep the others waiting


def usual_threads() -> int:
    """As many as there are cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_parts(units: int, threads: int, work: Callable[[int, int], None]) -> None:
    """Have threads do so many units of work, a range of them at a time. None is left when it returns."""
    size = max(1, -(-units // (_PARTS * threads)))
    starts = iter(range(0, units, size))
    failed: list[BaseException] = []

    def run() -> None:
        try:
            for start in starts:  # a range's iterator is one object of C: threads share it safely
                if failed:
                    return
                work(start, min(units, start + size))
        except BaseException as error:
            failed.append(error)

    others: list[threading.Thread] = []
    with suppress(RuntimeError):  # no more threads may be started here: those that there are do the work
        for _ in range(min(threads, -(-units // size)) - 1):
            other = threading.Thread(target=run)
            other.start()
            others.append(other)
    run()
    for other in others:
        other.join()
    if failed:
        raise failed[0]
