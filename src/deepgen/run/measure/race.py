"""Statistics of samples: when there are enough, who is faster, and races.

In a race contenders are timed in interleaved rounds until a rule says that it is decided, and compared round by round.
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
# From contenders, a number of rounds and the number of the first to the samples of each; who is missing has failed.
TimeRounds: TypeAlias = "Callable[[Sequence[Key], int, int], Mapping[Key, Sequence[float]]]"


@dataclass
class RaceResult(Generic[Key]):
    """The samples of all that are still in the race: sample i of each is of round i."""

    samples: dict[Key, list[float]]
    rounds: int = 0
    seconds: list[float] = field(default_factory=list)  # that each chunk of rounds took

    def ratio(self, name: Key, to: Key) -> Ratio:
        """How many times longer one takes than another, round by round."""
        return paired_ratio(self.samples[name], self.samples[to])

    def leader(self, among: Iterable[Key]) -> Key | None:
        """Who has the least median of these; None where all have failed."""
        able = [name for name in among if name in self.samples]
        return min(able, key=lambda name: float(np.median(self.samples[name])), default=None)

    def fitting(self, max_seconds: float) -> int:
        """How many more rounds the time allows, at the pace so far."""
        elapsed = sum(self.seconds)
        return int((max_seconds - elapsed) * self.rounds / elapsed) if elapsed else 1


def race(
    contenders: Iterable[Key],
    time_rounds: TimeRounds[Key],
    rounds: int,
    more: Callable[[RaceResult[Key]], int] = lambda result: 0,
) -> RaceResult[Key]:
    """Time all contenders in so many rounds, then in as many as `more` asks for, until that is none.

    `interleaved` makes `time_rounds` of functions that each time one run; runners have `compare` for it.
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
    """Rounds in which each timer is called once, in an order that is drawn again for each; None: it has failed."""
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
    """How many times longer one takes than the other, with its confidence interval."""

    estimate: float
    low: float
    high: float

    @property
    def no_slower(self) -> bool:
        """Whether it is not significantly slower than the other."""
        return self.low <= 1.0 and self.estimate <= 1.0 + TIE

    @property
    def width(self) -> float:
        """The width of the interval, as a share of the estimate."""
        return (self.high - self.low) / self.estimate

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2.0


def paired_ratio(slower: Sequence[float], faster: Sequence[float]) -> Ratio:
    """Median of the round-by-round ratios. Robust to a slow round that hits both."""
    logs = np.sort(np.log(np.asarray(slower)) - np.log(np.asarray(faster)))
    return Ratio(*(float(np.exp(log)) for log in (np.median(logs), *_interval(logs))))


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """The confidence interval of the median."""
    return _interval(np.sort(np.asarray(samples, dtype=np.float64)))


def _interval(ordered: Array) -> tuple[float, float]:
    """The confidence interval of the median that sorted samples have, whatever the noise looks like.

    A sample is above the true median as likely as below it. So the number below is binomial, which tells how sure it is
    that the median lies between the k-th smallest and the k-th largest. CONFIDENCE lies between what two such k give,
    and so do the ends (interpolated after Hettmansperger and Sheather, 1986). Resampling takes fifty times as long, and
    its intervals hold the median of 10 rounds in 96 cases of 100.
    """
    count = len(ordered)
    at_most = accumulate(comb(count, below) / 2**count for below in range(count // 2 + 1))
    sure = [1.0 - 2.0 * tail for tail in at_most]  # for k = 1, 2, ...
    k = len([share for share in sure if share >= CONFIDENCE])
    if k == 0:  # fewer than 8 samples are never so sure
        return float(ordered[0]), float(ordered[-1])
    part = (sure[k - 1] - CONFIDENCE) / (sure[k - 1] - sure[k])
    step = (count - k) * part / (k + (count - 2 * k) * part)
    low, high = (ordered[i] + step * (ordered[j] - ordered[i]) for i, j in ((k - 1, k), (-k, -k - 1)))
    return float(low), float(high)


FEWEST_BEATEN = 3  # samples, all slower than the time to beat by the policy's factor, that settle that it is beaten
HOPELESS = 10.0  # times slower than the time to beat: one sample will do
FAST = 0.7  # a sample below this share of the median is suspect
SPREAD = 3.0  # times: quartiles further apart than this settle nothing
BEHIND = 0.25  # of the distance to the time to beat: how wide the interval of a kernel behind it may be
RESOLUTION = 1e-7  # seconds: clocks tell no less of a single run, some count in steps of 40 ns
_STEP = 5  # samples between two looks, once there are many


def rough_interval(samples: Sequence[float]) -> tuple[float, float]:
    """A 95% confidence interval of the median, from few samples and quickly: no assumption on the noise."""
    ordered = sorted(samples)
    n = len(ordered)
    reach = 0.98 * math.sqrt(n)
    low = max(0, math.floor((n - 1) / 2 - reach))
    high = min(n - 1, math.ceil((n - 1) / 2 + reach))
    return ordered[low], ordered[high]


def enough(samples: Sequence[float], policy: Policy, beat: float | None = None) -> bool:
    """Whether another sample would change nothing that matters."""
    n = len(samples)
    if n >= policy.max_samples or (beat is not None and is_beaten(samples, policy, beat)):
        return True
    total = sum(samples)
    if n < policy.min_samples:
        # Few long runs tell as much as many: they average over whatever disturbs them.
        return n >= FEWEST_BEATEN and total >= 4.0 * policy.max_seconds
    if total >= policy.max_seconds:
        return True
    if n > 2 * policy.min_samples and n % _STEP:
        return False
    # A suspiciously fast sample is confirmed by as many more as would have been enough without it.
    middle = median(samples)
    recent = samples[-policy.min_samples :]
    if min(recent) < FAST * middle:
        return False
    low, high = rough_interval(samples)
    # How far behind a kernel is need not be known well.
    behind = 0.0 if beat is None else BEHIND * (low / beat - 1.0)
    return high - low <= max(RESOLUTION, max(policy.precision, behind) * middle)


def is_beaten(samples: Sequence[float], policy: Policy, beat: float) -> bool:
    """Whether these samples are surely slower than `beat` by the policy's factor."""
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
