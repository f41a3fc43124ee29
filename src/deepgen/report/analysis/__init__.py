"""Analysis: what explains the time of a study's kernels. Everything here is a function of rows of trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from deepgen.report.analysis.explained import Estimate, Importance, Relation, importances, relations
from deepgen.report.analysis.numbers import FEWEST, TIME, Row, columns_of, knobs_of, log_times, usable, words_for
from deepgen.space.definition import value_from_json
from deepgen.tuning.study.reading import Reading
from deepgen.vocabulary import BadInput, DeepgenError, JsonObject

THRESHOLD = 0.5
# The probability of any finding at all if nothing relates to the time: once for correlations, and once for knobs.
LEVEL = 0.01
MOST = 4000  # trials; of more than that, a random sample is used
_MOST_NAMED = 3  # numbers and knobs that a summary lists
_CURVED = 0.1  # a rank correlation that exceeds the linear one by this much indicates a curve
_LEAST_SHARE = 0.01  # of the variation in time


@dataclass(frozen=True)
class NumberGroup:
    """The numbers of one kind: how many there are, how many relate to the time, and the strongest of them."""

    name: str
    numbers: int
    related: int
    strongest: str | None


@dataclass(frozen=True)
class Report:
    """The findings from `used` correct trials. `relations` and `knobs` hold everything that was tested."""

    trials: int
    used: int
    threshold: float
    relations: tuple[Relation, ...]
    knobs: tuple[Importance, ...]
    explained: float  # by all knobs together, in shares of the variance of log time
    scarce: tuple[str, ...]  # numbers present in too few trials

    @property
    def findings(self) -> tuple[Relation, ...]:
        """The relations above the threshold that are not due to chance, the strongest first."""
        least = max(self.threshold, 1e-12)
        return tuple(one for one in self.relations if one.strength(LEVEL) >= least)

    @property
    def important(self) -> tuple[Importance, ...]:
        """The knobs that help predict the times of trials that the model was not fitted to."""
        return tuple(one for one in self.knobs if one.p <= LEVEL and one.share > 0)

    @property
    def groups(self) -> tuple[NumberGroup, ...]:
        names = dict.fromkeys(one.group for one in self.relations)
        groups = []
        for name in names:
            related = [one.name for one in self.findings if one.group == name]
            count = sum(one.group == name for one in self.relations)
            groups.append(NumberGroup(name, count, len(related), related[0] if related else None))
        return tuple(sorted(groups, key=lambda group: -group.related))

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
    """What explains the time of these trials, given as rows from `Study.rows()`.

    Raises DeepgenError if too few of them are correct.
    """
    if not 0.0 <= threshold <= 1.0:
        raise BadInput(f"the threshold is {threshold}", allowed="must be from 0 to 1")
    timed = usable(rows)
    if len(timed) < FEWEST:
        raise DeepgenError(f"{len(timed)} correct trials are too few to analyze (at least {FEWEST} are needed)")
    chosen = np.sort(np.random.default_rng(seed).permutation(len(timed))[:MOST])
    used = [timed[i] for i in chosen]
    times, knobs = log_times(used), knobs_of(used)
    columns, scarce = columns_of(used)
    related = relations(columns, times, knobs, seed) if np.ptp(times) > 0 else []
    related.sort(key=lambda one: -max(one.strength(LEVEL), abs(one.pearson.r) * 1e-6))
    shares, explained = importances(knobs, times, LEVEL, seed)
    return Report(len(rows), len(used), threshold, tuple(related), tuple(shares), explained, tuple(scarce))


def rows_of(reading: Reading) -> list[Row]:
    """The rows of `Study.rows()`, plus `derived.NAME` if the study stores its space. Imports no user code."""
    rows = reading.rows()
    space = reading.study.kept_space()
    if space is None:
        return [*rows]
    configs = {t.id: {name: value_from_json(value) for name, value in t.config.items()} for t in reading.trials}
    return [
        {**row, **{f"derived.{name}": value for name, value in space.derived(configs[row["trial"]]).items()}}
        for row in rows
    ]


def summary(report: Report) -> str:
    """What explains the time, in one sentence: the strongest number of each group, then the knobs."""
    parts = [_number(one) for one in _named(report)]
    knobs = [one for one in report.important if one.share >= _LEAST_SHARE][:_MOST_NAMED]
    if knobs:
        parts.append(", ".join(_knob(one, first=i == 0) for i, one in enumerate(knobs)))
    if parts:
        return "; ".join(parts)
    shown = f" with a correlation of at least {report.threshold:g}" if report.threshold else ""
    return (
        f"nothing explains the time: none of {len(report.relations)} metrics correlates with it beyond chance{shown}, "
        "and no knob predicts it"
    )


def _named(report: Report) -> list[Relation]:
    """The strongest of each group. Knobs are reported by what they explain; cycles follow the time by definition."""
    strongest: dict[str, Relation] = {}
    for one in report.findings:
        if one.group not in (TIME, "knob"):
            strongest.setdefault(one.group, one)
    return list(strongest.values())[:_MOST_NAMED]


def _number(one: Relation) -> str:
    name, partial = words_for(one.name), one.partial
    fixed = partial if partial is not None and partial.p <= LEVEL else None
    if min(one.pearson.p, one.spearman.p) > LEVEL and fixed is not None:
        return f"with the knobs held fixed, time {_verb(fixed.r)} {name} (partial r = {fixed.r:.2f})"
    curved = abs(one.spearman.r) > abs(one.pearson.r) + _CURVED
    r, what = (one.spearman.r, "rank r") if curved else (one.pearson.r, "r")
    text = f"time {_verb(r)} {name} ({what} = {r:.2f})"
    if partial is None:
        return text
    if fixed is None:
        return f"{text}, but not with the knobs held fixed (partial r = {partial.r:.2f})"
    also = "also" if fixed.r * r > 0 else "but the other way"
    return f"{text}, {also} with the knobs held fixed (partial r = {fixed.r:.2f})"


def _verb(r: float) -> str:
    return "follows" if r > 0 else "falls with"


def _knob(one: Importance, *, first: bool) -> str:
    text = f"{one.knob} explains {one.share:.0%} of the variation in time" if first else f"{one.knob} {one.share:.0%}"
    if one.partner is not None and one.together > one.share / 2:
        text += f" (mostly together with {one.partner})"
    return text


__all__ = [
    "LEVEL",
    "THRESHOLD",
    "Estimate",
    "Importance",
    "NumberGroup",
    "Relation",
    "Report",
    "analyze",
    "rows_of",
    "summary",
]
