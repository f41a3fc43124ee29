"""Charts of the facts of a study, drawn by altair.

The trials are one data set, named `trials`, that all charts of a page share. Colours are those of Okabe and Ito, which
colour-blind people can tell apart, and whatever a colour says is said by a shape or a word, too. What has no colour
here takes that of the page's text, so that it is seen on a light and on a dark page.
"""

from __future__ import annotations

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
_WIDE_RATIO = 10  # above it, an axis is logarithmic
_MOST_BARS, _MOST_CELLS = 20, 150
_WORDY = 50  # letters of all labels of an axis, above which they are written aslant
_CORRECT, _FAILED, _BEST, _WINNER = "correct trial", "failed", "best so far", "winner"
_LOOKS = {
    _CORRECT: (BLUE, "circle"),
    _BEST: (GREEN, "stroke"),
    _FAILED: (RED, "cross"),
    _WINNER: (ORANGE, "diamond"),
}
_TIMED = "isValid(datum.time)"
_LOST = "!isValid(datum.time) && datum.verdict !== 'not_run'"


def check_libraries() -> None:
    """Raises Missing unless charts can be drawn here."""
    for module, package in _LIBRARIES.items():
        if importlib.util.find_spec(module) is None:
            raise Missing(package, blocks="plots are drawn with it", remedy=install_extra("view"))


def with_data(chart: Any, facts: Facts) -> Any:
    """The chart with the trials in it, to stand alone; of several studies there are none."""
    copied = chart.copy()
    copied.datasets = {TRIALS: columns.unpacked(facts.get("trials", {}))}
    return copied.configure_axisY(labelLimit=360)


def history(facts: Facts, *, over: str = "trial") -> Any:
    """The time of each trial and the best so far; `over` is trial, or at: seconds of wall time."""
    import altair as alt

    if facts["best_time"] is None:
        return None
    title = "trial" if over == "trial" else "wall time, s"
    x = alt.X(
        f"{over}:Q",
        title=title,
        scale=alt.Scale(zero=False, nice=False),
        axis=alt.Axis(format=",d", tickCount=10, tickMinStep=1),
    )
    y = alt.Y("time:Q", title=_time_title(facts), scale=_time_scale(facts))
    lost = facts["state"] == "running" or any(not row["good"] for row in facts["verdicts"])
    kinds = [_CORRECT, _BEST, *([_FAILED] if lost else []), *([_WINNER] if facts["winner"] else [])]
    colour, shape = _looks(kinds)
    tooltip = [alt.Tooltip("trial:Q"), alt.Tooltip("verdict:N"), alt.Tooltip("time:Q", title=_time_title(facts))]
    base = alt.Chart(alt.NamedData(name=TRIALS))

    def layer(kind: str, keep: str) -> Any:
        return base.transform_filter(keep).transform_calculate(kind=json.dumps(kind))

    look = {"x": x, "color": colour, "shape": shape, "tooltip": tooltip}
    best = (
        layer(_BEST, _TIMED)
        .transform_window(best="min(time)", sort=[{"field": over}, {"field": "trial"}], frame=[None, 0])
        .mark_line(interpolate="step-after", strokeWidth=2)
        .encode(x=x, y=alt.Y("best:Q", title=_time_title(facts)), color=colour)
    )
    layers = [
        layer(_CORRECT, _TIMED).mark_point(filled=True, size=22, opacity=0.65).encode(y=y, **look),
        best,
    ]
    if lost:
        failed = layer(_FAILED, _LOST).mark_point(filled=True, size=40, opacity=0.8)
        layers.append(failed.encode(y=alt.value(4), **look))
    if facts["winner"]:
        won = f"datum.trial === {int(facts['winner']['trial'])}"
        layers.append(layer(_WINNER, won).mark_point(filled=True, size=140, opacity=1, stroke="black").encode(y=y, **look))
    name = "Best so far" if over == "trial" else "Best so far, over wall time"
    return _sized(alt.layer(*layers, title=name))


