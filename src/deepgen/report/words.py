"""Ratios and counts as a person reads them, the same in a terminal and in a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deepgen.run.measure.race import Ratio
from deepgen.tuning.study.reading import RETEST, WIDE

FASTER, SLOWER = "ours is faster", "ours is slower"


def gained(winner: Mapping[str, Any]) -> str:
    """The winner over the default."""
    if winner["tie_broken_by"] == "default":
        return "1.00 (a tie)"
    over: Mapping[str, Any] = winner["over_default"]
    return "1.00 (the default won)" if over["interval"] == [1.0, 1.0] else ratio_text(over)


def compared(row: Mapping[str, Any]) -> str:
    """How the winner compares with a baseline, with the interval."""
    told = judged(row["ratio"], *row["interval"])
    if told in (FASTER, SLOWER):
        return f"ours is {row['ratio']:.2f} times as fast ({_between(row)})"
    return f"{told}: {ratio_text(row)}"


def judged(ratio: float, low: float, high: float) -> str:
    """What can be concluded from a ratio and its interval."""
    if not low <= 1.0 <= high:
        return FASTER if low > 1.0 else SLOWER
    return "equally fast" if Ratio(ratio, low, high).width <= WIDE else "too noisy to tell"


def ratio_text(row: Mapping[str, Any]) -> str:
    return f"{row['ratio']:.2f} ({_between(row)})"


def _between(row: Mapping[str, Any]) -> str:
    low, high = row["interval"]
    return f"{low:.2f} to {high:.2f}"


def without_advice(doubts: Sequence[str]) -> tuple[list[str], str]:
    """The doubts, and the advice that most of them share; empty where none of them has it."""
    advice = f"; {RETEST}"
    shared = f"To be sure, {RETEST}." if any(doubt.endswith(advice) for doubt in doubts) else ""
    return [doubt.removesuffix(advice) for doubt in doubts], shared


def sentence(text: str) -> str:
    """With a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}" if text else ""
