"""What explains the time: correlations and knob importances of a study's trials, and what can be said of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from deepgen.report.analysis.correlation import Relation, relations
from deepgen.report.analysis.importance import Importance, importances
from deepgen.report.analysis.numbers import FEWEST, Row, columns_of, knobs_of, log_times, usable
from deepgen.vocabulary import BadInput, DeepgenError, JsonObject

THRESHOLD = 0.5
# The chance of any finding at all where nothing relates to the time: this for correlations, and this for knobs.
LEVEL = 0.01
MOST = 4000  # trials; of more, a random choice is taken


@dataclass(frozen=True)
class Group:
    """How many numbers of a kind there are, how many of them relate to the time, and the one that does most."""

    name: str
    numbers: int
    related: int
    strongest: str | None


@dataclass(frozen=True)
class Report:
    """What was found in `used` correct trials. `relations` and `knobs` hold everything that was looked at."""

    trials: int
    used: int
    threshold: float
    relations: tuple[Relation, ...]
    knobs: tuple[Importance, ...]
    explained: float  # by all knobs together, in shares of the variance of log time
    scarce: tuple[str, ...]  # numbers that too few trials have

    @property
    def findings(self) -> tuple[Relation, ...]:
        """The relations that are not chance and above the threshold, the strongest first."""
        least = max(self.threshold, 1e-12)
        return tuple(one for one in self.relations if one.strength(LEVEL) >= least)

    @property
    def important(self) -> tuple[Importance, ...]:
        """The knobs that predict the time of trials that the model has not seen."""
        return tuple(one for one in self.knobs if one.p <= LEVEL and one.share > 0)

    @property
    def groups(self) -> tuple[Group, ...]:
        names = dict.fromkeys(one.group for one in self.relations)
        found = []
        for name in names:
            related = [one.name for one in self.findings if one.group == name]
            count = sum(one.group == name for one in self.relations)
            found.append(Group(name, count, len(related), related[0] if related else None))
        return tuple(sorted(found, key=lambda group: -group.related))

    def to_json(self) -> JsonObject:
        return {
            "trials": self.trials,
            "used": self.used,
            "threshold": self.threshold,
            "level": LEVEL,
            "explained_by_knobs": self.explained,
            "findings": [one.name for one in self.findings],
            "important_knobs": [one.knob for one in self.important],
            "groups": [asdict(one) for one in self.groups],
            "relations": [asdict(one) for one in self.relations],
            "knobs": [asdict(one) for one in self.knobs],
            "too_few_values": list(self.scarce),
        }


def analyze(rows: Sequence[Row], threshold: float = THRESHOLD, seed: int = 0) -> Report:
    """What explains the time of these trials, which are rows as `Study.rows()` gives them.

    Raises DeepgenError where too few of them are correct to say anything.
    """
    if not 0.0 <= threshold <= 1.0:
        raise BadInput(f"the threshold is {threshold}", allowed="a correlation from 0 to 1")
    timed = usable(rows)
    if len(timed) < FEWEST:
        raise DeepgenError(f"{len(timed)} correct trials are too few to analyze (at least {FEWEST} are needed)")
    chosen = np.sort(np.random.default_rng(seed).permutation(len(timed))[:MOST])
    used = [timed[i] for i in chosen]
    times, knobs = log_times(used), knobs_of(used)
    columns, scarce = columns_of(used)
    found = relations(columns, times, knobs, seed) if np.ptp(times) > 0 else []
    found.sort(key=lambda one: -max(one.strength(LEVEL), abs(one.pearson.r) * 1e-6))
    shares, explained = importances(knobs, times, LEVEL, seed)
    return Report(len(rows), len(used), threshold, tuple(found), tuple(shares), explained, tuple(scarce))
