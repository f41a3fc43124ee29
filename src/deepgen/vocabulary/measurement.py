"""Measurement: the verdict on a kernel, its samples, and their conditions. Trial: a config with its measurement."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from math import exp, log
from statistics import median
from typing import Any, ClassVar

from deepgen.vocabulary.codec import Serializable, coded
from deepgen.vocabulary.json import Json

IMPOSSIBLE = "impossible"  # condition for a time that the machine's peak makes impossible


class Verdict(str, Enum):
    """How a trial ended. All code uses this list."""

    CORRECT = "correct"
    WRONG = "wrong"
    BUILD_FAILED = "build_failed"
    BUILD_TIMEOUT = "build_timeout"
    REFUSED = "refused"  # by the driver, or because of limits of the machine
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    UNSTABLE = "unstable"  # correct, but its time did not settle
    NOT_RUN = "not_run"  # built, but predicted by build statistics to be clearly slow

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Measurement(Serializable):
    """The outcome of trying a kernel."""

    verdict: Verdict
    detail: str = ""  # one sentence: what went wrong, for a verdict other than correct
    samples: tuple[float, ...] = ()  # seconds of each timed run, in order; outliers included
    error: float | None = None  # largest error, as a share of the tolerance
    counters: Mapping[str, float] = field(default_factory=dict)
    conditions: Mapping[str, Json] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.verdict is Verdict.CORRECT

    @property
    def right(self) -> bool:
        """Whether results were correct, even if the time did not settle; False if the time is implausibly short."""
        return self.ok or (self.verdict is Verdict.UNSTABLE and not self.conditions.get(IMPOSSIBLE))

    @property
    def seconds(self) -> float | None:
        """The median of the samples."""
        return median(self.samples) if self.samples else None


def geometric_mean(values: Sequence[float]) -> float:
    """The mean of the times of several shapes, which count as one time."""
    if len(values) == 1 or min(values) <= 0.0:
        return values[0]
    return exp(sum(map(log, values)) / len(values))


@dataclass(frozen=True)
class Trial:
    """One tried config. `id` counts from 0 in its study; `rank` is the config's rank in the space."""

    id: int
    rank: int
    config: Mapping[str, Any]
    kernel_id: str
    measurement: Measurement
    build_facts: Mapping[str, Json] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.measurement.ok

    @property
    def seconds(self) -> float | None:
        """The time that counts: None unless the kernel is correct."""
        return self.measurement.seconds if self.ok else None


_SPECIAL = {"nan": "NaN", "inf": "infinities", "denormals": "denormal numbers"}
KEPT, LOST, FLUSHED = "kept", "lost", "flushed"
ANY, ONE = "any number at once", "one at a time"


@dataclass(frozen=True)
class Properties(Serializable):
    """Properties of a kernel, one word each; empty if untested."""

    nan: str = field(default="", metadata=coded(omit=True))  # kept like in the reference, or lost
    inf: str = field(default="", metadata=coded(omit=True))  # the same
    denormals: str = field(default="", metadata=coded(omit=True))  # kept or flushed
    threads: str = field(default="", metadata=coded(omit=True))  # how many threads may call it; ONE: calls take a lock
    alignment: str = field(default="", metadata=coded(omit=True))  # "element", or the alignment of addresses in bytes

    usual: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "nan": (KEPT,), "inf": (KEPT,), "denormals": (KEPT,), "threads": (ANY,), "alignment": ("element", "16 bytes"),
    }  # fmt: skip

    def loses(self) -> list[str]:
        """Special numbers that it does not handle like the reference, in words."""
        marks = self.marks()
        return [words for name, words in _SPECIAL.items() if name in marks]

    def untried(self, names: Collection[str]) -> list[str]:
        """Which of these special numbers it was not tested with, in words."""
        return [words for name, words in _SPECIAL.items() if name in names and not getattr(self, name)]

    def marks(self) -> dict[str, str]:
        """What a user should know: the properties that differ from those of an ordinary kernel."""
        values = {one.name: str(getattr(self, one.name)) for one in fields(self)}
        return {name: value for name, value in values.items() if value and value not in self.usual[name]}
