"""Charts of the facts of a study, drawn by altair.

The trials are one data set, named `trials`, that all charts of a page share. Colours are those of Okabe and Ito, which
colour-blind people can distinguish, and every colour is backed by a shape or a word. Everything else takes the colour
of the page's text, so that it is visible on light and dark pages.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

from deepgen.report import trials as columns
from deepgen.report.facts import Facts
from deepgen.vocabulary import Missing
from deepgen.vocabulary.errors import install_extra

TRIALS = "trials"
BLUE, GREEN, ORANGE, RED, PURPLE = "#0072B2", "#009E73", "#E69F00", "#D55E00", "#CC79A7"
WIDTH, HEIGHT = 640, 300
_LIBRARIES = {"altair": "altair", "vl_convert": "vl-convert-python", "jinja2": "jinja2"}
_WIDE_RATIO = 10  # above this ratio, an axis is logarithmic
_CORRECT, _FAILED, _BEST, _WINNER = "correct trial", "failed", "best so far", "winner"
_LOOKS = {
    _CORRECT: (BLUE, "circle"),
    _BEST: (GREEN, "stroke"),
    _FAILED: (RED, "cross"),
    _WINNER: (ORANGE, "diamond"),
}
TIMED = "isValid(datum.time)"
_LOST = "!isValid(datum.time) && datum.verdict !== 'not_run'"
_SHOWN = "datum.shown === 1"  # if there are too many trials, a sample is drawn


class _Altair:
    """altair's names; the module is imported when the first chart is drawn, since that takes a while."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("altair"), name)


alt: Any = _Altair()


def check_libraries() -> None:
    """Raises Missing if charts cannot be drawn here."""
    for module, package in _LIBRARIES.items():
        if importlib.util.find_spec(module) is None:
            raise Missing(package, blocks="drawing plots", remedy=install_extra("view"))


def with_data(chart: Any, facts: Facts) -> Any:
    """The chart with the trials embedded, to stand alone; a report of several studies has no trials."""
    copied = chart.copy()
    copied.datasets = {TRIALS: columns.unpacked(facts.get("trials", {}))}
    return copied.configure_axisY(labelLimit=360)


def history(facts: Facts, *, over: str = "trial") -> Any:
    """The time of each trial and the best so far; `over` is "trial", or "at" for seconds of wall time."""
    if facts["best_time"] is None:
        return None
    title = "trial" if over == "trial" else "wall time, s"
    x = alt.X(
        f"{over}:Q",
        title=title,
        scale=alt.Scale(zero=False, nice=False),
        axis=alt.Axis(format=",d", tickCount=10, tickMinStep=1) if over == "trial" else alt.Axis(tickCount=10),
    )
    y = alt.Y("time:Q", title=time_title(facts), scale=time_scale(facts))
    lost = facts["state"] == "running" or any(not row["good"] for row in facts["verdicts"])
    kinds = [_CORRECT, _BEST, *([_FAILED] if lost else []), *([_WINNER] if facts["winner"] else [])]
    colour, shape = _looks(kinds)
    tooltip = [alt.Tooltip("trial:Q"), alt.Tooltip("verdict:N"), alt.Tooltip("time:Q", title=time_title(facts))]
    tooltip.append(alt.Tooltip("timed:N", title="timed in"))
    base = alt.Chart(alt.NamedData(name=TRIALS))

    def layer(kind: str, keep: str) -> Any:
        return base.transform_filter(keep).transform_calculate(kind=json.dumps(kind))

    look = {"x": x, "color": colour, "shape": shape, "tooltip": tooltip}
    best = (
        layer(_BEST, TIMED)
        .transform_window(best="min(time)", sort=[{"field": over}, {"field": "trial"}], frame=[None, 0])
        .transform_joinaggregate(last=f"max({over})")
        # A step line needs only its corners.
        .transform_filter(f"datum.time === datum.best || datum.{over} === datum.last")
        .mark_line(interpolate="step-after", strokeWidth=2)
        .encode(x=x, y=alt.Y("best:Q", title=time_title(facts)), color=colour)
    )
    layers = [
        layer(_CORRECT, f"{_SHOWN} && {TIMED}").mark_point(filled=True, size=22, opacity=0.65).encode(y=y, **look),
        best,
    ]
    if lost:
        failed = layer(_FAILED, f"{_SHOWN} && {_LOST}").mark_point(filled=True, size=40, opacity=0.8)
        layers.append(failed.encode(y=alt.value(4), **look))
    if facts["winner"]:
        won = f"datum.trial === {int(facts['winner']['trial'])}"
        layers.append(
            layer(_WINNER, won).mark_point(filled=True, size=140, opacity=1, stroke="black").encode(y=y, **look)
        )
    name = "Best so far" if over == "trial" else "Best so far, over wall time"
    return sized(alt.layer(*layers, title=name))


