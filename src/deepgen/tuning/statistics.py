"""Paired comparison: who is faster, by how much, and whether that can be told at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# A tie is called when the interval reaches equality and the estimate itself is small: a wide interval around a large
# difference means too few rounds, not two equal kernels.
TIE = 0.02
CONFIDENCE = 0.99
_RESAMPLES = 2000


@dataclass(frozen=True)
class Ratio:
    """How many times longer one takes than the other, with its confidence interval."""

    estimate: float
    low: float
    high: float

    @property
    def no_slower(self) -> bool:
        """Whether it cannot be told to be slower than the other."""
        return self.low <= 1.0 and self.estimate <= 1.0 + TIE

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2.0


def paired_ratio(slower: Sequence[float], faster: Sequence[float], seed: int = 0) -> Ratio:
    """Median of the round-by-round ratios, bootstrapped over rounds. Robust to a slow round that hits both."""
    logs = np.log(np.asarray(slower)) - np.log(np.asarray(faster))
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(logs), (_RESAMPLES, len(logs)))
    medians = np.median(logs[picks], axis=1)
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(medians, [tail, 1.0 - tail])
    return Ratio(float(np.exp(np.median(logs))), float(np.exp(low)), float(np.exp(high)))