def roofline(facts: Facts) -> Any:
    """All trials below what the device can do: its arithmetic, and its memory."""
    import altair as alt

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
        .transform_filter(_TIMED)
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
        trials.transform_calculate(kind=json.dumps(_CORRECT))
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
    return _sized(alt.layer(*layers, title="Roofline"))


def importance(facts: Facts) -> Any:
    """What each knob explains, alone and with others."""
    import altair as alt

    analysis = facts["analysis"]
    names = analysis.get("important", [])[:_MOST_BARS]
    found = [one for one in analysis.get("knobs", []) if one["knob"] in names]
    bars = [
        {"knob": one["knob"], "kind": kind, "share": share}
        for one in found
        for kind, share in (
            ("alone", min(one["alone"], one["share"])),
            ("with others", max(one["share"] - one["alone"], 0.0)),
        )
    ]
    if not bars:
        return None
    return _sized(
        alt.Chart(alt.InlineData(values=bars), title="Share of the variance of log time")
        .mark_bar()
        .encode(
            x=alt.X("share:Q", title="share of the variance of log time", axis=alt.Axis(format="%")),
            y=alt.Y("knob:N", title=None, sort=[one["knob"] for one in found]),
            color=_colours(["alone", "with others"], [BLUE, ORANGE]),
            tooltip=["knob:N", "kind:N", alt.Tooltip("share:Q", format=".1%")],
        ),
        height=_rows(len(found)),
    )


def knob(facts: Facts, field: str) -> Any:
    """The time of each trial over the value of one knob, and the median at each value."""
    import altair as alt

    one = next(knob for knob in facts["knobs"] if knob["field"] == field)
    x = alt.X(f"{field}:O", title=one["name"], sort=one["levels"], axis=_flat(one))
    base = alt.Chart(alt.NamedData(name=TRIALS)).transform_filter(f"{_TIMED} && isValid(datum.{field})")
    scale = _time_scale(facts)
    tooltip = [alt.Tooltip("trial:Q"), alt.Tooltip("time:Q", title=_time_title(facts))]
    points = (
        base.transform_filter("datum.shown === 1")
        # Spread evenly over the width of a value, in an order that has nothing to do with the trial's number.
        .transform_calculate(spread="(datum.trial * 0.618034) % 1")
        .mark_point(filled=True, size=14, opacity=0.6, color=BLUE)
        .encode(
            x=x,
            xOffset=alt.XOffset("spread:Q", scale=alt.Scale(domain=[-0.3, 1.3])),
            y=alt.Y("time:Q", title=_time_title(facts), scale=scale),
            tooltip=tooltip,
        )
    )
    middle = (
        base.transform_aggregate(middle="median(time)", groupby=[field])
        .transform_calculate(spread="0.5")
        .mark_point(shape="stroke", size=min(24.0, 240.0 / len(one["levels"])) ** 2, strokeWidth=3, opacity=1)
        .encode(x=x, xOffset=alt.XOffset("spread:Q"), y=alt.Y("middle:Q", title=_time_title(facts)))
    )
    return _sized(alt.layer(points, middle, title=f"Time over {one['name']}"), height=220)


