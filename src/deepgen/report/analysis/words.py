"""A report in plain words, such as "time follows L2 misses (r = 0.93); BLOCK_K explains 61%"."""

from __future__ import annotations

from deepgen.report.analysis.correlation import Relation
from deepgen.report.analysis.groups import TIME, words_for
from deepgen.report.analysis.importance import Importance
from deepgen.report.analysis.report import LEVEL, Report

_MOST = 3  # numbers and knobs that a summary names
_CURVED = 0.1  # by so much a rank correlation exceeds a linear one where the relation is a curve
_LEAST_SHARE = 0.01  # of the differences in time


def summary(report: Report) -> str:
    """What explains the time, in one sentence: the strongest number of each group, then the knobs."""
    parts = [_number(one) for one in _named(report)]
    knobs = [one for one in report.important if one.share >= _LEAST_SHARE][:_MOST]
    if knobs:
        parts.append(", ".join(_knob(one, first=i == 0) for i, one in enumerate(knobs)))
    if parts:
        return "; ".join(parts)
    shown = f" with a correlation of at least {report.threshold:g}" if report.threshold else ""
    return (
        f"nothing explains the time: beyond chance, none of {len(report.relations)} numbers goes along with it{shown}, "
        "and no knob predicts it"
    )


def _named(report: Report) -> list[Relation]:
    """The strongest of each group. Knobs are told of by what they explain; cycles follow the time by definition."""
    strongest: dict[str, Relation] = {}
    for one in report.findings:
        if one.group not in (TIME, "knob"):
            strongest.setdefault(one.group, one)
    return list(strongest.values())[:_MOST]


def _number(one: Relation) -> str:
    name, partial = words_for(one.name), one.partial
    fixed = partial if partial is not None and partial.p <= LEVEL else None
    if min(one.pearson.p, one.spearman.p) > LEVEL and fixed is not None:
        return f"with the knobs held fixed, time {_verb(fixed.r)} {name} (partial r = {fixed.r:.2f})"
    curved = abs(one.spearman.r) > abs(one.pearson.r) + _CURVED
    r, what = (one.spearman.r, "rank r") if curved else (one.pearson.r, "r")
    told = f"time {_verb(r)} {name} ({what} = {r:.2f})"
    if partial is None:
        return told
    if fixed is None:
        return f"{told}, but not with the knobs held fixed (partial r = {partial.r:.2f})"
    also = "also" if fixed.r * r > 0 else "but the other way"
    return f"{told}, {also} with the knobs held fixed (partial r = {fixed.r:.2f})"


def _verb(r: float) -> str:
    return "follows" if r > 0 else "falls with"


def _knob(one: Importance, *, first: bool) -> str:
    told = f"{one.knob} explains {one.share:.0%} of the differences in time" if first else f"{one.knob} {one.share:.0%}"
    if one.partner is not None and one.together > one.share / 2:
        told += f" (mostly together with {one.partner})"
    return told
