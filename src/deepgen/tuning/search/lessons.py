"""Lessons: what a model may learn from a trial, whatever its verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass

from deepgen.vocabulary import Trial, Verdict

CLEARLY_SLOWER = 2.0  # times the best: a kernel that surely takes longer need not be run


@dataclass(frozen=True)
class Told:
    """How a config ended: its time, or None when it failed."""

    rank: int
    seconds: float | None


class Lessons:
    """Hears the trials of a search in the order of telling."""

    def __init__(self) -> None:
        self._best = math.inf

    def of(self, trial: Trial) -> list[Told]:
        """One lesson or none.

        A failure is one: it may show a constraint of the machine. A kernel that was not run did not fail: it counts
        as clearly slow. A time that could not be settled counts, but as no better than the best that was.
        """
        if trial.seconds is not None:
            self._best = min(self._best, trial.seconds)
            return [Told(trial.rank, trial.seconds)]
        verdict, unsettled = trial.measurement.verdict, trial.measurement.seconds
        if verdict is Verdict.NOT_RUN:
            slow = CLEARLY_SLOWER * self._best
        elif verdict is Verdict.UNSTABLE:
            slow = math.inf if unsettled is None else max(unsettled, self._best)
        else:
            return [Told(trial.rank, None)]
        return [Told(trial.rank, slow)] if math.isfinite(slow) else []
