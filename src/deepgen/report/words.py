"""Ratios, counts and conditions in words, the same in the terminal and in reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from deepgen.run.measure.race import Ratio
from deepgen.tuning.study.finals import Finals
from deepgen.tuning.study.reading import RETEST, WIDE
from deepgen.tuning.study.text import seconds_text
from deepgen.vocabulary import Json, Trial

FASTER, SLOWER, TOO_NOISY = "ours is faster", "ours is slower", "too noisy to tell"
_MOST_WORDS = 4  # distinct values that are listed
# Readable names of conditions. Conditions with other names are listed after these.
_WORDS: Mapping[str, str] = {
    "cold": "caches cold before each run",
    "flush": "how caches are flushed",
    "load": "load average",
    "builds": "builds running during the measurement",
    "stolen_share": "CPU time taken by the hypervisor",
    "others_share": "CPU time taken by other processes",
    "throttled_share": "CPU time withheld by the container's limit",
    "waited_share": "time that threads waited for a core, in bursts",
    "contaminated": "disturbed measurements",
    "retaken": "taken again",
    "mhz": "CPU clock, MHz",
    "celsius": "temperature, °C",
    "governor": "frequency governor",
    "sm_mhz": "GPU clock, MHz",
    "memory_mhz": "GPU memory clock, MHz",
    "milliwatts": "power, mW",
    "throttled": "clock throttled",
    "call_seconds": "cost of an empty call, s",
    "runs_checked": "runs per trial compared with the reference",
    "reproducible": "identical result in every run",
    "restless_threads": "threads kept computing after a call",
    "late_samples": "samples in which the GPU waited for the host",
    "reference": "where the reference was computed",
    "simulated": "simulated, not measured",
    "proxy": "instead of times",
    "costs": "table of costs",
    "instructions": "instructions",
    "cycles": "instructions, weighted by the table",
    "recorded": "recorded elsewhere",
    "confirmed": "confirmed by a second measurement",
}
_NOT_SHOWN = frozenset({"shapes", "not_counted", "name", "rounds_from", "trial", "form"})


def gained(winner: Mapping[str, Any]) -> str:
    """The winner over the default."""
    if winner["tie_broken_by"] == "default":
        return "1.00 (a tie)"
    over: Mapping[str, Any] = winner["over_default"]
    return "1.00 (the default won)" if over["interval"] == [1.0, 1.0] else ratio_text(over)


SMALL = 50e-6  # seconds: below this, the overhead of a Python call is a large part


def compared(row: Mapping[str, Any]) -> str:
    """How the winner compares with a baseline, with the interval: called by users, and interleaved if that differs.

    A ratio that a busy machine distorted is not shown.
    """
    if row.get("noisy"):
        return f"{TOO_NOISY}: {row['noisy']}"
    rough = [f"less accurate, its error is {row['error']:.2g} times the tolerance"] if row.get("error") else []
    bursts: Mapping[str, Any] | None = row.get("bursts")
    if bursts is None:
        return "; ".join([f"{_compared(row)}, {seconds_text(row['seconds'])}", *rough])
    kernel, call = bursts["kernel"], bursts["call"]
    # This time differs from the interleaved one, so the winner's own is shown next to it.
    words = [f"{_compared(kernel)}, {seconds_text(bursts['seconds'])} beside our {seconds_text(kernel['seconds'])}"]
    if call is not None and kernel["seconds"] < SMALL:
        words.append(f"called from Python {ratio_text(call)}")
    return "; ".join([*words, f"interleaved {ratio_text(row)}, {seconds_text(row['seconds'])}", *rough])


def _compared(row: Mapping[str, Any]) -> str:
    verdict = judged(row["ratio"], *row["interval"])
    if verdict in (FASTER, SLOWER):
        return f"ours is {row['ratio']:.2f} times as fast ({_between(row)})"
    return f"{verdict}: {ratio_text(row)}"


def outdone(faster: Mapping[str, Any]) -> str:
    """States that a baseline is faster than the winner, and what would help: the first sentence of a result."""
    low, high = (1.0 / end for end in reversed(faster["interval"]))
    times = f"{1.0 / faster['ratio']:.2f} times as fast as the winner ({low:.2f} to {high:.2f})"
    return f"{faster['name']} is {times}. What would help: {'; '.join(faster['helps'])}."


def judged(ratio: float, low: float, high: float) -> str:
    """What can be concluded from a ratio and its interval."""
    if not low <= 1.0 <= high:
        return FASTER if low > 1.0 else SLOWER
    return "equally fast" if Ratio(ratio, low, high).width <= WIDE else TOO_NOISY


def ratio_text(row: Mapping[str, Any]) -> str:
    return f"{row['ratio']:.2f} ({_between(row)})"


def _between(row: Mapping[str, Any]) -> str:
    low, high = row["interval"]
    return f"{low:.2f} to {high:.2f}"


def without_advice(doubts: Sequence[str]) -> tuple[list[str], str]:
    """The doubts, and the advice that they share; empty if none of them has it."""
    advice = f"; {RETEST}"
    shared = f"To be sure, {RETEST}." if any(doubt.endswith(advice) for doubt in doubts) else ""
    return [doubt.removesuffix(advice) for doubt in doubts], shared


def sentence(text: str) -> str:
    """With a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}" if text else ""


def conditions_of(trials: Sequence[Trial], finals: Finals | None) -> list[dict[str, Any]]:
    """A row for each condition: its range or its values over the trials, and over the finals."""
    during = {
        "search": [t.measurement.conditions for t in trials if t.measurement.samples],
        "finals": list(finals.conditions) if finals is not None else [],
    }
    names = dict.fromkeys(name for rows in during.values() for row in rows for name in row if name not in _NOT_SHOWN)
    named = [name for name in _WORDS if name in names]
    order = [*named, *(name for name in names if name not in _WORDS)]
    return [
        {"name": _WORDS.get(name, name), **{part: _summed_up(name, rows) for part, rows in during.items()}}
        for name in order
    ]


def _summed_up(name: str, rows: Sequence[Mapping[str, Json]]) -> str:
    """The values of one condition in a few words; empty if there are none."""
    values = [row[name] for row in rows if row.get(name) is not None]
    if name == "contaminated" and values:
        return f"{len(values)} of {len(rows)}"
    numbers = [float(v) for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if numbers and len(numbers) == len(values):
        low, middle, high = (f"{x:.3g}" for x in (min(numbers), median(numbers), max(numbers)))
        return low if low == high else f"{low} to {high}, median {middle}"
    words = Counter("yes" if v is True else "no" if v is False else str(v) for v in values)
    if len(words) == 1:
        return next(iter(words))
    listed = [f"{word} ({count})" for word, count in words.most_common(_MOST_WORDS)]
    more = len(words) - len(listed)
    return ", ".join(listed) + (f" and {more} more" if more > 0 else "")