def heatmap(facts: Facts, first: str, second: str) -> Any:
    """The best time for each pair of values of two knobs, in times of the fastest trial."""
    import altair as alt

    across, down = (next(knob for knob in facts["knobs"] if knob["field"] == field) for field in (first, second))
    if len(down["levels"]) > len(across["levels"]):
        across, down = down, across
    cells: dict[tuple[Any, Any], float] = {}
    for row in columns.unpacked(facts["trials"]):
        key = row[across["field"]], row[down["field"]]
        if row["time"] is not None and None not in key:
            cells[key] = min(row["time"], cells.get(key, row["time"]))
    if not cells:
        return None
    slowest = max(cells.values()) / facts["best_time"]
    base = (
        alt.Chart(alt.NamedData(name=TRIALS))
        .transform_filter(f"{_TIMED} && isValid(datum.{across['field']}) && isValid(datum.{down['field']})")
        .transform_aggregate(best="min(time)", count="count()", groupby=[across["field"], down["field"]])
        .transform_calculate(slower=f"datum.best / {facts['best_time']!r}")
        .encode(
            x=alt.X(f"{across['field']}:O", title=across["name"], sort=across["levels"], axis=_flat(across)),
            y=alt.Y(f"{down['field']}:O", title=down["name"], sort=[*reversed(down["levels"])]),
        )
    )
    scale = alt.Scale(scheme="viridis", reverse=True, type="log", domain=[1, max(slowest, 1.01)])
    legend = alt.Legend(orient="top", format=".3~g", values=_steps(slowest), gradientLength=200)
    layers = [
        base.mark_rect().encode(
            color=alt.Color("slower:Q", title="times the fastest", scale=scale, legend=legend),
            tooltip=[
                alt.Tooltip("slower:Q", title="times the fastest", format=".3f"),
                alt.Tooltip("best:Q", title=_time_title(facts)),
                alt.Tooltip("count:Q", title="trials"),
            ],
        )
    ]
    if len(across["levels"]) * len(down["levels"]) <= _MOST_CELLS:
        dark = alt.condition(f"datum.slower < {sqrt(slowest)!r}", alt.value("black"), alt.value("white"))
        layers.append(base.mark_text(fontSize=10).encode(text=alt.Text("slower:Q", format=".3~g"), color=dark))
    name = f"{across['name']} and {down['name']}"
    return _sized(alt.layer(*layers, title=name), height=max(120, 28 * len(down["levels"])))


def parallel(facts: Facts) -> Any:
    """The knobs of the best trials: a line each, from knob to knob."""
    import altair as alt

    knobs = facts["knobs"]
    if len(knobs) < 2 or facts["best_cutoff"] is None:
        return None
    names = {one["field"]: one["name"] for one in knobs}
    levels = {one["field"]: one["levels"] for one in knobs}
    labels = [
        {"knob": one["name"], "text": text, "y": _place(i, len(one["levels"]))}
        for one in knobs
        for i, text in _some(one["levels"])
    ]
    order = [one["name"] for one in knobs]
    x = alt.X("knob:N", title=None, sort=order, scale=alt.Scale(type="point"), axis=alt.Axis(labelAngle=-30, grid=True))
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[-0.05, 1.05]))
    place = (
        "length(knob_levels[datum.field]) < 2 ? 0.5 :"
        " indexof(knob_levels[datum.field], datum.value) / (length(knob_levels[datum.field]) - 1)"
    )
    lines = (
        alt.Chart(alt.NamedData(name=TRIALS))
        .transform_filter(f"{_TIMED} && datum.time <= {facts['best_cutoff']!r}")
        .transform_fold(list(names), as_=["field", "value"])
        .transform_filter("isValid(datum.value)")
        .transform_calculate(knob="knob_names[datum.field]", y=place)
    )
    fastest = facts["best_time"]
    colour = alt.Color(
        "time:Q",
        title=_time_title(facts),
        scale=alt.Scale(scheme="viridis", domain=[fastest, max(facts["best_cutoff"], fastest * 1.0001)]),
        legend=alt.Legend(orient="top", format=".4~g", gradientLength=200, tickCount=3),
    )
    layers = [
        lines.mark_line(opacity=0.5, strokeWidth=1).encode(x=x, y=y, detail="trial:N", color=colour),
        lines.transform_filter(f"datum.time <= {fastest * (1 + 1e-5)!r}")
        .mark_line(strokeWidth=3, strokeDash=[6, 3], color=RED)
        .encode(x=x, y=y, detail="trial:N"),
        alt.Chart(alt.InlineData(values=labels))
        .mark_text(align="left", dx=4, fontSize=10)
        .encode(x=x, y=y, text="text:N"),
    ]
    chart = alt.layer(*layers, title=f"The best {facts['best_count']} trials").add_params(
        alt.param(name="knob_names", value=names), alt.param(name="knob_levels", value=levels)
    )
    return _sized(chart)