def roofline(facts: Facts) -> Any:
    """All trials below the limits of the device: peak arithmetic and memory bandwidth."""
    roof = facts["roofline"]
    if roof is None or facts["best_time"] is None:
        return None
    least = roof["flops"] / roof["bytes"]
    peak, bandwidth = roof["peak_gflops"], roof["bandwidth"]
    ridge = peak / bandwidth if peak and bandwidth else least
    low, high = min(least, ridge) / 8, max(least, ridge) * 8
    points = sorted({low, ridge, high})
    lines = [
        {"x": x, "y": min(y for y in (peak, bandwidth and bandwidth * x) if y)} for x in points if peak or bandwidth
    ]
    labels = []
    if peak:
        labels.append({"x": high, "y": peak, "text": f"peak {_rate(peak)}", "align": "right", "down": -8})
    if bandwidth:
        middle = sqrt(low * ridge)
        labels.append(
            {"x": middle, "y": bandwidth * middle, "text": f"memory {bandwidth:.4g} GB/s", "align": "left", "down": 10}
        )
    x = alt.X("x:Q", title="FLOP per byte moved", scale=alt.Scale(type="log", domain=[low, high], nice=False))
    y = alt.Y("y:Q", title="GFLOP/s", scale=alt.Scale(type="log"))
    rate = roof["flops"] * facts["unit"]["scale"] / 1e9
    trials = (
        alt.Chart(alt.NamedData(name=TRIALS))
        .transform_filter(TIMED)
        .transform_calculate(
            x=f"isValid(datum.moved) ? {roof['flops']!r} / datum.moved : {least!r}", y=f"{rate!r} / datum.time"
        )
    )
    kinds = [_CORRECT, _WINNER] if facts["winner"] else [_CORRECT]
    colour, shape = _looks(kinds, {_CORRECT: "stroke"} if not roof["counted"] else {})
    tooltip = [alt.Tooltip("trial:Q"), alt.Tooltip("y:Q", title="GFLOP/s", format=".4g")]
    layers = [
        alt.Chart(alt.InlineData(values=lines)).mark_line(strokeWidth=2).encode(x=x, y=y),
        *(
            alt.Chart(alt.InlineData(values=[label]))
            .mark_text(align=label["align"], dx=-4 if label["align"] == "right" else 10, dy=label["down"])
            .encode(x=x, y=y, text="text:N")
            for label in labels
        ),
        trials.transform_filter(_SHOWN)
        .transform_calculate(kind=json.dumps(_CORRECT))
        .mark_point(size=60, strokeWidth=1.5, opacity=0.5)
        .encode(x=x, y=y, color=colour, shape=shape, tooltip=tooltip),
    ]
    if facts["winner"]:
        layers.append(
            trials.transform_filter(f"datum.trial === {int(facts['winner']['trial'])}")
            .transform_calculate(kind=json.dumps(_WINNER))
            .mark_point(filled=True, size=160, opacity=1, stroke="black")
            .encode(x=x, y=y, color=colour, shape=shape, tooltip=tooltip)
        )
    return sized(alt.layer(*layers, title="Roofline"))


def verdicts(facts: Facts) -> Any:
    """The number of trials by verdict."""
    bars = [{"verdict": one["verdict"], "count": one["count"], "good": one["good"]} for one in facts["verdicts"]]
    if not bars:
        return None
    colour = alt.condition("datum.good", alt.value(BLUE), alt.value(RED))
    x = alt.X("count:Q", title="trials", axis=alt.Axis(tickCount=8, tickMinStep=1))
    return _bars(bars, x, "verdict:N", colour, "count:Q", "Trials by verdict")


def time(facts: Facts) -> Any:
    """Where the wall time went."""
    total = facts["time"]["total"]
    bars = [
        {"part": part, "seconds": seconds, "text": f"{seconds:.1f} s, {seconds / total:.0%}"}
        for part, seconds in facts["time"]["parts"].items()
        if seconds > 0
    ]
    if not bars or total <= 0:
        return None
    room = alt.Scale(domainMax=1.4 * max(bar["seconds"] for bar in bars))  # for the texts, on a narrow page too
    x = alt.X("seconds:Q", title="seconds", scale=room, axis=alt.Axis(tickCount=8))
    return _bars(bars, x, "part:N", alt.value(BLUE), "text:N", "Where the time went")


