"""Array work split over threads: numpy and C code release the GIL while they compute."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

CHUNK = 1 << 16
_LARGE = 1 << 20  # from this size on, threads share the work
_PARTS = 8  # parts of the work per thread, so that the last thread does not keep the others waiting


def usual_threads() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_parts(units: int, threads: int, work: Callable[[int, int], None]) -> None:
    """Run units of work in threads, a range of units at a time. All are done on return."""
    size = max(1, -(-units // (_PARTS * threads)))
    starts = iter(range(0, units, size))
    failed: list[BaseException] = []

    def run() -> None:
        try:
            for start in starts:  # a range iterator is a single C object, which threads share safely
                if failed:
                    return
                work(start, min(units, start + size))
        except BaseException as error:
            failed.append(error)

    others: list[threading.Thread] = []
    with suppress(RuntimeError):  # if no more threads can be started, the existing ones do the work
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
    """Process parts of flat arrays of that size in threads, with temporaries that fit into the cache. numpy's error
    state must be set in each call."""

    def some(first: int, last: int) -> None:
        for chunk in range(first, last):
            work(slice(chunk * CHUNK, min(size, (chunk + 1) * CHUNK)))

    in_parts(-(-size // CHUNK), usual_threads() if size > _LARGE else 1, some)


def side_by_side(calls: Sequence[Callable[[], T]]) -> list[T]:
    """The results of calls that run concurrently. At exit, a process does not wait for these threads, unlike for a
    pool's."""
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