def verdicts(facts: Facts) -> Any:
    """How many trials ended how."""
    import altair as alt

    bars = [{"verdict": one["verdict"], "count": one["count"], "good": one["good"]} for one in facts["verdicts"]]
    if not bars:
        return None
    base = alt.Chart(alt.InlineData(values=bars)).encode(
        x=alt.X("count:Q", title="trials", axis=alt.Axis(tickCount=8, tickMinStep=1)),
        y=alt.Y("verdict:N", title=None, sort=None),
    )
    colour = alt.condition("datum.good", alt.value(BLUE), alt.value(RED))
    count = base.mark_text(align="left", dx=4).encode(text="count:Q")
    layers = base.mark_bar().encode(color=colour), count
    return _sized(alt.layer(*layers, title="How trials ended"), height=_rows(len(bars)))


def time(facts: Facts) -> Any:
    """Where the wall time went."""
    import altair as alt

    total = facts["time"]["total"]
    bars = [
        {"part": part, "seconds": seconds, "text": f"{seconds:.1f} s, {seconds / total:.0%}"}
        for part, seconds in facts["time"]["parts"].items()
        if seconds > 0
    ]
    if not bars or total <= 0:
        return None
    base = alt.Chart(alt.InlineData(values=bars)).encode(
        x=alt.X("seconds:Q", title="seconds", axis=alt.Axis(tickCount=8)), y=alt.Y("part:N", title=None, sort=None)
    )
    layers = base.mark_bar(color=BLUE), base.mark_text(align="left", dx=4).encode(text="text:N")
    return _sized(alt.layer(*layers, title="Where the time went"), height=_rows(len(bars)))


