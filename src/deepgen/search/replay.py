"""Replay: run a strategy against a recorded space, and score how near it came to the best config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deepgen import search
from deepgen.search.base import Past, Setting
from deepgen.search.recorded import Recorded
from deepgen.vocabulary import Trial


@dataclass(frozen=True)
class Contest:
    """What is replayed: a strategy with its options, for so many evaluations, with what it may learn from."""

    strategy: str
    budget: int
    options: Mapping[str, Any] = field(default_factory=dict)
    history: Sequence[Past] = ()
    batch: int = 1


def replay(recorded: Recorded, contest: Contest, seed: int) -> list[float]:
    """The score after each evaluation: best possible time / best time found so far; 0 until one is found.

    A failed config is an evaluation too. A space that ends before the budget keeps its last score.
    """
    setting = Setting(recorded.space, seed, options=contest.options, history=contest.history)
    strategy = search.make(contest.strategy, setting)
    scores: list[float] = []
    found = 0.0
    while len(scores) < contest.budget:
        configs = strategy.ask(min(contest.batch, contest.budget - len(scores)))
        if not configs:
            return scores + [found] * (contest.budget - len(scores))
        for config in configs:
            measurement = recorded.measure(config)
            if measurement.ok and measurement.seconds is not None:
                found = max(found, recorded.best / measurement.seconds)
            trial = Trial(len(scores), recorded.space.rank(config), config, "", measurement)
            strategy.tell(trial)
            scores.append(found)
    return scores
