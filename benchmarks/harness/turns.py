"""Contenders timed in interleaved rounds: every round has all of them in random order, with ratios per round."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import TYPE_CHECKING, Any

from harness.options import Deadline

if TYPE_CHECKING:
    from deepgen.run.measure.race import Ratio

FEWEST = 3  # rounds, whatever the deadline


@dataclass(frozen=True)
class Timed:
    """One contender compared with another: medians in seconds, and the ratio over the rounds with its 99% interval."""

    name: str
    seconds: float
    beside: str
    beside_seconds: float
    ratio: float
    low: float
    high: float
    rounds: int

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Table cells: both times, the ratio and its interval."""
        times = (seconds_text(self.beside_seconds), seconds_text(self.seconds))
        return (*times, f"{self.ratio:.3f}", f"{self.low:.3f} to {self.high:.3f}")


@dataclass(frozen=True)
class Samples:
    """Seconds of each contender, one sample per round."""

    of: Mapping[str, list[float]]

    def median(self, name: str) -> float:
        return median(self.of[name])

    def least(self, name: str) -> float:
        return min(self.of[name])

    def ratio(self, slower: str, faster: str) -> Ratio:
        """The time of the first relative to the second."""
        from deepgen.run.measure.race import paired_ratio

        return paired_ratio(self.of[slower], self.of[faster])

    def beside(self, name: str, other: str, shown: str = "") -> Timed:
        ratio, rounds = self.ratio(name, other), len(self.of[name])
        times = (self.median(name), other, self.median(other))
        return Timed(shown or name, *times, ratio.estimate, ratio.low, ratio.high, rounds)


def alternate(
    contenders: Mapping[str, Callable[[], float]],
    rounds: int,
    *,
    seed: int = 0,
    deadline: Deadline | None = None,
    warm_up: bool = True,
) -> Samples:
    """Rounds in which each contender returns its seconds once. With `warm_up`, the first round is not counted."""
    deadline = deadline or Deadline(inf)
    order, chance = list(contenders), random.Random(seed)
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(-1 if warm_up else 0, rounds):
        if number >= FEWEST and deadline.over:
            break
        chance.shuffle(order)
        for name in order:
            seconds = contenders[name]()
            if number >= 0:
                taken[name].append(seconds)
    return Samples(taken)


def per_call(
    call: Callable[[], Any],
    count: int = 1,
    *,
    clock: Callable[[], float] = time.perf_counter,
    wait: Callable[[], object] = lambda: None,
) -> Callable[[], float]:
    """A contender: seconds per call over `count` calls. `wait` is called before and after, outside the timing."""

    def seconds() -> float:
        wait()
        started = clock()
        for _ in range(count):
            call()
        taken = clock() - started
        wait()
        return taken / count

    return seconds


def processor_seconds(run: Callable[[], object]) -> float:
    """CPU time of this process's children, while `run` starts them and waits for their end."""
    before = os.times()
    run()
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


def seconds_text(seconds: float) -> str:
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
