"""Kernels and baselines timed side by side at one shape: what the choice for other shapes is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from deepgen import operators
from deepgen.operators import Operator
from deepgen.vocabulary import JsonObject, digest


@dataclass(frozen=True)
class Times:
    """Medians of one comparison. Kernels are named by their ids, so that they hold for these kernels alone."""

    operator: Operator
    device: str  # the kind of device
    cold: bool
    threads: int | None
    kernels: Mapping[str, float]
    baselines: Mapping[str, float]
    ties: tuple[str, ...] = ()  # baselines that the fastest kernel is not significantly slower than
    not_made: str | None = None  # why no kernel was made for this shape, where one was to be

    @property
    def conditions(self) -> tuple[str, bool, int | None]:
        """As those of an entry."""
        return self.device, self.cold, self.threads

    @property
    def name(self) -> str:
        return f"{self.operator.slug()}-{digest([self.operator.to_json(), *self.conditions], 8)}"

    def to_json(self) -> JsonObject:
        return {
            "operator": self.operator.to_json(),
            "device": self.device,
            "cold": self.cold,
            "threads": self.threads,
            "kernels": dict(self.kernels),
            "baselines": dict(self.baselines),
            "ties": list(self.ties),
            "not_made": self.not_made,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Times:
        return Times(
            operators.from_json(data["operator"]),
            str(data["device"]),
            bool(data["cold"]),
            None if data["threads"] is None else int(data["threads"]),
            {str(name): seconds(value) for name, value in data["kernels"].items()},
            {str(name): seconds(value) for name, value in data["baselines"].items()},
            tuple(map(str, data.get("ties", ()))),
            None if (why := data.get("not_made")) is None else str(why),
        )


def seconds(value: Any) -> float:
    """A time or a rate out of a file."""
    if type(value) not in (int, float) or not isfinite(value) or value <= 0:
        raise ValueError(f"{value!r:.40} is not a time")
    return float(value)
