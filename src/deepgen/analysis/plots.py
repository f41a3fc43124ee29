"""Plots of a report as SVG and PNG files: correlations, what knobs explain, and the time over each finding."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from deepgen.analysis.groups import words_for
from deepgen.analysis.numbers import Row, usable
from deepgen.analysis.report import Report
from deepgen.vocabulary import BadInput, Missing
from deepgen.vocabulary.errors import install_extra

SUFFIXES = (".svg", ".png")
_MOST_BARS, _MOST_POINTS, _MOST_CLOUDS = 20, 2000, 6
_LIBRARIES = {"altair": "altair", "vl_convert": "vl-convert-python"}
_WIDE_RATIO = 10  # above it, an axis is logarithmic


def check_libraries() -> None:
    """Raises Missing unless plots can be drawn here."""
    for module, package in _LIBRARIES.items():
        if importlib.util.find_spec(module) is None:
            raise Missing(package, blocks="plots are drawn with it", remedy=install_extra("view"))


def draw(report: Report, rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write the plots that there is something to show in, and give their files."""
    check_libraries()
    charts = {"correlations": _correlations(report), "knobs": _knobs(report), "findings": _clouds(report, rows)}
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, chart in charts.items():
            for suffix in SUFFIXES if chart is not None else ():
                written.append(folder / f"{name}{suffix}")
                chart.save(str(written[-1]), **({"scale_factor": 2} if suffix == ".png" else {}))
    except OSError as error:
        what = f"plots cannot be written to {folder}: {error.strerror}"
        raise BadInput(what, allowed="a folder that can be written to") from error
    return written


def _correlations(report: Report) -> Any:
    """A bar for each finding."""
    import altair as alt

    found = report.findings[:_MOST_BARS]
    kinds = {"Pearson": "pearson", "Spearman": "spearman", "knobs held fixed": "partial"}
    bars = [
        {"number": words_for(one.name), "kind": kind, "r": estimate.r, "group": one.group}
        for one in found
        for kind, field in kinds.items()
        if (estimate := getattr(one, field)) is not None
    ]
    if not bars:
        return None
    return (
        alt.Chart(alt.InlineData(values=bars), title="Correlation with log time")
        .mark_bar()
        .encode(
            x=alt.X("r:Q", title="r", scale=alt.Scale(domain=[-1, 1])),
            y=alt.Y("number:N", title=None, sort=[words_for(one.name) for one in found]),
            yOffset=alt.YOffset("kind:N", sort=[*kinds]),
            color=alt.Color("kind:N", title=None, sort=[*kinds]),
        )
    )


def _knobs(report: Report) -> Any:
    """What each knob explains, alone and with others."""
    import altair as alt

    found = report.important[:_MOST_BARS]
    bars = [
        {"knob": one.knob, "kind": kind, "share": share}
        for one in found
        for kind, share in (("alone", min(one.alone, one.share)), ("with others", max(one.share - one.alone, 0.0)))
    ]
    if not bars:
        return None
    return (
        alt.Chart(alt.InlineData(values=bars), title="Share of the variance of log time")
        .mark_bar()
        .encode(
            x=alt.X("share:Q", title=None, axis=alt.Axis(format="%")),
            y=alt.Y("knob:N", title=None, sort=[one.knob for one in found]),
            color=alt.Color("kind:N", title=None),
        )
    )


def _clouds(report: Report, rows: Sequence[Row]) -> Any:
    """A point for each trial: its time over a number that was found."""
    import altair as alt

    timed = usable(rows)
    unit, scale = ("ms", 1e3) if median(row["seconds"] for row in timed) >= 1e-3 else ("us", 1e6)
    charts = []
    for one in report.findings[:_MOST_CLOUDS]:
        known = [row for row in timed if row.get(one.name) is not None]
        some = known[:: max(1, -(-len(known) // _MOST_POINTS))]
        points = [{"x": float(row[one.name]), "time": scale * row["seconds"]} for row in some]
        charts.append(
            alt.Chart(alt.InlineData(values=points), width=220, height=180)
            .mark_point(size=12)
            .encode(
                x=alt.X("x:Q", title=words_for(one.name), scale=_scale([point["x"] for point in points])),
                y=alt.Y("time:Q", title=f"time, {unit}", scale=_scale([point["time"] for point in points])),
            )
        )
    return alt.concat(*charts, columns=3) if charts else None


def _scale(values: Sequence[float]) -> Any:
    import altair as alt

    wide = min(values) > 0 and max(values) / min(values) > _WIDE_RATIO
    return alt.Scale(type="log", nice=False) if wide else alt.Scale(zero=False)
