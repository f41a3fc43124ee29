"""The figures of a report, and a study's charts elsewhere: in notebooks, in scripts, and as PNG and SVG files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from deepgen.report import charts, knob_charts
from deepgen.report.analysis import Report
from deepgen.report.facts import Facts, facts_of, important_knobs
from deepgen.report.trials import SHOWN
from deepgen.tuning import Study
from deepgen.tuning.study.text import KNOB, counted
from deepgen.vocabulary import BadInput, DeepgenError

SUFFIXES = (".svg", ".png")
_MOST_CLOUDS = 6


class Plots:
    """Charts of a study, as it was when the first chart was requested."""

    def __init__(self, study: Study) -> None:
        charts.check_libraries()
        self._study = study

    @cached_property
    def _facts(self) -> Facts:
        return facts_of(self._study)

    def history(self, *, over: str = "trials") -> Any:
        """The time of each trial and the best so far, over trials or over wall time (`over="time"`)."""
        places = {"trials": "trial", "time": "at"}
        if over not in places:
            raise BadInput(f"over is {over!r}", allowed="one of " + ", ".join(places))
        return self._whole(charts.history(self._facts, over=places[over]))

    def roofline(self) -> Any:
        """All trials below the device's roofline."""
        return self._whole(charts.roofline(self._facts))

    def importance(self) -> Any:
        """What each knob explains, alone and with others."""
        return self._whole(knob_charts.importance(self._facts))

    def knob(self, name: str) -> Any:
        """The time of each trial over the value of one knob."""
        return self._whole(knob_charts.knob(self._facts, self._field(name)))

    def heatmap(self, first: str | None = None, second: str | None = None) -> Any:
        """The best time for each pair of values of two knobs; without names, of those that interact most."""
        if (first is None) != (second is None):
            raise BadInput("only one knob was given", allowed="give two knobs, or none")
        pair = self._facts["pair"] if first is None else [self._field(first), self._field(str(second))]
        return self._whole(knob_charts.heatmap(self._facts, *pair) if pair else None)

    def parallel(self) -> Any:
        """The knobs of the best tenth of the trials, at least ten, a line each."""
        return self._whole(knob_charts.parallel(self._facts))

    def verdicts(self) -> Any:
        """The number of trials by verdict."""
        return self._whole(charts.verdicts(self._facts))

    def time(self) -> Any:
        """Where the wall time went."""
        return self._whole(charts.time(self._facts))

    def ratios(self) -> Any:
        """The winner over the default and over each baseline."""
        return self._whole(charts.ratios(self._facts["ratios"]))

    def _field(self, name: str) -> str:
        fields = {knob["name"]: str(knob["field"]) for knob in self._facts["knobs"]}
        if name not in fields:
            raise BadInput(f"knob {name!r} does not vary among the trials", allowed="one of " + ", ".join(fields))
        return fields[name]

    def _whole(self, chart: Any) -> Any:
        if chart is None:
            ended = self._facts["ended"]
            raise DeepgenError(f"{self._study.folder} has too little data for this chart: {counted(ended, 'trial')}")
        return charts.with_data(chart, self._facts)


def write_report(facts: Facts, folder: Path) -> list[Path]:
    """Write every figure of a report as PNG."""
    drawn = {figure.name: charts.with_data(figure.chart, facts) for figure in figures_of(facts)}
    return _write(drawn, folder, (".png",))


def write_analysis(report: Report, facts: Facts, folder: Path) -> list[Path]:
    """Write the charts of `deepgen analyze --plots`: correlations, knob importance, and the time over each finding."""
    fields = {event["name"]: event["field"] for event in facts["events"]}
    knobs = {KNOB + knob["name"]: knob["field"] for knob in facts["knobs"]}
    clouds = []
    for one in report.findings[:_MOST_CLOUDS]:
        if one.name in knobs:
            clouds.append(knob_charts.knob(facts, knobs[one.name]))
        elif one.name in fields:
            clouds.append(knob_charts.cloud(facts, fields[one.name]))
    small = [chart.properties(width=220, height=180) for chart in clouds]
    drawn = {
        "correlations": knob_charts.correlations(facts),
        "knobs": knob_charts.importance(facts),
        "findings": charts.alt.concat(*small, columns=3) if small else None,
    }
    return _write({name: charts.with_data(one, facts) for name, one in drawn.items() if one}, folder, SUFFIXES)


def _write(drawn: Mapping[str, Any], folder: Path, suffixes: Sequence[str]) -> list[Path]:
    """The files, in the order of the charts."""
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, chart in drawn.items():
            for suffix in suffixes:
                written.append(folder / f"{name}{suffix}")
                chart.save(str(written[-1]), **({"scale_factor": 2} if suffix == ".png" else {}))
    except OSError as error:
        what = f"plots cannot be written to {folder}: {error.strerror}"
        raise BadInput(what, allowed="a folder that can be written to") from error
    return written


_FIELDS = ("trial", "verdict", "time", "shown")


@dataclass(frozen=True)
class Figure:
    """A chart with its title and its caption, which is also its text alternative."""

    name: str
    title: str
    caption: str
    chart: Any
    fields: Sequence[str] = ()  # of the trials that the chart reads

    @property
    def described(self) -> str:
        return f"{self.title}. {self.caption}"


