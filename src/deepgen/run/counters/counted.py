"""What was counted, what was not and why, and how a measurement keeps both."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from deepgen.vocabulary import Json, Measurement

NOT_COUNTED = "not_counted"  # among a measurement's conditions: reason -> events
SCALED = "scaled"  # the same: events that shared a hardware counter, and were scaled to the whole run


class Refused(Exception):
    """Why a profiler counted nothing. `events`: only because of these; `lasting`: no other kernel would fare better."""

    def __init__(self, why: str, *, events: tuple[str, ...] = (), lasting: bool = False) -> None:
        super().__init__(why)
        self.why, self.events, self.lasting = why, events, lasting


@dataclass(frozen=True)
class Counted:
    """The counters of one kernel. An event that could not be counted is in `missing` with the reason, never 0."""

    values: Mapping[str, float] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    scaled: tuple[str, ...] = ()

    @staticmethod
    def nothing(events: Iterable[str], why: str) -> Counted:
        return Counted(missing=dict.fromkeys(events, why))

    @staticmethod
    def of(measured: Measurement, events: Iterable[str]) -> Counted:
        """From what a worker answered; a run that went wrong counted nothing."""
        if not measured.ok:
            return Counted.nothing(events, f"counting went wrong: {measured.verdict}, {measured.detail}")
        told: Any = measured.conditions
        return Counted(measured.counters, missing_of(measured), tuple(told.get(SCALED, ())))

    def __or__(self, other: Counted) -> Counted:
        """Both together, the other's where both have one. An event that either of them counted is not missing."""
        values = {**self.values, **other.values}
        missing = {name: why for name, why in {**self.missing, **other.missing}.items() if name not in values}
        return Counted(values, missing, (*(n for n in self.scaled if n not in other.values), *other.scaled))

    def kept_in(self, measured: Measurement) -> Measurement:
        """The measurement with these counters beside those that it had."""
        whole = Counted.of(measured, ()) | self if measured.ok else self
        others = {key: value for key, value in measured.conditions.items() if key not in (NOT_COUNTED, SCALED)}
        told: dict[str, Json] = {NOT_COUNTED: {**by_reason(whole.missing)}, SCALED: list(whole.scaled)}
        conditions = {**others, **{key: value for key, value in told.items() if value}}
        return replace(measured, counters=whole.values, conditions=conditions)


def missing_of(measured: Measurement) -> dict[str, str]:
    """The events that could not be counted, each with the reason."""
    told: Any = measured.conditions.get(NOT_COUNTED) or {}
    return {event: why for why, events in told.items() for event in events}


def by_reason(missing: Mapping[str, str]) -> dict[str, list[Json]]:
    """The events that each reason left uncounted."""
    out: dict[str, list[Json]] = {}
    for event, why in missing.items():
        out.setdefault(why, []).append(event)
    return out


def number(text: str) -> float | None:
    """A number as profilers print it, with or without commas between thousands; None for anything else."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None
