"""Schedules as data and as readable text: the steps that rearrange the loops of an expression.

A number in a step is an integer, or an expression over knobs as text (`"BM"`, `"BM * 2"`). A schedule with such
expressions is a template, which a config fills in. A loop has the name of its stage's axis; splitting `i` into two
gives `i.0` (the outer one) and `i.1`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar, get_args

from deepgen.space import parse
from deepgen.space.evaluate import evaluate_strictly
from deepgen.vocabulary import BadInput

Number: TypeAlias = "int | str"
N_co = TypeVar("N_co", covariant=True)
# Shared memory belongs to a block; `warp` buffers are in the registers of a warp's 32 threads, in an intrinsic's
# layout.
MemoryScope: TypeAlias = Literal["global", "shared", "warp", "register"]
SCOPES: tuple[MemoryScope, ...] = get_args(MemoryScope)
SERIAL, PARALLEL, UNROLL, VECTOR = "serial", "parallel", "unroll", "vector"
SCAN = "scan"  # a vectorized loop along which a stage is scanned
BLOCKS, THREADS = ("block.x", "block.y", "block.z"), ("thread.x", "thread.y", "thread.z")
BOUND = (*BLOCKS, *THREADS)
LANES = "thread.x"  # along which threads can combine reductions


def split_names(loop: str, count: int) -> list[str]:
    """The names of the loops that one is split into, the outermost first."""
    return [f"{loop}.{n}" for n in range(count)]


def fused_name(loops: Iterable[str]) -> str:
    """The name of the loop that several are fused into."""
    return "+".join(loops)


@dataclass(frozen=True)
class _OfStage:
    stage: str


@dataclass(frozen=True)
class _OfLoop(_OfStage):
    loop: str


@dataclass(frozen=True)
class Split(_OfLoop):
    """loop -> loop.0 ... loop.n; `factors` are the extents of all but the outermost, which covers the rest."""

    phrase: ClassVar[str] = "{stage}: {loop} by {factors}"
    factors: tuple[Number, ...]


@dataclass(frozen=True)
class Reverse(_OfLoop):
    """Run a loop from its last iteration to its first."""

    phrase: ClassVar[str] = "{stage}: {loop}"


@dataclass(frozen=True)
class Reorder(_OfStage):
    """Put the named loops in this order, in the positions that they occupy together."""

    phrase: ClassVar[str] = "{stage}: {loops}"
    loops: tuple[str, ...]


@dataclass(frozen=True)
class Fuse(_OfStage):
    """Fuse adjacent loops into one, named by joining their names with '+'."""

    phrase: ClassVar[str] = "{stage}: {loops}"
    loops: tuple[str, ...]


@dataclass(frozen=True)
class Annotate(_OfLoop):
    """Set a loop's kind: serial, parallel (our thread pool), unroll, vector, scan, or bound to a GPU index."""

    phrase: ClassVar[str] = "{stage}: {loop} is {kind}"
    kind: str


@dataclass(frozen=True)
class ComputeAt(_OfStage):
    """Compute the part of a stage that one iteration of a consumer's loop needs, inside that loop."""

    phrase: ClassVar[str] = "{stage}: in {consumer}, loop {loop}"
    consumer: str
    loop: str


@dataclass(frozen=True)
class Inline(_OfStage):
    """Inline a stage without reduction into its readers."""

    phrase: ClassVar[str] = "{stage}"


@dataclass(frozen=True)
class CacheRead:
    """A copy of a tensor or stage in another scope, which `readers` read instead; it is a separate stage.

    Its axes are called a0, a1, ... With a `dtype` it holds the elements as the readers cast them: each is then cast
    once, however often it is read.
    """

    phrase: ClassVar[str] = "{tensor}: as {name} in {scope}, read by {readers}"
    tensor: str
    name: str
    scope: MemoryScope
    readers: tuple[str, ...]
    dtype: str | None = None


@dataclass(frozen=True)
class CacheWrite(_OfStage):
    """Compute a stage in a buffer of another scope, as a separate stage called `name`; the original stage becomes a
    copy."""

    phrase: ClassVar[str] = "{stage}: as {name} in {scope}"
    name: str
    scope: MemoryScope


@dataclass(frozen=True)
class SetScope(_OfStage):
    phrase: ClassVar[str] = "{stage}: {scope}"
    scope: MemoryScope


@dataclass(frozen=True)
class StorageAlign(_OfStage):
    """Pad a dimension of a stage's buffer so that its stride is `offset` modulo `factor`."""

    phrase: ClassVar[str] = "{stage}: dimension {dimension} to {offset} modulo {factor}"
    dimension: int
    factor: Number
    offset: Number