def _bars(rows: Sequence[Mapping[str, Any]], x: Any, y: str, colour: Any, text: str, title: str) -> Any:
    """A bar for each row, with a text at its end."""
    base = alt.Chart(alt.InlineData(values=rows)).encode(x=x, y=alt.Y(y, title=None, sort=None))
    layers = base.mark_bar().encode(color=colour), base.mark_text(align="left", dx=4).encode(text=text)
    return sized(alt.layer(*layers, title=title), height=rows_height(len(rows)))


def ratios(rows: Sequence[Mapping[str, Any]], title: str = "Speedup") -> Any:
    """A point with its interval for each row of `name`, `ratio`, `low`, `high`; rows of a `group` share colour and
    shape.
    """
    if not rows:
        return None
    data = [{"group": "", **row} for row in rows]
    groups = list(dict.fromkeys(row["group"] for row in data))
    names = list(dict.fromkeys(row["name"] for row in data))
    ends = [value for row in rows for value in (row["low"], row["high"], row["ratio"]) if value]
    wide = max(ends) / min(ends) > _WIDE_RATIO
    scale = alt.Scale(type="log", nice=False, padding=8) if wide else alt.Scale(zero=False, padding=8)
    axis = alt.Axis(tickCount=10, labelOverlap=True)
    x = alt.X("ratio:Q", title="speedup (99% confidence interval)", scale=scale, axis=axis)
    y = alt.Y("name:N", title=None, sort=names)
    look: dict[str, Any] = {"color": alt.value(BLUE)}
    if len(groups) > 1:
        shapes = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down"]
        colours = [BLUE, ORANGE, GREEN, RED, PURPLE, "#56B4E9"]
        legend = alt.Legend(orient="top", title=None)

        def scales(values: Sequence[str]) -> Any:
            return alt.Scale(domain=groups, range=[values[i % len(values)] for i in range(len(groups))])

        look = {
            "color": alt.Color("group:N", scale=scales(colours), legend=legend),
            "shape": alt.Shape("group:N", scale=scales(shapes)),
            "yOffset": alt.YOffset("group:N", sort=groups),
        }
    lines = {key: value for key, value in look.items() if key != "shape"}
    base = alt.Chart(alt.InlineData(values=data))
    tooltip = ["name:N", "group:N", *(alt.Tooltip(f"{end}:Q", format=".3f") for end in ("ratio", "low", "high"))]
    layers = [
        alt.Chart(alt.InlineData(values=[{"one": 1.0}])).mark_rule(strokeDash=[4, 4]).encode(x=alt.X("one:Q")),
        base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", scale=scale), x2="high:Q", y=y, **lines),
        base.mark_point(filled=True, size=70, opacity=1).encode(x=x, y=y, tooltip=tooltip, **look),
    ]
    return sized(alt.layer(*layers, title=title), height=rows_height(len(names) * max(1, len(groups) * 0.6)))


# What charts share


def sized(chart: Any, height: float = HEIGHT) -> Any:
    return chart.properties(width=WIDTH, height=height)


def rows_height(count: float) -> float:
    return max(40.0, 26.0 * count)


def _looks(kinds: Sequence[str], shapes: Mapping[str, str] | None = None) -> tuple[Any, Any]:
    """The colour and the shape of kinds of points, with one legend for both."""
    legend = alt.Legend(orient="top", title=None, symbolOpacity=1)
    forms = [(shapes or {}).get(kind, _LOOKS[kind][1]) for kind in kinds]
    return (
        alt.Color("kind:N", scale=alt.Scale(domain=kinds, range=[_LOOKS[k][0] for k in kinds]), legend=legend),
        alt.Shape("kind:N", scale=alt.Scale(domain=kinds, range=forms), legend=legend),
    )


def time_title(facts: Facts) -> str:
    return f"time, {facts['unit']['name']}"


def time_scale(facts: Facts) -> Any:
    return scale_for([time for time in (facts["best_time"], facts["slowest_time"]) if time is not None])


def scale_for(values: Sequence[float]) -> Any:
    wide = bool(values) and min(values) > 0 and max(values) / min(values) > _WIDE_RATIO
    return alt.Scale(type="log", nice=False, padding=6) if wide else alt.Scale(zero=False, padding=6)


def _rate(gflops: float) -> str:
    return f"{gflops / 1e3:.4g} TFLOP/s" if gflops >= 1e4 else f"{gflops:.4g} GFLOP/s"