def figures_of(facts: Facts) -> list[Figure]:
    """All figures that are not empty."""
    figures = _of_several(facts) if facts["kind"] == "studies" else _of_study(facts)
    return [figure for figure in figures if figure.chart is not None]


def _of_several(facts: Facts) -> Iterator[Figure]:
    rows = facts["ratios"]
    caption = (
        f"Speedup of each study's winner over the default and over each baseline, in "
        f"{counted(len(rows), 'comparison')}. "
        "Points are medians of round-by-round ratios, lines their 99% confidence intervals; right of 1, ours is faster."
    )
    yield Figure("ratios", "Winners compared", caption, charts.ratios(rows))


def _of_study(facts: Facts) -> Iterator[Figure]:
    ratios = "; ".join(f"over {row['name']}: {row['words']}" for row in facts["ratios"])
    caption = f"Speedup of the winner: {ratios}. Lines are 99% confidence intervals."
    yield Figure("ratios", "The winner compared", caption, charts.ratios(facts["ratios"]))
    yield Figure("roofline", "Roofline", _roofline(facts), charts.roofline(facts), (*_FIELDS, "moved"))
    yield Figure("history", "Best so far, by trial", _history(facts), charts.history(facts), _FIELDS)
    timed = charts.history(facts, over="at")
    yield Figure("over-time", "Best so far, by wall time", _over_time(facts), timed, (*_FIELDS, "at"))
    explains = ", ".join(f"{one['knob']} {one['share']:.0%}" for one in important_knobs(facts))
    caption = (
        "Share of the variation in time that each knob explains, alone (first part) and together with others: "
        f"{explains}."
    )
    yield Figure("importance", "What the knobs explain", caption, knob_charts.importance(facts))
    explaining = [one["knob"] for one in facts["analysis"].get("knobs", [])]  # the one that explains most first
    order = {name: place for place, name in enumerate(explaining)}
    for one in sorted(facts["knobs"], key=lambda one: order.get(one["name"], len(order))):
        caption = f"The time of each correct trial over {one['name']}; short lines are medians."
        chart = knob_charts.knob(facts, one["field"]) if facts["best_time"] is not None else None
        fields = ("trial", "time", "shown", one["field"])
        yield Figure(f"knob-{one['field']}", one["name"], caption + _thinned(facts), chart, fields)
    if facts["pair"]:
        first, second = facts["pair"]
        names = {one["field"]: one["name"] for one in facts["knobs"]}
        title = f"{names[first]} and {names[second]}"
        caption = (
            f"The best time of the trials with each pair of values of {title}, relative to the fastest trial: "
            "1 is the fastest. Empty cells were not tried, or gave no correct kernel."
        )
        chart = knob_charts.heatmap(facts, first, second)
        yield Figure("heatmap", f"Two knobs together: {title}", caption, chart, ("time", first, second))
    caption = (
        f"One line for each of the best {counted(facts['best_count'], 'trial')}, through its value of every knob. "
        f"The dashed line is {'the winner' if facts['winner'] else 'the fastest'}."
    )
    fields = ("trial", "time", *(one["field"] for one in facts["knobs"]))
    yield Figure("parallel", "The knobs of the best trials", caption, knob_charts.parallel(facts), fields)
    verdicts = ", ".join(f"{one['count']} {one['verdict']}" for one in facts["verdicts"])
    yield Figure("verdicts", "Trials by verdict", f"Trials by verdict: {verdicts}.", charts.verdicts(facts))
    spent = ", ".join(f"{part} {seconds:.1f} s" for part, seconds in facts["time"]["parts"].items() if seconds > 0)
    caption = f"Wall time of all runs, {facts['time']['total']:.1f} s: {spent}."
    yield Figure("time", "Where the time went", caption, charts.time(facts))
    caption = (
        "Correlation of each metric with the logarithm of the time, from the top: Pearson's correlation, Spearman's, "
        "and Pearson's with the knobs held fixed. 1 and -1 are the strongest."
    )
    yield Figure("correlations", "Metrics correlated with time", caption, knob_charts.correlations(facts))
    for event in facts["events"]:
        chart = knob_charts.cloud(facts, event["field"])
        caption = f"The time of each correct trial over {event['words']}."
        fields = ("trial", "time", "shown", event["field"])
        yield Figure(f"event-{event['field']}", f"Time over {event['words']}", caption, chart, fields)


def _roofline(facts: Facts) -> str:
    roof = facts["roofline"] or {}
    unknown = [what for what, key in (("peak", "peak_gflops"), ("memory bandwidth", "bandwidth")) if not roof.get(key)]
    verb = "is" if len(unknown) == 1 else "are"
    missing = f" The {' and the '.join(unknown)} of this device {verb} unknown." if unknown else ""
    where = (
        "Bytes are as counted for each kernel."
        if roof.get("counted")
        else "All trials share one x position: bytes are the minimum that the operator must move."
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
    return f"The same against the time at which each trial finished, in seconds since the study started.{cut}"


def _thinned(facts: Facts) -> str:
    if not facts["thinned"]:
        return ""
    return f" Of the {facts['ended']:,} trials, {SHOWN:,} are drawn as points, including the fastest."
