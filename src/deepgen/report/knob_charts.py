"""Charts of how knobs and counters affect the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

from deepgen.report import trials as columns
from deepgen.report.charts import (
    BLUE,
    GREEN,
    ORANGE,
    RED,
    TIMED,
    TRIALS,
    alt,
    rows_height,
    scale_for,
    sized,
    time_scale,
    time_title,
)
from deepgen.report.facts import Facts, important_knobs

_MOST_BARS, _MOST_CELLS = 20, 150
_FAINT = "#999999"
_WORDY = 50  # characters in all labels of an axis; above this they are rotated


def importance(facts: Facts) -> Any:
    """What each knob explains, alone and with others."""
    important = important_knobs(facts)[:_MOST_BARS]
    bars = []
    for one in important:
        shares = {"alone": min(one["alone"], one["share"]), "with others": max(one["share"] - one["alone"], 0.0)}
        bars += [{"knob": one["knob"], "kind": kind, "share": share} for kind, share in shares.items()]
    if not bars:
        return None
    return sized(
        alt.Chart(alt.InlineData(values=bars), title="Share of the variance of log time")
        .mark_bar()
        .encode(
            x=alt.X("share:Q", title="share of the variance of log time", axis=alt.Axis(format="%", tickCount=8)),
            y=alt.Y("knob:N", title=None, sort=[one["knob"] for one in important]),
            color=_colours(["alone", "with others"], [BLUE, ORANGE]),
            tooltip=["knob:N", "kind:N", alt.Tooltip("share:Q", format=".1%")],
        ),
        height=rows_height(len(important)),
    )


def knob(facts: Facts, field: str) -> Any:
    """The time of each trial over the value of one knob, and the median at each value."""
    one = next(knob for knob in facts["knobs"] if knob["field"] == field)
    x = alt.X(f"{field}:O", title=one["name"], sort=one["levels"], axis=_flat(one))
    base = alt.Chart(alt.NamedData(name=TRIALS)).transform_filter(f"{TIMED} && isValid(datum.{field})")
    scale = time_scale(facts)
    tooltip = [alt.Tooltip("trial:Q"), alt.Tooltip("time:Q", title=time_title(facts))]
    points = (
        base.transform_filter("datum.shown === 1")
        # Spread evenly over the width of a value, in an order unrelated to the trial's number.
        .transform_calculate(spread="(datum.trial * 0.618034) % 1")
        .mark_point(filled=True, size=14, opacity=0.6, color=BLUE)
        .encode(
            x=x,
            xOffset=alt.XOffset("spread:Q", scale=alt.Scale(domain=[-0.3, 1.3])),
            y=alt.Y("time:Q", title=time_title(facts), scale=scale),
            tooltip=tooltip,
        )
    )
    middle = (
        base.transform_aggregate(middle="median(time)", groupby=[field])
        .transform_calculate(spread="0.5")
        .mark_point(shape="stroke", size=min(24.0, 240.0 / len(one["levels"])) ** 2, strokeWidth=3, opacity=1)
        .encode(x=x, xOffset=alt.XOffset("spread:Q"), y=alt.Y("middle:Q", title=time_title(facts)))
    )
    return sized(alt.layer(points, middle, title=f"Time over {one['name']}"), height=220)


def heatmap(facts: Facts, first: str, second: str) -> Any:
    """The best time for each pair of values of two knobs, relative to the fastest trial."""
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
        .transform_filter(f"{TIMED} && isValid(datum.{across['field']}) && isValid(datum.{down['field']})")
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
            color=alt.Color("slower:Q", title="time / fastest", scale=scale, legend=legend),
            tooltip=[
                alt.Tooltip("slower:Q", title="time / fastest", format=".3f"),
                alt.Tooltip("best:Q", title=time_title(facts)),
                alt.Tooltip("count:Q", title="trials"),
            ],
        )
    ]
    if len(across["levels"]) * len(down["levels"]) <= _MOST_CELLS:
        dark = alt.condition(f"datum.slower < {sqrt(slowest)!r}", alt.value("black"), alt.value("white"))
        layers.append(base.mark_text(fontSize=10).encode(text=alt.Text("slower:Q", format=".3~g"), color=dark))
    name = f"{across['name']} and {down['name']}"
    return sized(alt.layer(*layers, title=name), height=max(120, 28 * len(down["levels"])))


def parallel(facts: Facts) -> Any:
    """The knobs of the best trials: a line each, from knob to knob downwards, so that many knobs fit a narrow page."""
    knobs = facts["knobs"]
    if len(knobs) < 2 or facts["best_cutoff"] is None:
        return None
    names = {one["field"]: one["name"] for one in knobs}
    levels = {one["field"]: one["levels"] for one in knobs}
    labels = [
        {"knob": one["name"], "text": text, "x": 0.5 if len(one["levels"]) < 2 else i / (len(one["levels"]) - 1)}
        for one in knobs
        for i, text in _some(one["levels"])
    ]
    order = [one["name"] for one in knobs]
    x = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[-0.05, 1.05]))
    y = alt.Y("knob:N", title=None, sort=order, scale=alt.Scale(type="point"), axis=alt.Axis(grid=True))
    place = (
        "length(knob_levels[datum.field]) < 2 ? 0.5 :"
        " indexof(knob_levels[datum.field], datum.value) / (length(knob_levels[datum.field]) - 1)"
    )
    fastest = facts["best_time"]
    # The finals may choose another config than the fastest trial's.
    won = f"datum.time <= {fastest * (1 + 1e-5)!r}"
    if facts["winner"]:
        won = f"datum.trial === {int(facts['winner']['trial'])}"
    lines = (
        alt.Chart(alt.NamedData(name=TRIALS))
        .transform_filter(f"{TIMED} && (datum.time <= {facts['best_cutoff']!r} || {won})")
        .transform_fold(list(names), as_=["field", "value"])
        .transform_filter("isValid(datum.value)")
        .transform_calculate(knob="knob_names[datum.field]", x=place, at="indexof(knob_order, datum.field)")
    )
    colour = alt.Color(
        "time:Q",
        title=time_title(facts),
        # Both ends can be seen on a light page and on a dark one.
        scale=alt.Scale(range=[GREEN, _FAINT], domain=[fastest, max(facts["best_cutoff"], fastest * 1.0001)]),
        legend=alt.Legend(orient="top", format=",.4~r", gradientLength=200, tickCount=3),
    )
    layers = [
        lines.mark_line(opacity=0.7, strokeWidth=1.5).encode(x=x, y=y, detail="trial:N", order="at:Q", color=colour),
        lines.transform_filter(won)
        .mark_line(strokeWidth=3, strokeDash=[6, 3], color=RED)
        .encode(x=x, y=y, detail="trial:N", order="at:Q"),
        alt.Chart(alt.InlineData(values=labels))
        .mark_text(align=alt.expr("datum.x < 0.9 ? 'left' : 'right'"), dx=2, dy=-6, fontSize=10)
        .encode(x=x, y=y, text="text:N"),
    ]
    chart = alt.layer(*layers, title=f"The best {facts['best_count']} trials").add_params(
        alt.param(name="knob_names", value=names),
        alt.param(name="knob_levels", value=levels),
        alt.param(name="knob_order", value=list(names)),
    )
    return sized(chart, height=rows_height(len(knobs)))


def correlations(facts: Facts) -> Any:
    """A bar for each number that is correlated with the time."""
    related = facts["analysis"].get("relations", [])[:_MOST_BARS]
    kinds = {"Pearson": "pearson", "Spearman": "spearman", "knobs held fixed": "partial"}
    bars = [
        {"number": one["words"], "kind": kind, "r": one[field]["r"]}
        for one in related
        for kind, field in kinds.items()
        if one[field] is not None
    ]
    if not bars:
        return None
    return sized(
        alt.Chart(alt.InlineData(values=bars), title="Correlation with log time")
        .mark_bar()
        .encode(
            x=alt.X("r:Q", title="r", scale=alt.Scale(domain=[-1, 1])),
            y=alt.Y("number:N", title=None, sort=[one["words"] for one in related]),
            yOffset=alt.YOffset("kind:N", sort=[*kinds]),
            color=_colours([*kinds], [BLUE, ORANGE, GREEN]),
            tooltip=["number:N", "kind:N", alt.Tooltip("r:Q", format=".2f")],
        ),
        height=rows_height(2 * len(related)),
    )


def cloud(facts: Facts, field: str) -> Any:
    """The time of each trial over a number that is correlated with it."""
    event = next(event for event in facts["events"] if event["field"] == field)
    values = [row[field] for row in columns.unpacked(facts["trials"]) if isinstance(row[field], (int, float))]
    return sized(
        alt.Chart(alt.NamedData(name=TRIALS), title=f"Time over {event['words']}")
        .transform_filter(f"{TIMED} && isValid(datum.{field}) && datum.shown === 1")
        .mark_point(filled=True, size=14, opacity=0.6, color=BLUE)
        .encode(
            x=alt.X(f"{field}:Q", title=event["words"], scale=scale_for(values), axis=alt.Axis(format="~s")),
            y=alt.Y("time:Q", title=time_title(facts), scale=time_scale(facts)),
            tooltip=["trial:Q", "time:Q"],
        ),
        height=220,
    )


def _colours(kinds: Sequence[str], colours: Sequence[str]) -> Any:
    scale = alt.Scale(domain=list(kinds), range=list(colours))
    return alt.Color("kind:N", scale=scale, legend=alt.Legend(orient="top", title=None))


def _steps(slowest: float) -> list[float]:
    """Values on a legend from 1 to the slowest, as ratios."""
    steps = [1, 1.1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100, 1000]
    fitting = [step for step in steps if step <= slowest]
    return fitting[:: max(1, len(fitting) // 5)]


def _flat(one: Mapping[str, Any]) -> Any:
    words = sum(map(len, one["levels"])) > _WORDY and not all(map(str.isdecimal, one["levels"]))
    return alt.Axis(labelAngle=-45) if words else alt.Axis(labelAngle=0, labelOverlap=True)


def _some(levels: Sequence[str], most: int = 12) -> list[tuple[int, str]]:
    """The labels that fit, including both ends."""
    step = max(1, -(-len(levels) // most))
    return [(i, text[:12]) for i, text in enumerate(levels) if i % step == 0 or i == len(levels) - 1]
