"""Replay: run a strategy against a recorded space, and score how near it came to the best config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import Any

from deepgen.tuning import search
from deepgen.tuning.search.base import Past, Setting
from deepgen.tuning.search.recorded import Recorded
from deepgen.vocabulary import Trial


@dataclass(frozen=True)
class Contest:
    """What is replayed: a strategy with its options, for that many evaluations, with what it may learn from."""

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


def interval(scores: Sequence[float]) -> tuple[float, float]:
    """The 95% interval of the mean score over seeds, by Student's t; no score lies outside 0 and 1."""
    n = len(scores)
    if n < 2:
        return scores[0], scores[0]
    half = _student(n - 1) * stdev(scores) / n**0.5
    return max(0.0, mean(scores) - half), min(1.0, mean(scores) + half)


def _student(freedom: int) -> float:
    """The 97.5% point of Student's t: exact for 1 and 2, else Cornish and Fisher's expansion from the normal one."""
    if freedom <= 2:
        return (12.706, 4.303)[freedom - 1]
    z = 1.959964
    first = (z**3 + z) / 4.0
    second = (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / 96.0
    third = (3.0 * z**7 + 19.0 * z**5 + 17.0 * z**3 - 15.0 * z) / 384.0
    return z + first / freedom + second / freedom**2 + third / freedom**3
