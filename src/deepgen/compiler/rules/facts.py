"""Facts about an expression for rules: which stages read which, along which axes memory is contiguous, what is
reused."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from deepgen.operators.expr.index import Index
from deepgen.operators.expr.nodes import (
    Axis,
    Binary,
    Compare,
    Expression,
    Read,
    Select,
    Stage,
    Unary,
    Value,
    reads,
    walk,
)

_COSTLY = ("exp", "log", "tanh", "erf", "sigmoid", "sin", "cos")  # functions that are not computed twice without need


def is_summed(stage: Stage) -> bool:
    """Whether its elements are computed from many: it gets its own loops, before the stages that read it."""
    return stage.reduce is not None or stage.scan is not None


def computed_in_blocks(expression: Expression) -> dict[str, Stage]:
    """The stages that a block may compute for itself where it reads them: neither sums, nor results, which are stored
    whole."""
    return {one.name: one for one in expression.stages if not is_summed(one) and one.name not in expression.outputs}


def elements(stage: Stage) -> int:
    """How many elements each result is reduced from."""
    return prod(axis.extent for axis in stage.reduced)


def longest(stage: Stage) -> Axis:
    return max(stage.reduced, key=lambda axis: axis.extent)


def readers(expression: Expression, name: str) -> tuple[Stage, ...]:
    return tuple(s for s in expression.stages if any(r.tensor == name for r in reads(s.value)))


def reads_of(stage: Stage, name: str) -> tuple[Read, ...]:
    return tuple(r for r in reads(stage.value) if r.tensor == name)


def stride(expression: Expression, read: Read, axis: str) -> int | None:
    """How many elements of a dense tensor a read moves per step along the axis; None if that varies."""
    total, size = 0, 1
    for index, length in zip(reversed(read.indices), reversed(expression.shape_of(read.tensor)), strict=True):
        moved = index.step(axis)
        if moved is None:
            return None
        total += moved * size
        size *= length
    return total


def free_name(expression: Expression, name: str) -> str:
    """A name that no tensor and no stage has."""
    taken = {tensor.name for tensor in expression.tensors} | {stage.name for stage in expression.stages}
    return next(free for free in (f"{name}{i or ''}" for i in range(len(taken) + 1)) if free not in taken)


def plain(index: Index) -> str | None:
    """The iterator that an index consists of, if it is nothing else."""
    return index.plain


def same_places(consumer: Stage, producer: Stage) -> tuple[str, ...] | None:
    """The consumer's axis for each axis of the producer, if it only reads the element at its own position."""
    places = {tuple(plain(i) for i in r.indices) for r in reads_of(consumer, producer.name)}
    if len(places) != 1 or consumer.reduce is not None:
        return None
    names = next(iter(places))
    axes = [axis.name for axis in consumer.axes]
    if None in names or sorted(n for n in names if n) != sorted(axes):
        return None
    return tuple(n for n in names if n)


def places_in(consumer: Stage, sums: Stage) -> dict[str, str]:
    """The consumer's axis for each axis of the sums."""
    return dict(zip((axis.name for axis in sums.axes), same_places(consumer, sums) or (), strict=True))


def fusible_consumer(expression: Expression, stage: Stage) -> Stage | None:
    """The only stage that reads this one, if it does so elementwise and can take over its tiles."""
    if stage.name in expression.outputs:
        return None
    consumers = readers(expression, stage.name)
    if len(consumers) != 1 or consumers[0].scan is not None or same_places(consumers[0], stage) is None:
        return None
    return consumers[0]


def costly(stage: Stage) -> bool:
    """Whether computing an element again costs more than storing it."""
    return any(costly_value(node) for node in walk(stage.value))


def costly_value(value: Value) -> bool:
    """Whether the last operation of a value is costly."""
    return (isinstance(value, Unary) and value.op in _COSTLY) or (isinstance(value, Binary) and value.op == "pow")


def guarded(stage: Stage) -> bool:
    """Whether the value depends on the position, as with padding."""
    return any(isinstance(n, (Select, Compare)) for n in walk(stage.value))


def depends(read: Read, axis: str) -> bool:
    return any(axis in index.iterators for index in read.indices)


_STREAMED, _MANY_ROWS = 1024, 1024


def streamed(scan: Stage) -> bool:
    """Whether rows are so many that each is scanned by a warp from its beginning to its end, however long it is."""
    *rows, last = scan.axes
    return scan.scan == last.name and last.extent % _STREAMED == 0 and prod(axis.extent for axis in rows) >= _MANY_ROWS


def operands(sums: Stage) -> list[Read]:
    """Its reads, one for each tensor."""
    return list({read.tensor: read for read in reads(sums.value)}.values())


def shareable(sums: Stage) -> bool:
    """Whether a block reads elements more than once, and each tensor is read only once in the expression."""
    candidates = operands(sums)
    return len(reads(sums.value)) == len(candidates) > 1 and not sums.scan and all(reused(r, sums) for r in candidates)


def reused(read: Read, sums: Stage) -> bool:
    """Whether several results read the same element: along an axis on which the read does not depend, or through
    overlapping taps."""
    own, taps = ([a for a in axes if a.extent > 1] for axes in (sums.axes, sums.reduced))
    return any(not depends(read, axis.name) for axis in own) or any(
        _overlap(index, [a for a in own if a.name in index.iterators], [a for a in taps if a.name in index.iterators])
        for index in read.indices
    )


def _overlap(index: Index, own: Sequence[Axis], taps: Sequence[Axis]) -> bool:
    """Whether results share taps. Parts of a sum are contiguous."""
    steps = [index.step(axis.name) for axis in own]
    reach = sum(abs(index.step(axis.name) or axis.extent) * (axis.extent - 1) for axis in taps)
    return bool(taps) and any(step is None or abs(step) <= reach for step in steps)