@dataclass(frozen=True)
class LayoutPlace(Generic[N_co]):
    """One dimension of a layout: a dimension of the stage, divided, followed by the remainder if there is one."""

    dimension: int
    by: N_co
    modulo: N_co | None = None

    def __str__(self) -> str:
        """For example 1/8%4."""
        divided = "" if self.by == 1 else f"/{self.by}"
        return f"{self.dimension}{divided}" + ("" if self.modulo is None else f"%{self.modulo}")


def whole(*dimensions: int) -> tuple[LayoutPlace[Number], ...]:
    """Dimensions in this order, none of them divided."""
    return tuple(LayoutPlace(dimension, 1) for dimension in dimensions)


@dataclass(frozen=True)
class Layout(_OfStage):
    """How a stage's buffer is laid out: dimensions divided and reordered, such as 1/8, 0, 1%8 for panels of 8."""

    phrase: ClassVar[str] = "{stage}: {order}"
    order: tuple[LayoutPlace[Number], ...]


@dataclass(frozen=True)
class RFactor(_OfLoop):
    """Split a reduction: partial results along one of its loops, in a stage `name`, which the stage then reduces."""

    phrase: ClassVar[str] = "{stage}: {loop} as {name}"
    name: str


@dataclass(frozen=True)
class Pipeline(_OfStage):
    """Keep `depth` buffers of a stage and prefetch into them."""

    phrase: ClassVar[str] = "{stage}: {depth} buffers"
    depth: Number


@dataclass(frozen=True)
class Swizzle(_OfStage):
    """Permute positions within rows of a stage's buffer so that reads of a column hit different banks."""

    phrase: ClassVar[str] = "{stage}: {mode}"
    mode: Number


@dataclass(frozen=True)
class Tensorize(_OfLoop):
    """Replace the loops from this one inwards by an intrinsic, given by name."""

    phrase: ClassVar[str] = "{stage}: {loop} by {intrinsic}"
    intrinsic: str


Step: TypeAlias = (
    Split | Reverse | Reorder | Fuse | Annotate | ComputeAt | Inline | CacheRead | CacheWrite | SetScope
    | StorageAlign | Layout | RFactor | Pipeline | Swizzle | Tensorize
)  # fmt: skip
Schedule: TypeAlias = "tuple[Step, ...]"


_NAMES = {kind: re.sub("(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower() for kind in get_args(Step)}
_NUMBERS = {kind: [f.name for f in fields(kind) if "Number" in str(f.type)] for kind in get_args(Step)}


def to_text(schedule: Schedule) -> str:
    """One step per line: its stage, what is done, and with what."""
    return "".join(f"{step_text(step)}\n" for step in schedule)


def step_text(step: Step) -> str:
    """For example `split C: i by 4, 8`."""
    words = {field.name: _words(getattr(step, field.name)) for field in fields(step)}
    cast = f", cast to {step.dtype}" if isinstance(step, CacheRead) and step.dtype else ""
    return f"{_NAMES[type(step)]} {step.phrase.format(**words)}{cast}"


def refused(step: Step, what: str, allowed: str | None = None) -> BadInput:
    """The error for a step that cannot be applied."""
    return BadInput(what, where=step_text(step), allowed=allowed)


def _words(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def concrete(schedule: Schedule, config: Mapping[str, Any]) -> Schedule:
    """The schedule of one config: expressions over knobs replaced by numbers."""
    return tuple(_concrete_step(step, config) for step in schedule)


def number(step: Step, value: Number) -> int:
    """A number of a concrete step."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise refused(step, f"{value!r} is not an integer", "give a config for its knobs")
    return value


def _concrete_step(step: Any, config: Mapping[str, Any]) -> Step:
    if isinstance(step, Layout):
        values = [(p, None if p.modulo is None else _value(step, p.modulo, config)) for p in step.order]
        return replace(step, order=tuple(LayoutPlace(p.dimension, _value(step, p.by, config), m) for p, m in values))
    changed: dict[str, Any] = {}
    for name in _NUMBERS[type(step)]:
        value = getattr(step, name)
        many = isinstance(value, tuple)
        changed[name] = tuple(_value(step, v, config) for v in value) if many else _value(step, value, config)
    changed_step: Step = replace(step, **changed)
    return changed_step


def _value(step: Step, value: Number, config: Mapping[str, Any]) -> int:
    number = evaluate_strictly(parse(value), config) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int):
        raise refused(step, f"{value!r} is {number!r}", "an integer")
    return number
