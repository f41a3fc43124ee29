"""Where a run's time goes, and how much of it the time budget leaves."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from math import inf

from deepgen.vocabulary import JsonObject

PARTS = ("building", "measuring", "verifying", "waiting", "search")
_FINALS_SHARE = 0.3  # of the budget, kept for the finals
_FINALS_SECONDS = 60.0  # but at most this


@contextmanager
def timed_part(seconds: dict[str, float], part: str) -> Iterator[None]:
    """Time spent inside is added to this part."""
    started = time.monotonic()
    try:
        yield
    finally:
        seconds[part] += time.monotonic() - started


class Clock:
    """The time of one run, from its start.

    Measuring is when the device was busy, with trials or with the race; building is when it waited for builds;
    verifying is that of the finals; waiting is for a calm machine; search is the strategy's own time.
    """

    def __init__(self, budget: float | None = None) -> None:
        self._budget = inf if budget is None else budget
        self._started = time.monotonic()
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._trials = (0.0, 0)  # seconds and samples

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._started

    @property
    def left(self) -> float:
        """Seconds of the budget, never below 0; infinite without one."""
        return max(0.0, self._budget - self.elapsed)

    @property
    def search_over(self) -> bool:
        """Whether the time that is left belongs to the finals."""
        return self.left <= min(_FINALS_SECONDS, _FINALS_SHARE * self._budget) if self._budget < inf else False

    def samples_left(self, share: float) -> float:
        """How many samples fit into this share of the time that is left, at the pace of the trials so far."""
        seconds, samples = self._trials
        return share * self.left * samples / seconds if seconds else inf

    def on(self, part: str) -> AbstractContextManager[None]:
        """Time spent inside counts as this part."""
        return timed_part(self._seconds, part)

    def measured(self, seconds: float, samples: int) -> None:
        """Trials with that many samples kept the device busy for that long, while the search waited or computed."""
        self._trials = (self._trials[0] + seconds, self._trials[1] + samples)
        self._seconds["building"] = max(0.0, self._seconds["building"] - seconds)
        self._seconds["measuring"] += seconds

    def spent(self) -> dict[str, float]:
        """Seconds so far, by part."""
        return dict(self._seconds)

    def told(self) -> JsonObject:
        """What is recorded of a run. What was measured while the strategy computed counts as search alone."""
        total, parts = self.elapsed, dict(self._seconds)
        twice = max(0.0, sum(parts.values()) - total)
        parts["measuring"] = max(0.0, parts["measuring"] - twice)
        return {**{part: round(seconds, 3) for part, seconds in parts.items()}, "total": round(total, 3)}


def summed(runs: Sequence[Mapping[str, float]]) -> JsonObject:
    """Of all runs of a study."""
    return {part: round(sum(run[part] for run in runs), 3) for part in (*PARTS, "total")}
