"""An entry of a library: what a kernel computes and where, how fast it was, and where it comes from; and times of
kernels and baselines side by side at one shape. Pure data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any

from deepgen import operators, targets
from deepgen.operators import Operator
from deepgen.operators.named.base import Named
from deepgen.run.call import plans
from deepgen.targets import Target
from deepgen.vocabulary import BadInput, JsonObject, digest
from deepgen.vocabulary.json import Json

Requirements = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Rival:
    """A baseline at the shape of an entry: its time, and how many times longer than ours it took."""

    seconds: float
    ratio: float | None = None
    interval: tuple[float, float] | None = None

    def to_json(self) -> JsonObject:
        interval: Json = None if self.interval is None else list(self.interval)
        return {"seconds": self.seconds, "ratio": self.ratio, "interval": interval}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Rival:
        ratio, interval = data["ratio"], data["interval"]
        return Rival(
            seconds(data["seconds"]),
            None if ratio is None else float(ratio),
            None if interval is None else (float(interval[0]), float(interval[1])),
        )


@dataclass(frozen=True)
class Timed:
    """A shape that a kernel was timed at, beside baselines."""

    operator: Operator
    seconds: float
    interval: tuple[float, float]  # of the median
    baselines: Mapping[str, Rival]

    def to_json(self) -> JsonObject:
        return {
            "operator": self.operator.to_json(),
            "seconds": self.seconds,
            "interval": list(self.interval),
            "baselines": {name: rival.to_json() for name, rival in self.baselines.items()},
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Timed:
        low, high = data["interval"]
        return Timed(
            operators.from_json(data["operator"]),
            seconds(data["seconds"]),
            (seconds(low), seconds(high)),
            {str(name): Rival.from_json(row) for name, row in data["baselines"].items()},
        )


@dataclass(frozen=True)
class Entry:
    """The winner of a study."""

    target: Target
    cold: bool  # whether caches were cold when it was timed
    threads: int | None  # that kernels and baselines were limited to
    general: bool  # whether it serves other shapes than those that it was timed at
    family: str
    config: Mapping[str, Any]
    kernel_id: str
    binary: str  # SHA-256
    requires: Requirements  # what a shape must satisfy, and in words
    timed: tuple[Timed, ...]  # at least one
    peak_gflops: float | None
    bandwidth: float | None
    provenance: Mapping[str, Json]  # the study, its trial and rounds, the machine's conditions, versions, the time

    @property
    def operator(self) -> Operator:
        return self.timed[0].operator

    @property
    def seconds(self) -> float:
        return self.timed[0].seconds

    @property
    def conditions(self) -> tuple[str, bool, int | None]:
        """The kind of device, whether caches were cold, and threads: where these are alike, times can be compared."""
        return self.target.device_kind, self.cold, self.threads

    @cached_property
    def name(self) -> str:
        """Of its folder. Like winners of one operator under like conditions share it: the faster is kept."""
        like: list[Json] = [self.target.name, *self.conditions, self.general]
        shapes: list[Json] = [timed.operator.to_json() for timed in self.timed]
        return f"{self.operator.slug()}-{self.target.name.replace(':', '_')}-{digest([shapes, like], 8)}"

    def at(self, operator: Operator) -> Timed | None:
        """What was measured at exactly this shape."""
        return next((timed for timed in self.timed if timed.operator == operator), None)

    def serves(self, operator: Operator) -> str | None:
        """None where the kernel serves a shape of its operator; otherwise the requirement that is not met."""
        scalars = operator.scalars()
        for expression, words in self.requires:
            if not plans.holds(expression, scalars):
                return words
        return None

    def to_json(self) -> JsonObject:
        return {
            "target": self.target.to_json(),
            "cold": self.cold,
            "threads": self.threads,
            "general": self.general,
            "family": self.family,
            "config": dict(self.config),
            "kernel": self.kernel_id,
            "binary": self.binary,
            "requires": [list(pair) for pair in self.requires],
            "timed": [timed.to_json() for timed in self.timed],
            "peak_gflops": self.peak_gflops,
            "bandwidth": self.bandwidth,
            "provenance": dict(self.provenance),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Entry:
        timed = tuple(map(Timed.from_json, data["timed"]))
        if not timed:
            raise ValueError("it was timed at no shape")
        return Entry(
            target=targets.from_json(data["target"]),
            cold=bool(data["cold"]),
            threads=None if data["threads"] is None else int(data["threads"]),
            general=bool(data["general"]),
            family=str(data["family"]),
            config=dict(data["config"]),
            kernel_id=str(data["kernel"]),
            binary=str(data["binary"]),
            requires=tuple((str(expression), str(words)) for expression, words in data["requires"]),
            timed=timed,
            peak_gflops=_rate(data["peak_gflops"]),
            bandwidth=_rate(data["bandwidth"]),
            provenance=dict(data["provenance"]),
        )


def is_resized(like: Operator, wanted: Operator) -> bool:
    """Whether one is the other in another shape, so that a kernel for one may serve the other."""
    if type(like) is not type(wanted):
        return False
    try:
        return bool(like.resized(wanted.sizes(), {}, {}) == wanted)
    except (BadInput, TypeError, ValueError, KeyError):  # an operator may refuse a shape in any of these ways
        return False


def is_related(like: Operator, wanted: Operator) -> bool:
    """Whether one is the other in another shape, where kernels are made for one shape and serve no other."""
    named = isinstance(wanted, Named) and type(like) is type(wanted)
    return named and {**like.to_json(), **wanted.sizes()} == wanted.to_json()


def _rate(value: Any) -> float | None:
    return None if value is None else seconds(value)


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
