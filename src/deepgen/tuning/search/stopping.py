"""When a search may stop before its budget: it reached its goal, or it has long found nothing better."""

from __future__ import annotations

from dataclasses import dataclass

from deepgen.vocabulary import BadInput, Trial


@dataclass(frozen=True)
class Goals:
    """What ends a search early; None: nothing does."""

    target_speedup: float | None = None  # over the reference
    patience: int | None = None  # trials in which the best time has not become shorter by more than `gain`
    gain: float = 0.005

    def __post_init__(self) -> None:
        if self.target_speedup is not None and self.target_speedup <= 0.0:
            raise BadInput(f"target speedup is {self.target_speedup:g}", allowed="a number above 0, such as 1.5")
        if self.patience is not None and self.patience < 1:
            raise BadInput(f"patience is {self.patience}", allowed="must be an integer of at least 1")


class Stopping:
    """Hears the trials in the order in which the strategy does, so that a resumed study stops at the same one.

    `reference` is the time to be beaten, such as a baseline's; without one, that of the first right trial.
    """

    def __init__(self, goals: Goals, reference: float | None = None) -> None:
        self._goals, self._reference = goals, reference
        self._best: float | None = None
        self._mark: float | None = None  # the best time when it last became clearly shorter
        self._since = 0

    def hear(self, trial: Trial) -> None:
        self._since += 1
        if trial.seconds is None:
            return
        if self._reference is None:
            self._reference = trial.seconds
        if self._best is None or trial.seconds < self._best:
            self._best = trial.seconds
        if self._mark is None or trial.seconds < self._mark * (1.0 - self._goals.gain):
            self._mark, self._since = trial.seconds, 0

    def reason(self) -> str | None:
        """Why the search may stop now, if it may."""
        goals = self._goals
        if goals.target_speedup is not None and self._best is not None and self._reference is not None:
            speedup = self._reference / self._best
            if speedup >= goals.target_speedup:
                return f"it is {speedup:.2f} times as fast as the reference, and {goals.target_speedup:g} was the goal"
        if goals.patience is not None and self._best is not None and self._since >= goals.patience:
            return f"nothing better by {goals.gain:.1%} was found in {self._since} trials"
        return None
