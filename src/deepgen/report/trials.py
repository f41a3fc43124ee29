"""Trials as columns of plain values: small enough to embed in a page, with names that are safe in charts.

Knobs and events may have any name, and a journal may be untrusted. So charts refer to them by generated fields (`k0`,
`e0`), and names are only displayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from deepgen.report.analysis.numbers import Row
from deepgen.tuning.study.text import KNOB, knob_text

MOST = 10_000  # trials in a page; of more than that, the fastest and a random sample
SHOWN = 1_500  # points in the chart of one knob, sampled in the same way
_FASTEST_SHARE = 10  # a tenth of the sample are the fastest
_BREAK_SECONDS = 600.0  # a longer gap between two trials means the study was not running
_DIGITS = 6


@dataclass(frozen=True)
class Unit:
    """The unit in which a study's times are shown."""

    name: str
    scale: float  # times seconds

    @staticmethod
    def of(seconds: Iterable[float]) -> Unit:
        """The largest unit in which the fastest time is at least 1."""
        fastest = min(seconds, default=1.0)
        for name, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
            if fastest * scale >= 1.0:
                return Unit(name, scale)
        return Unit("ns", 1e9)


@dataclass(frozen=True)
class TrialColumn:
    """A knob or an event, and the field that holds it."""

    name: str
    field: str
    levels: tuple[str, ...] = ()  # of a knob: its values in order


def knob_columns(rows: Sequence[Row]) -> list[TrialColumn]:
    """The knobs of the trials."""
    names = dict.fromkeys(name for row in rows for name in row if name.startswith(KNOB))
    return [TrialColumn(name.removeprefix(KNOB), f"k{i}", _levels(rows, name)) for i, name in enumerate(names)]


def _levels(rows: Sequence[Row], name: str) -> tuple[str, ...]:
    """Numbers in ascending order, words alphabetically."""
    values = {knob_text(row[name]): row[name] for row in rows if row.get(name) is not None}
    numbers = all(type(value) in (int, float) for value in values.values())
    return tuple(sorted(values, key=lambda text: values[text]) if numbers else sorted(values))


def event_columns(names: Sequence[str]) -> list[TrialColumn]:
    """Events and facts of the build that are plotted against the time, by their names in rows."""
    return [TrialColumn(name, f"e{i}") for i, name in enumerate(names)]


def kept(rows: Sequence[Row], most: int = MOST) -> list[Row]:
    """All rows; if there are too many, the fastest and a random sample of the rest."""
    if len(rows) <= most:
        return list(rows)
    timed = sorted((row for row in rows if row["seconds"] is not None), key=lambda row: row["seconds"])
    fastest = {row["trial"] for row in timed[: most // _FASTEST_SHARE]}
    others = [row["trial"] for row in rows if row["trial"] not in fastest]
    order = np.random.default_rng(0).permutation(len(others))[: most - len(fastest)]
    chosen = fastest | {others[i] for i in order}
    return [row for row in rows if row["trial"] in chosen]


def elapsed(ended: Sequence[float], began: float | None) -> tuple[list[float], int]:
    """Seconds since the study began without gaps between runs, and the number of gaps left out."""
    if not ended:
        return [], 0
    order = np.argsort(ended, kind="stable")
    moments = np.asarray(ended, dtype=np.float64)[order]
    steps = np.diff(moments, prepend=moments[0] if began is None else min(began, moments[0]))
    usual = median(steps[1:].tolist()) if len(steps) > 1 else 0.0
    breaks = steps > max(_BREAK_SECONDS, 50.0 * usual)
    at = np.empty(len(moments))
    at[order] = np.cumsum(np.where(breaks, usual, np.maximum(steps, 0.0)))
    return at.tolist(), int(breaks.sum())


def table(
    rows: Sequence[Row],
    at: Mapping[int, float],
    unit: Unit,
    knobs: Sequence[TrialColumn],
    events: Sequence[TrialColumn],
) -> list[dict[str, Any]]:
    """One object per trial, as charts read it: `trial`, `verdict`, `time`, where it was timed (finals or search), `at`,
    `shown`, and each knob and event.
    """
    shown = _shown(rows)
    return [
        {
            "trial": row["trial"],
            "verdict": row["verdict"],
            "time": None if row["seconds"] is None else _short(row["seconds"] * unit.scale),
            "timed": row.get("timed_in", "search"),
            "at": round(at.get(row["trial"], 0.0), 2),
            "shown": int(row["trial"] in shown),
            **{knob.field: _text(row.get(KNOB + knob.name)) for knob in knobs},
            **{event.field: row.get(event.name) for event in events},
        }
        for row in rows
    ]


def _shown(rows: Sequence[Row]) -> set[int]:
    """The trials drawn in the chart of one knob: all of them, or a sample."""
    return {row["trial"] for row in (kept(rows, SHOWN) if len(rows) > SHOWN else rows)}


def packed(objects: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The same data by column; a column of repeated values is stored as `levels` and one `index` per trial."""
    names = list(objects[0]) if objects else []
    return {name: _packed([one[name] for one in objects]) for name in names}


def _packed(values: list[Any]) -> Any:
    levels = dict.fromkeys(values)
    same = all(value is None or type(value) is str for value in levels)  # numbers of different types may be equal
    if not same or len(levels) > max(2, len(values) // 4):
        return values
    place = {value: i for i, value in enumerate(levels)}
    return {"levels": list(levels), "index": [place[value] for value in values]}


def unpacked(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The inverse of `packed`."""
    plain = {
        name: [column["levels"][i] for i in column["index"]] if isinstance(column, Mapping) else column
        for name, column in columns.items()
    }
    return [dict(zip(plain, values, strict=True)) for values in zip(*plain.values(), strict=True)]


def _text(value: Any) -> str | None:
    return None if value is None else knob_text(value)


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
