"""A study's charts outside a report: in notebooks and scripts (`study.plot.history()`), and as PNG and SVG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from deepgen.report import charts, knob_charts
from deepgen.report.analysis import Report
from deepgen.report.facts import Facts, facts_of
from deepgen.report.figures import figures_of
from deepgen.tuning import Study
from deepgen.tuning.study.text import KNOB, counted
from deepgen.vocabulary import BadInput, DeepgenError

SUFFIXES = (".svg", ".png")
_MOST_CLOUDS = 6


class Plots:
    """Charts of a study as it stood when the first of them was asked for."""

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
        """All trials below what the device can do."""
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
            raise BadInput("one knob is given", allowed="two knobs, or none")
        pair = self._facts["pair"] if first is None else [self._field(first), self._field(str(second))]
        return self._whole(knob_charts.heatmap(self._facts, *pair) if pair else None)

    def parallel(self) -> Any:
        """The knobs of the best tenth of the trials, a line each."""
        return self._whole(knob_charts.parallel(self._facts))

    def verdicts(self) -> Any:
        """How many trials ended how."""
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
            raise BadInput(f"no knob {name!r} differs among the trials", allowed="one of " + ", ".join(fields))
        return fields[name]

    def _whole(self, chart: Any) -> Any:
        if chart is None:
            ended = self._facts["ended"]
            raise DeepgenError(f"{self._study.folder} has too little to draw this chart of: {counted(ended, 'trial')}")
        return charts.with_data(chart, self._facts)


def write_report(facts: Facts, folder: Path) -> list[Path]:
    """Every figure of a report as PNG."""
    drawn = {figure.name: charts.with_data(figure.chart, facts) for figure in figures_of(facts)}
    return _write(drawn, folder, (".png",))


def write_analysis(report: Report, facts: Facts, folder: Path) -> list[Path]:
    """What `deepgen analyze --plots` draws: correlations, what knobs explain, and the time over each finding."""
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
