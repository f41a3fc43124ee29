"""Statistics of samples: when there are enough, which contender is faster, and races.

In a race, contenders are timed in interleaved rounds until a rule ends it, and compared round by round.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import comb
from statistics import median
from typing import Generic, TypeAlias, TypeVar

import numpy as np

from deepgen.operators import Array
from deepgen.run.measure.base import Policy

Key = TypeVar("Key", bound=Hashable)
# Takes contenders, a number of rounds and the index of the first; returns the samples of each that did not fail.
TimeRounds: TypeAlias = "Callable[[Sequence[Key], int, int], Mapping[Key, Sequence[float]]]"


@dataclass
class RaceResult(Generic[Key]):
    """The samples of all contenders still in the race: sample i of each is from round i."""

    samples: dict[Key, list[float]]
    rounds: int = 0
    seconds: list[float] = field(default_factory=list)  # duration of each chunk of rounds

    def ratio(self, name: Key, to: Key) -> Ratio:
        """The ratio of one contender's time to another's, round by round."""
        return paired_ratio(self.samples[name], self.samples[to])

    def leader(self, among: Iterable[Key]) -> Key | None:
        """The contender with the least median among these; None if all have failed."""
        able = [name for name in among if name in self.samples]
        return min(able, key=lambda name: median(self.samples[name]), default=None)

    def fitting(self, max_seconds: float) -> int:
        """The number of further rounds that fit into the time, at the pace so far."""
        elapsed = sum(self.seconds)
        return int((max_seconds - elapsed) * self.rounds / elapsed) if elapsed else 1


def race(
    contenders: Iterable[Key],
    time_rounds: TimeRounds[Key],
    rounds: int,
    more: Callable[[RaceResult[Key]], int] = lambda result: 0,
) -> RaceResult[Key]:
    """Time all contenders in `rounds` rounds, then in as many as `more` requests, until that is 0.

    `interleaved` makes `time_rounds` from functions that each time one run; runners use `compare`.
    """
    result: RaceResult[Key] = RaceResult({name: [] for name in contenders})
    while rounds > 0 and result.samples:
        started = time.monotonic()
        timed = time_rounds([*result.samples], rounds, result.rounds)
        result.samples = {name: [*kept, *timed[name]] for name, kept in result.samples.items() if name in timed}
        result.rounds += rounds
        result.seconds.append(time.monotonic() - started)
        rounds = more(result)
    return result


def interleaved(timers: Mapping[Key, Callable[[], float | None]], seed: int) -> TimeRounds[Key]:
    """Rounds in which each timer is called once, in a new random order; a timer that returns None has failed."""
    names = list(timers)

    def time_rounds(present: Sequence[Key], rounds: int, first: int) -> Mapping[Key, Sequence[float]]:
        samples: dict[Key, list[float]] = {name: [] for name in present}
        for number in range(first, first + rounds):
            for place in np.random.default_rng([seed, number]).permutation(len(names)):
                name = names[place]
                seconds = timers[name]() if name in samples else None
                if seconds is None:
                    samples.pop(name, None)
                else:
                    samples[name].append(seconds)
        return samples

    return time_rounds


# A tie is called when the interval reaches equality and the estimate itself is small: a wide interval around a large
# difference means too few rounds, not two equal kernels.
TIE = 0.02
CONFIDENCE = 0.99


@dataclass(frozen=True)
class Ratio:
    """The ratio of one contender's time to another's, with its confidence interval."""

    estimate: float
    low: float
    high: float

    @property
    def no_slower(self) -> bool:
        """Whether it is not significantly slower than the other contender."""
        return self.low <= 1.0 and self.estimate <= 1.0 + TIE

    @property
    def width(self) -> float:
        """The width of the interval, as a share of the estimate."""
        return (self.high - self.low) / self.estimate

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2.0


def paired_ratio(slower: Sequence[float], faster: Sequence[float]) -> Ratio:
    """The median of the round-by-round ratios, which is robust to a slow round that affects both."""
    logs = np.sort(np.log(np.asarray(slower)) - np.log(np.asarray(faster)))
    return Ratio(*(float(np.exp(log)) for log in (median(logs), *_interval(logs))))


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """The confidence interval of the median."""
    return _interval(np.sort(np.asarray(samples, dtype=np.float64)))


def _interval(ordered: Array) -> tuple[float, float]:
    """The confidence interval of the median of sorted samples, for any distribution of the noise.

    A sample is above the true median with the same probability as below it. So the number of samples below it is
    binomial, which gives the confidence that the median is between the k-th smallest and the k-th largest sample.
    CONFIDENCE is between the values for two consecutive k, so the ends are interpolated (after Hettmansperger and
    Sheather, 1986). Resampling takes fifty times as long, and with 10 rounds its intervals contain the median in 96
    cases of 100.
    """
    count = len(ordered)
    at_most = accumulate(comb(count, below) / 2**count for below in range(count // 2 + 1))
    sure = [1.0 - 2.0 * tail for tail in at_most]  # for k = 1, 2, ...
    k = len([share for share in sure if share >= CONFIDENCE])
    if k == 0:  # fewer than 8 samples never reach it
        return float(ordered[0]), float(ordered[-1])
    part = (sure[k - 1] - CONFIDENCE) / (sure[k - 1] - sure[k])
    step = (count - k) * part / (k + (count - 2 * k) * part)
    low, high = (ordered[i] + step * (ordered[j] - ordered[i]) for i, j in ((k - 1, k), (-k, -k - 1)))
    return float(low), float(high)


FEWEST_BEATEN = 3  # samples, all slower than the time to beat by the policy's factor, that show that a kernel is beaten
HOPELESS = 10.0  # times the time to beat: a single sample is enough
FAST = 0.7  # a sample below this share of the median is suspicious
SPREAD = 3.0  # ratio of the quartiles above which samples are unsettled
BEHIND = 1.0  # allowed interval of a slower kernel, as a share of its distance to the time to beat
RESOLUTION = 1e-7  # seconds: the resolution for a single run; some clocks count in steps of 40 ns
_STEP = 5  # samples between checks, once there are many


def rough_interval(samples: Sequence[float]) -> tuple[float, float]:
    """A 95% confidence interval of the median from few samples, computed fast, without assumptions on the noise."""
    ordered = sorted(samples)
    n = len(ordered)
    reach = 0.98 * math.sqrt(n)
    low = max(0, math.floor((n - 1) / 2 - reach))
    high = min(n - 1, math.ceil((n - 1) / 2 + reach))
    return ordered[low], ordered[high]


def enough(samples: Sequence[float], policy: Policy, beat: float | None = None) -> bool:
    """Whether another sample would not change any decision."""
    n = len(samples)
    if n >= policy.max_samples or (beat is not None and is_beaten(samples, policy, beat)):
        return True
    total = sum(samples)
    if n < policy.min_samples:
        # A few long runs are as informative as many short ones: they average over disturbances.
        return n >= FEWEST_BEATEN and total >= 4.0 * policy.max_seconds
    if total >= policy.max_seconds:
        return True
    if n > 2 * policy.min_samples and n % _STEP:
        return False
    # A suspiciously fast sample is followed by as many more as are usually enough.
    middle = median(samples)
    recent = samples[-policy.min_samples :]
    if min(recent) < FAST * middle:
        return False
    low, high = rough_interval(samples)
    # If a kernel is slower than the best, its time need not be precise.
    behind = 0.0 if beat is None else BEHIND * (low / beat - 1.0)
    return high - low <= max(RESOLUTION, max(policy.precision, behind) * middle)


def is_beaten(samples: Sequence[float], policy: Policy, beat: float) -> bool:
    """Whether these samples are certainly slower than `beat` by the policy's factor."""
    if not samples:
        return False
    best = min(samples)
    return best > HOPELESS * beat or (len(samples) >= FEWEST_BEATEN and best > policy.give_up * beat)


def unsettled(samples: Sequence[float]) -> bool:
    """Whether the samples scatter so widely that their median means little."""
    ordered = sorted(samples)
    n = len(ordered)
    if n < 5:
        return False
    return ordered[(3 * n) // 4] > SPREAD * ordered[n // 4]
