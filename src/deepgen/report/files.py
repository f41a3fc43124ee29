"""Charts as files: PNG and SVG, for papers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deepgen.report import charts, knob_charts
from deepgen.report.analysis import Report
from deepgen.report.facts import Facts
from deepgen.report.figures import figures_of
from deepgen.tuning.study.text import KNOB
from deepgen.vocabulary import BadInput

SUFFIXES = (".svg", ".png")
_MOST_CLOUDS = 6


def write_report(facts: Facts, folder: Path) -> list[Path]:
    """Every figure of a report as PNG."""
    found = {figure.name: charts.with_data(figure.chart, facts) for figure in figures_of(facts)}
    return _write(found, folder, (".png",))


def write_analysis(report: Report, facts: Facts, folder: Path) -> list[Path]:
    """What `deepgen analyze --plots` draws: correlations, what knobs explain, and the time over each finding."""
    import altair as alt

    fields = {event["name"]: event["field"] for event in facts["events"]}
    knobs = {KNOB + knob["name"]: knob["field"] for knob in facts["knobs"]}
    clouds = []
    for one in report.findings[:_MOST_CLOUDS]:
        if one.name in knobs:
            clouds.append(knob_charts.knob(facts, knobs[one.name]))
        elif one.name in fields:
            clouds.append(knob_charts.cloud(facts, fields[one.name]))
    small = [chart.properties(width=220, height=180) for chart in clouds]
    found = {
        "correlations": knob_charts.correlations(facts),
        "knobs": knob_charts.importance(facts),
        "findings": alt.concat(*small, columns=3) if small else None,
    }
    return _write({name: charts.with_data(one, facts) for name, one in found.items() if one}, folder, SUFFIXES)


def _write(found: Mapping[str, Any], folder: Path, suffixes: Sequence[str]) -> list[Path]:
    """The files, in the order of the charts."""
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, chart in found.items():
            for suffix in suffixes:
                written.append(folder / f"{name}{suffix}")
                chart.save(str(written[-1]), **({"scale_factor": 2} if suffix == ".png" else {}))
    except OSError as error:
        what = f"plots cannot be written to {folder}: {error.strerror}"
        raise BadInput(what, allowed="a folder that can be written to") from error
    return written
