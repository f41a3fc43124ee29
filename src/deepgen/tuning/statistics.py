"""Paired comparison: which is faster, by how much, and whether the difference is significant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import comb

import numpy as np

from deepgen.operators import Array

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
