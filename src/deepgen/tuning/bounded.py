"""Calls that must not outlast a time budget: started only if they fit, and abandoned when the time is up.

An abandoned call keeps its session's device until the session is closed, which ends its worker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from math import ceil, inf
from typing import TypeVar

from deepgen.run.measure.base import Contender
from deepgen.tuning.costs import SAMPLE
from deepgen.tuning.engines.base import Arena
from deepgen.tuning.progress import Clock
from deepgen.vocabulary import Artifact, Kernel, Measurement

T = TypeVar("T")
_NO_TIME = "the time budget ended before a kernel was measured"
# A reference that took this share of the time is why; what a run needs then, as a multiple of that, and beside it.
_LONG, _ENOUGH, _OTHERWISE = 0.3, 2.5, 3.0


class OutOfTime(Exception):
    """The time was over before a call had ended."""


def no_time(clock: Clock, reference: float = 0.0, ended: bool = True) -> str:
    """What is said where no kernel was measured in time. `reference`: seconds that a user's own has taken so far for
    the first inputs, `ended` or not; then what budget would do."""
    if reference < _LONG * clock.elapsed:
        return f"{_NO_TIME}: increase the budget"
    # As long again for the inputs of the finals, with some room, and what a run takes otherwise.
    enough = ceil(clock.elapsed - reference + _ENOUGH * reference + _OTHERWISE)
    took = f"{'' if ended else 'more than '}{reference:.1f} s for the first inputs"
    return f"{_NO_TIME}: the reference took {took}; set it to {'' if ended else 'at least '}{enough} seconds"


def within(seconds: float, call: Callable[[], T], late: Callable[[T], object] = lambda result: None) -> T:
    """The result of a call. Raises OutOfTime when it takes longer; what it gives after that goes to `late`."""
    if seconds == inf:
        return call()
    if seconds <= 0.0:
        raise OutOfTime
    results: list[T] = []
    errors: list[BaseException] = []
    ended, lock, over = threading.Event(), threading.Lock(), False

    def work() -> None:
        try:
            result = call()
            with lock:
                results.append(result)
            if over:
                late(result)
        except BaseException as error:
            errors.append(error)
        finally:
            ended.set()

    threading.Thread(target=work, name="deepgen-bounded", daemon=True).start()
    ended.wait(seconds)
    with lock:
        over = not results
    if errors:
        raise errors[0]
    if over:
        raise OutOfTime
    return results[0]


def begun(call: Callable[[], T]) -> Callable[[], T]:
    """Have a call made in a thread; what is returned waits for its result."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="deepgen-begun", daemon=True).start()
    return future.result


class Bounded:
    """An arena whose calls end with the time of a clock."""

    def __init__(self, arena: Arena, clock: Clock) -> None:
        self._arena, self._clock = arena, clock

    def quiet(self) -> AbstractContextManager[None]:
        return self._arena.quiet()

    def disturbed(self) -> str | None:
        return self._arena.disturbed()

    def build(self, kernel: Kernel) -> Artifact:
        return within(self._clock.spare, lambda: self._arena.build(kernel))

    def verify(self, kernel: Kernel, seed: int, probe: str, shape: int = 0) -> Measurement:
        return within(self._clock.spare, lambda: self._arena.verify(kernel, seed, probe, shape))

    def compare(self, contenders: Sequence[Contender], rounds: int, seed: int) -> list[Measurement]:
        started = time.monotonic()
        measured = within(self._clock.spare, lambda: self._arena.compare(contenders, rounds, seed))
        self._clock.costs.hear(SAMPLE, (time.monotonic() - started) / max(1, rounds * len(contenders)))
        return measured

    def baselines(self) -> list[str]:
        return self._arena.baselines()

    def peak(self, *, again: bool = False) -> float | None:
        return self._arena.peak(again=again)