def ratios(rows: Sequence[Mapping[str, Any]], title: str = "Times as fast") -> Any:
    """A point with its interval for each row of `name`, `ratio`, `low`, `high`; `group` sets rows of a kind apart."""
    import altair as alt

    if not rows:
        return None
    data = [{"group": "", **row} for row in rows]
    groups = list(dict.fromkeys(row["group"] for row in data))
    names = list(dict.fromkeys(row["name"] for row in data))
    ends = [value for row in rows for value in (row["low"], row["high"], row["ratio"]) if value]
    wide = max(ends) / min(ends) > _WIDE_RATIO
    scale = alt.Scale(type="log", nice=False, padding=8) if wide else alt.Scale(zero=False, padding=8)
    x = alt.X("ratio:Q", title="times as fast (99% interval)", scale=scale)
    y = alt.Y("name:N", title=None, sort=names)
    look: dict[str, Any] = {"color": alt.value(BLUE)}
    if len(groups) > 1:
        shapes = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down"]
        colours = [BLUE, ORANGE, GREEN, RED, PURPLE, "#56B4E9"]
        legend = alt.Legend(orient="top", title=None)
        used = {"domain": groups, "range": [colours[i % 6] for i in range(len(groups))]}
        look = {
            "color": alt.Color("group:N", scale=alt.Scale(**used), legend=legend),
            "shape": alt.Shape(
                "group:N", scale=alt.Scale(domain=groups, range=[shapes[i % 6] for i in range(len(groups))])
            ),
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
    return _sized(alt.layer(*layers, title=title), height=_rows(len(names) * max(1, len(groups) * 0.6)))


def correlations(facts: Facts) -> Any:
    """A bar for each number that goes along with the time."""
    import altair as alt

    found = facts["analysis"].get("relations", [])[:_MOST_BARS]
    kinds = {"Pearson": "pearson", "Spearman": "spearman", "knobs held fixed": "partial"}
    bars = [
        {"number": one["words"], "kind": kind, "r": one[field]["r"]}
        for one in found
        for kind, field in kinds.items()
        if one[field] is not None
    ]
    if not bars:
        return None
    return _sized(
        alt.Chart(alt.InlineData(values=bars), title="Correlation with log time")
        .mark_bar()
        .encode(
            x=alt.X("r:Q", title="r", scale=alt.Scale(domain=[-1, 1])),
            y=alt.Y("number:N", title=None, sort=[one["words"] for one in found]),
            yOffset=alt.YOffset("kind:N", sort=[*kinds]),
            color=_colours([*kinds], [BLUE, ORANGE, GREEN]),
            tooltip=["number:N", "kind:N", alt.Tooltip("r:Q", format=".2f")],
        ),
        height=_rows(2 * len(found)),
    )


def cloud(facts: Facts, field: str) -> Any:
    """The time of each trial over a number that goes along with it."""
    import altair as alt

    event = next(event for event in facts["events"] if event["field"] == field)
    values = [row[field] for row in columns.unpacked(facts["trials"]) if isinstance(row[field], (int, float))]
    return _sized(
        alt.Chart(alt.NamedData(name=TRIALS), title=f"Time over {event['words']}")
        .transform_filter(f"{_TIMED} && isValid(datum.{field}) && datum.shown === 1")
        .mark_point(filled=True, size=14, opacity=0.6, color=BLUE)
        .encode(
            x=alt.X(f"{field}:Q", title=event["words"], scale=_scale(values), axis=alt.Axis(format="~s")),
            y=alt.Y("time:Q", title=_time_title(facts), scale=_time_scale(facts)),
            tooltip=["trial:Q", "time:Q"],
        ),
        height=220,
    )


# What charts share


def _sized(chart: Any, height: float = HEIGHT) -> Any:
    return chart.properties(width=WIDTH, height=height)


def _rows(count: float) -> float:
    return max(40.0, 26.0 * count)


def _looks(kinds: Sequence[str], shapes: Mapping[str, str] | None = None) -> tuple[Any, Any]:
    """The colour and the shape of kinds of points, with one legend for both."""
    import altair as alt

    legend = alt.Legend(orient="top", title=None, symbolOpacity=1)
    forms = [(shapes or {}).get(kind, _LOOKS[kind][1]) for kind in kinds]
    return (
        alt.Color("kind:N", scale=alt.Scale(domain=kinds, range=[_LOOKS[k][0] for k in kinds]), legend=legend),
        alt.Shape("kind:N", scale=alt.Scale(domain=kinds, range=forms), legend=legend),
    )


def _colours(kinds: Sequence[str], colours: Sequence[str]) -> Any:
    import altair as alt

    scale = alt.Scale(domain=list(kinds), range=list(colours))
    return alt.Color("kind:N", scale=scale, legend=alt.Legend(orient="top", title=None))


def _time_title(facts: Facts) -> str:
    return f"time, {facts['unit']['name']}"


def _time_scale(facts: Facts) -> Any:
    return _scale([time for time in (facts["best_time"], facts["slowest_time"]) if time is not None])


def _scale(values: Sequence[float]) -> Any:
    import altair as alt

    wide = bool(values) and min(values) > 0 and max(values) / min(values) > _WIDE_RATIO
    return alt.Scale(type="log", nice=False, padding=6) if wide else alt.Scale(zero=False, padding=6)


def _steps(slowest: float) -> list[float]:
    """Numbers on a legend that goes from 1 to the slowest by factors."""
    steps = [1, 1.1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100, 1000]
    fitting = [step for step in steps if step <= slowest]
    return fitting[:: max(1, len(fitting) // 5)]


def _flat(one: Mapping[str, Any]) -> Any:
    import altair as alt

    words = sum(map(len, one["levels"])) > _WORDY and not all(map(str.isdecimal, one["levels"]))
    return alt.Axis(labelAngle=-45) if words else alt.Axis(labelAngle=0, labelOverlap=True)


def _rate(gflops: float) -> str:
    return f"{gflops / 1e3:.4g} TFLOP/s" if gflops >= 1e4 else f"{gflops:.4g} GFLOP/s"


def _place(i: int, count: int) -> float:
    return 0.5 if count < 2 else i / (count - 1)


def _some(levels: Sequence[str], most: int = 12) -> list[tuple[int, str]]:
    """The labels that fit, the ends among them."""
    step = max(1, -(-len(levels) // most))
    return [(i, text[:12]) for i, text in enumerate(levels) if i % step == 0 or i == len(levels) - 1]
