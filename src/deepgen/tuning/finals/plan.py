"""Plans the finals within their time: steps that do not fit are skipped, the least important first.

The order of skipping: waiting for a quiet machine, other shapes, arrays with padded rows, many calls and several
threads, more rounds of the race, more finalists, more input sets that finalists must pass, baselines. Never skipped:
the default and the fastest trial, each verified on one input set besides the usual one, and a short race of these two
and the baselines. That race comes first, so that every result has a comparison; a second race has the other finalists
and more rounds. A step that is too long for the time left is skipped, and the next one may fit. Skipped steps are
resumed if time turns out to be left.

Calls that must end within the budget (`Bounded`) are started only if they fit, and abandoned when time runs out. An
abandoned call keeps its session's device until the session is closed, which ends its worker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import TypeVar

from deepgen.run.measure.base import Contender
from deepgen.tuning.costs import CALLS, REFERENCE, SAMPLE, VERIFY, StepCosts
from deepgen.tuning.engines.base import Arena
from deepgen.tuning.progress import FINALS_SECONDS, FINALS_SHARE, Clock
from deepgen.vocabulary import Artifact, Kernel, Measurement

FIRST = 3  # rounds before the first check of the time, with a budget
CHUNK = 10  # rounds between checks of the intervals
LEAST_FINALISTS = 2  # the default and the fastest trial
STRIDED_SHAPES = 2  # shapes at which arrays have padded rows: kernels get strides and sizes separately
WAYS_OF_CALLING = 2  # many calls, and calls from several threads
_LOOK_SECONDS = 0.5  # at least the time to sample other activity on the machine
_NARROW_SECONDS, _NARROW_ROUNDS = 1.0, 50  # most time and rounds that a race may spend on narrower intervals
_LEAST = 0.12  # least share of a budget for finals
_MOST = 0.4  # share of a budget for finals whose least steps need more than their usual share
MARGIN = 1.25  # factor on the expected time of the finals or of a step


@dataclass(frozen=True)
class FinalsPlan:
    """The steps that fit, and how long they take in total."""

    finalists: int
    sets: int  # input sets
    baselines: int
    race: float  # seconds at most
    strided: bool
    shapes: int
    calm: float  # seconds at most
    closing: float = 0.0  # seconds for many calls and several threads
    rounds: int = 0  # extra rounds: 1, the usual number; 2, also those that narrow intervals
    entry: float = 0.0  # seconds by which each contender prolongs the race
    worn: float = 0.0  # seconds of calls before a finalist is timed
    seconds: float = 0.0


def plan_finals(spare: float, costs: StepCosts, wanted: FinalsPlan) -> FinalsPlan:
    """The part of the wanted steps that fits. Baselines are loaded while the search continues."""
    fresh, verify, sample = costs.of(REFERENCE), costs.of(VERIFY), costs.of(SAMPLE)
    entry = 2 * verify + FIRST * sample  # of a contender: loading, verifying, the first rounds, verifying again
    spent = fresh + LEAST_FINALISTS * (verify + entry + wanted.worn)
    finalists, sets, baselines, strided, shapes = min(LEAST_FINALISTS, wanted.finalists), 1, 0, False, 0

    def fits(seconds: float) -> bool:
        nonlocal spent
        if spent + seconds > spare:
            return False
        spent += seconds
        return True

    if fits(wanted.baselines * entry):
        baselines = wanted.baselines
    while sets < wanted.sets and fits(fresh + LEAST_FINALISTS * verify):
        sets += 1
    if fits((finalists + baselines) * entry):  # all of them race again
        while finalists < wanted.finalists and fits(sets * verify + entry + wanted.worn):
            finalists += 1
    racing = (finalists + baselines) * entry
    rounds = 0
    round_seconds = (finalists + baselines) * sample
    for more in ((CHUNK - FIRST) * round_seconds, min(_NARROW_SECONDS, _NARROW_ROUNDS * round_seconds)):
        if fits(more):
            racing, rounds = racing + more, rounds + 1
    closing = WAYS_OF_CALLING * costs.of(CALLS)
    closing = closing if fits(closing) else 0.0
    if wanted.strided and fits(STRIDED_SHAPES * fresh):
        strided = True
    while shapes < wanted.shapes and fits(fresh):
        shapes += 1
    rest = max(0.0, spare - spent)
    race = wanted.race if spare == inf else min(wanted.race, racing + rest / 3)
    calm = wanted.calm if spare == inf else min(wanted.calm, rest / 3 if rest > 3 * _LOOK_SECONDS else 0.0)
    return replace(
        wanted,
        finalists=finalists,
        sets=sets,
        baselines=baselines,
        race=race,
        strided=strided,
        shapes=shapes,
        calm=calm,
        closing=closing,
        rounds=rounds,
        entry=entry,
        seconds=spent,
    )


def for_finals(budget: float, costs: StepCosts, wanted: FinalsPlan) -> float:
    """The seconds that a search leaves to its finals: what they need, up to a limited share of the budget; that share
    if the cost of references is unknown."""
    if budget == inf:
        return 0.0
    all_of_it = plan_finals(1e9, costs, wanted).seconds
    least = plan_finals(0.0, costs, wanted).seconds
    share = min(FINALS_SECONDS, FINALS_SHARE * budget)
    if not costs.knows(REFERENCE):
        return max(share, min(MARGIN * least, _MOST * budget))
    needed = max(MARGIN * all_of_it, _LEAST * budget)  # the machine may get busier
    return min(needed, max(share, min(MARGIN * least, _MOST * budget)))


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
