"""Calls that must end within a time budget: started only if they fit, and abandoned when time runs out.

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
# A reference that took at least this share of the time is the cause. A run then needs a multiple of the reference's
# time, plus a constant.
_LONG, _ENOUGH, _OTHERWISE = 0.3, 2.5, 3.0


class OutOfTime(Exception):
    """The time ran out before a call had ended."""


def no_time(clock: Clock, reference: float = 0.0, ended: bool = True) -> str:
    """The message when no kernel was measured in time. `reference`: seconds that a user's reference took, or has taken
    if it has not `ended`, for the first inputs; the message then suggests a budget."""
    if reference < _LONG * clock.elapsed:
        return f"{_NO_TIME}: increase the budget"
    # Once more for the inputs of the finals, with a margin, plus the rest of the run.
    enough = ceil(clock.elapsed - reference + _ENOUGH * reference + _OTHERWISE)
    took = f"{'' if ended else 'more than '}{reference:.1f} s for the first inputs"
    return f"{_NO_TIME}: the reference took {took}; set it to {'' if ended else 'at least '}{enough} seconds"


def within(seconds: float, call: Callable[[], T], late: Callable[[T], object] = lambda result: None) -> T:
    """The result of a call. Raises OutOfTime if it takes longer; a late result is passed to `late`."""
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
    """Start a call in a thread. Returns a function that waits for its result."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="deepgen-begun", daemon=True).start()
    return future.result


class Bounded:
    """An arena whose calls end when a clock's time runs out."""

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
