"""A library entry: what a kernel computes, on which target, how fast it was, and its provenance; also times of kernels
and baselines measured side by side at one shape. Pure data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any

from deepgen import operators, targets
from deepgen.operators import Operator
from deepgen.operators.named import Named
from deepgen.run.call import plans
from deepgen.targets import Target
from deepgen.vocabulary import BadInput, digest
from deepgen.vocabulary.codec import Serializable, coded
from deepgen.vocabulary.json import Json
from deepgen.vocabulary.measurement import Properties

Requirements = tuple[tuple[str, str], ...]


def _positive(value: Any) -> float:
    """A time or a rate from a file."""
    if type(value) not in (int, float) or not 0.0 < value < inf:
        raise ValueError(f"{value!r:.40} is not a time")
    return float(value)


_POSITIVE = coded(read=_positive)
_RATE = coded(read=lambda value: None if value is None else _positive(value))
_TIMES = coded(read=lambda values: {str(name): _positive(value) for name, value in values.items()})
_OPERATOR = coded(read=operators.from_json, write=lambda operator: operator.to_json())


@dataclass(frozen=True)
class Rival(Serializable):
    """A baseline at the shape of an entry: its time, and the ratio of that time to ours."""

    seconds: float = field(metadata=_POSITIVE)
    ratio: float | None = None
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Timed(Serializable):
    """A shape at which a kernel was timed together with baselines."""

    operator: Operator = field(metadata=_OPERATOR)
    seconds: float = field(metadata=_POSITIVE)
    # Confidence interval of the median.
    interval: tuple[float, float] = field(metadata=coded(read=lambda pair: (_positive(pair[0]), _positive(pair[1]))))
    baselines: Mapping[str, Rival]


@dataclass(frozen=True)
class Entry(Serializable):
    """The winner of a study."""

    target: Target = field(metadata=coded(read=targets.from_json, write=lambda target: target.to_json()))
    cold: bool  # whether caches were cold when it was timed
    threads: int | None  # the limit for kernels and baselines
    general: bool  # whether it serves shapes other than those at which it was timed
    family: str
    config: Mapping[str, Any]
    kernel_id: str = field(metadata=coded(key="kernel"))
    binary: str  # SHA-256
    requires: tuple[tuple[str, str], ...]  # each condition on a shape, and the same in words
    timed: tuple[Timed, ...]  # at least one
    peak_gflops: float | None = field(metadata=_RATE)
    bandwidth: float | None = field(metadata=_RATE)
    provenance: Mapping[str, Json]  # the study, its trial and rounds, the machine's conditions, versions, the time
    properties: Properties = field(default_factory=Properties, metadata=coded(omit=True))

    def __post_init__(self) -> None:
        if not self.timed:
            raise ValueError("it was not timed at any shape")

    @property
    def operator(self) -> Operator:
        return self.timed[0].operator

    @property
    def seconds(self) -> float:
        return self.timed[0].seconds

    @property
    def conditions(self) -> tuple[str, bool, int | None]:
        """The kind of device, whether caches were cold, and threads: times are comparable if these are equal."""
        return self.target.device_kind, self.cold, self.threads

    @cached_property
    def name(self) -> str:
        """The name of its folder. Similar winners of one operator under the same conditions share it: the faster is
        kept.
        """
        like: list[Json] = [self.target.name, *self.conditions, self.general]
        shapes: list[Json] = [timed.operator.to_json() for timed in self.timed]
        return f"{self.operator.slug()}-{self.target.name.replace(':', '_')}-{digest([shapes, like], 8)}"

    def at(self, operator: Operator) -> Timed | None:
        """What was measured at exactly this shape, if anything."""
        return next((timed for timed in self.timed if timed.operator == operator), None)

    def serves(self, operator: Operator) -> str | None:
        """None if the kernel serves a shape of its operator; otherwise the requirement that is not met."""
        scalars = operator.scalars()
        for expression, words in self.requires:
            if not plans.holds(expression, scalars):
                return words
        return None


def is_resized(like: Operator, wanted: Operator) -> bool:
    """Whether the two differ only in shape, so that a kernel for one may serve the other."""
    if type(like) is not type(wanted):
        return False
    try:
        return bool(like.resized(wanted.sizes(), {}, {}) == wanted)
    except (BadInput, TypeError, ValueError, KeyError):  # an operator may reject a shape with any of these
        return False


def is_related(like: Operator, wanted: Operator) -> bool:
    """Whether the two differ only in shape, for operators whose kernels serve a single shape."""
    if not isinstance(wanted, Named) or not isinstance(like, Named) or type(like) is not type(wanted):
        return False
    return all(like[word.name] == wanted[word.name] for word in wanted.words if word.kind != "size")


@dataclass(frozen=True)
class DecidedKernel(Serializable):
    """A kernel for a shape of a recorded model, and whether the model as a whole is faster with it."""

    operator: Operator = field(metadata=_OPERATOR)
    kernel_id: str = field(metadata=coded(key="kernel"))
    serves: bool


@dataclass(frozen=True)
class ModelTimes(Serializable):
    """What serves a recorded model in one form, such as eager or compiled: decided by the time of its calls together.

    It holds for these kernels on this kind of device, with as many threads of the framework's.
    """

    model: str  # a digest of its calls
    form: str
    device: str
    threads: int | None  # None on a GPU
    seconds: float = field(metadata=_POSITIVE)  # with the kernels that serve
    without: float = field(metadata=_POSITIVE)
    kernels: tuple[DecidedKernel, ...]

    @property
    def name(self) -> str:
        return f"{self.form}-{digest([self.model, self.device, self.threads], 8)}"


@dataclass(frozen=True)
class Times(Serializable):
    """Medians of one comparison. Kernels are identified by their ids, so the times hold for exactly these kernels."""

    operator: Operator = field(metadata=_OPERATOR)
    device: str  # the kind of device
    cold: bool
    threads: int | None
    kernels: Mapping[str, float] = field(metadata=_TIMES)
    baselines: Mapping[str, float] = field(metadata=_TIMES)
    ties: tuple[str, ...] = ()  # baselines that are not significantly faster than the fastest kernel
    not_made: str | None = None  # why no kernel could be generated for this shape, if that was tried

    @property
    def conditions(self) -> tuple[str, bool, int | None]:
        """Like those of an entry."""
        return self.device, self.cold, self.threads

    @property
    def name(self) -> str:
        return f"{self.operator.slug()}-{digest([self.operator.to_json(), *self.conditions], 8)}"
