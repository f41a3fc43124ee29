"""Array work split over threads: numpy and C release the GIL meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

CHUNK = 1 << 16
_LARGE = 1 << 20  # from here on threads share the work
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


def in_chunks(size: int, work: Callable[[slice], None]) -> None:
    """Have threads work on parts of flat arrays of that size, of which the temporaries stay in the cache. What numpy
    ignores must be said in each."""

    def some(first: int, last: int) -> None:
        for chunk in range(first, last):
            work(slice(chunk * CHUNK, min(size, (chunk + 1) * CHUNK)))

    in_parts(-(-size // CHUNK), usual_threads() if size > _LARGE else 1, some)


def side_by_side(calls: Sequence[Callable[[], T]]) -> list[T]:
    """The results of calls that run at the same time. A process that ends waits for none of them, as it would for those
    of a pool."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def work(place: int) -> None:
        try:
            results[place] = calls[place]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(place,), daemon=True) for place in range(1, len(calls))]
    for thread in threads:
        thread.start()
    work(0)
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[place] for place in range(len(calls))]
