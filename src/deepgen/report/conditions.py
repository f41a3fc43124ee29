"""The conditions under which a study was measured, summed up over its trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from deepgen.vocabulary import Json, Trial

_MOST_WORDS = 4  # different values that are listed
# What a person calls them. Conditions of other names are shown under these.
_WORDS: Mapping[str, str] = {
    "cold": "caches cold before each run",
    "flush": "how caches are flushed",
    "load": "load average",
    "builds": "builds beside the measurement",
    "stolen_share": "processor time taken by the hypervisor",
    "others_share": "processor time taken by other processes",
    "contaminated": "disturbed measurements",
    "retaken": "taken again",
    "mhz": "processor clock, MHz",
    "celsius": "temperature, °C",
    "governor": "frequency governor",
    "sm_mhz": "GPU clock, MHz",
    "memory_mhz": "GPU memory clock, MHz",
    "milliwatts": "power, mW",
    "throttled": "clock held down",
    "call_seconds": "cost of an empty call, s",
    "runs_checked": "runs compared with the reference, a trial",
    "reproducible": "the same result in every run",
    "restless_threads": "threads went on computing after a call",
    "late_samples": "samples in which the GPU waited for the host",
    "reference": "where the reference was computed",
    "simulated": "simulated, not measured",
    "proxy": "in place of times",
    "costs": "table of costs",
    "instructions": "instructions",
    "cycles": "instructions, weighted by the table",
    "recorded": "recorded elsewhere",
    "confirmed": "confirmed by a second measurement",
}
_NOT_SHOWN = frozenset({"shapes", "not_counted", "name", "rounds_from", "trial"})


def conditions_of(trials: Sequence[Trial], finals: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """A row for each condition: its range or its values over the trials, and over the finals."""
    during = {
        "search": [t.measurement.conditions for t in trials if t.measurement.samples],
        "finals": [row for row in (finals or {}).get("conditions", []) if isinstance(row, Mapping)],
    }
    names = dict.fromkeys(name for rows in during.values() for row in rows for name in row if name not in _NOT_SHOWN)
    known = [name for name in _WORDS if name in names]
    order = [*known, *(name for name in names if name not in _WORDS)]
    return [
        {"name": _WORDS.get(name, name), **{part: _told(name, rows) for part, rows in during.items()}} for name in order
    ]


def _told(name: str, rows: Sequence[Mapping[str, Json]]) -> str:
    """What the trials say of one condition, in a few words; empty where none says anything."""
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
