"""The figures of a report in order: each a chart with a caption that says what it shows and how to read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from deepgen.report import charts, knob_charts
from deepgen.report.facts import Facts, important_knobs
from deepgen.report.trials import SHOWN
from deepgen.tuning.study.text import counted

_FIELDS = ("trial", "verdict", "time", "shown")


@dataclass(frozen=True)
class Figure:
    """A chart with its title and its caption, which is also its text alternative."""

    name: str
    title: str
    caption: str
    chart: Any
    fields: Sequence[str] = ()  # of the trials that it reads

    @property
    def described(self) -> str:
        return f"{self.title}. {self.caption}"


def figures_of(facts: Facts) -> list[Figure]:
    """All figures that have something to show."""
    figures = _of_several(facts) if facts["kind"] == "studies" else _of_study(facts)
    return [figure for figure in figures if figure.chart is not None]


def _of_several(facts: Facts) -> Iterator[Figure]:
    rows = facts["ratios"]
    caption = (
        f"How many times as fast each study's winner is as the default and as each baseline, in "
        f"{counted(len(rows), 'comparison')}. "
        "Points are medians of round-by-round ratios, lines their 99% intervals; right of 1, ours is faster."
    )
    yield Figure("ratios", "Winners compared", caption, charts.ratios(rows))


def _of_study(facts: Facts) -> Iterator[Figure]:
    ratios = "; ".join(f"over {row['name']}: {row['words']}" for row in facts["ratios"])
    caption = f"How many times as fast the winner is: {ratios}. Lines are 99% intervals."
    yield Figure("ratios", "The winner compared", caption, charts.ratios(facts["ratios"]))
    yield Figure("roofline", "Roofline", _roofline(facts), charts.roofline(facts), (*_FIELDS, "moved"))
    yield Figure("history", "Best so far, by trial", _history(facts), charts.history(facts), _FIELDS)
    timed = charts.history(facts, over="at")
    yield Figure("over-time", "Best so far, by wall time", _over_time(facts), timed, (*_FIELDS, "at"))
    explains = ", ".join(f"{one['knob']} {one['share']:.0%}" for one in important_knobs(facts))
    caption = (
        "How much of the differences in time each knob predicts, alone (the first part) and together with others: "
        f"{explains}."
    )
    yield Figure("importance", "What the knobs explain", caption, knob_charts.importance(facts))
    explaining = [one["knob"] for one in facts["analysis"].get("knobs", [])]  # those that explain most first
    order = {name: place for place, name in enumerate(explaining)}
    for one in sorted(facts["knobs"], key=lambda one: order.get(one["name"], len(order))):
        caption = f"The time of each correct trial over {one['name']}; the short lines are the medians."
        chart = knob_charts.knob(facts, one["field"]) if facts["best_time"] is not None else None
        fields = ("trial", "time", "shown", one["field"])
        yield Figure(f"knob-{one['field']}", one["name"], caption + _thinned(facts), chart, fields)
    if facts["pair"]:
        first, second = facts["pair"]
        names = {one["field"]: one["name"] for one in facts["knobs"]}
        title = f"{names[first]} and {names[second]}"
        caption = (
            f"The best time of the trials with each pair of values of {title}, in times of the fastest trial: "
            "1 is the fastest. Empty cells were not tried, or gave no correct kernel."
        )
        chart = knob_charts.heatmap(facts, first, second)
        yield Figure("heatmap", f"Two knobs together: {title}", caption, chart, ("time", first, second))
    caption = (
        f"A line for each of the best {counted(facts['best_count'], 'trial')}, through its value of every knob. "
        "The dashed line is the fastest."
    )
    fields = ("trial", "time", *(one["field"] for one in facts["knobs"]))
    yield Figure("parallel", "The knobs of the best trials", caption, knob_charts.parallel(facts), fields)
    verdicts = ", ".join(f"{one['count']} {one['verdict']}" for one in facts["verdicts"])
    yield Figure("verdicts", "How trials ended", f"Trials by how they ended: {verdicts}.", charts.verdicts(facts))
    spent = ", ".join(f"{part} {seconds:.1f} s" for part, seconds in facts["time"]["parts"].items() if seconds > 0)
    caption = f"Wall time of all runs, {facts['time']['total']:.1f} s: {spent}."
    yield Figure("time", "Where the time went", caption, charts.time(facts))
    caption = (
        "How each number goes along with the logarithm of the time, from the top: Pearson's correlation, Spearman's, "
        "and Pearson's with the knobs held fixed. 1 and -1 are the strongest."
    )
    yield Figure("correlations", "Numbers that go along with the time", caption, knob_charts.correlations(facts))
    for event in facts["events"]:
        chart = knob_charts.cloud(facts, event["field"])
        caption = f"The time of each correct trial over {event['words']}."
        fields = ("trial", "time", "shown", event["field"])
        yield Figure(f"event-{event['field']}", f"Time over {event['words']}", caption, chart, fields)


def _roofline(facts: Facts) -> str:
    roof = facts["roofline"] or {}
    unknown = [
        what for what, key in (("peak", "peak_gflops"), ("memory's bandwidth", "bandwidth")) if not roof.get(key)
    ]
    missing = f" The {' and the '.join(unknown)} of this device are not known." if unknown else ""
    where = (
        "Bytes are those that were counted for each kernel."
        if roof.get("counted")
        else "All trials stand at the same place: bytes are the least that the operator must move."
    )
    return f"The rate of each correct trial below the bounds of the device. {where}{missing}{_thinned(facts)}"


def _history(facts: Facts) -> str:
    failed = sum(row["count"] for row in facts["verdicts"] if not row["good"])
    lost = f" The crosses at the top are {counted(failed, 'trial')} without a time." if failed else ""
    best = f" The fastest trial took {facts['best_time']:.4g} {facts['unit']['name']}." if facts["best_time"] else ""
    return f"The time of each correct trial, and the best so far.{best}{lost}{_thinned(facts)}"


def _over_time(facts: Facts) -> str:
    breaks = facts["breaks"]
    cut = f" {counted(breaks, 'break')} between runs {'is' if breaks == 1 else 'are'} left out." if breaks else ""
    return f"The same by the time at which each trial ended, in seconds since the study began.{cut}"


def _thinned(facts: Facts) -> str:
    if not facts["thinned"]:
        return ""
    return f" Of the {facts['ended']:,} trials, {SHOWN:,} are drawn as points, the fastest among them."
