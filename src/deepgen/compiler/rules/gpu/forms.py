"""Expressions in the form that rules for GPUs know: without reductions of a single element, casts at their readers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

from deepgen.compiler.rules import facts
from deepgen.operators.expr.index import Index, iterator
from deepgen.operators.expr.nodes import (
    Axis,
    Cast,
    Const,
    Expression,
    Place,
    Read,
    Select,
    Stage,
    Value,
    reads,
    substituted,
    with_reads,
)
from deepgen.vocabulary import dtype

_MOST_SHORT = 1 << 31


def cast_when_read(expression: Expression) -> Expression:
    """The expression with casts to wider formats moved to the readers: copies then have the narrower format."""
    stages = list(expression.stages)
    for n, stage in enumerate(stages):
        if stage.reduce is None and isinstance(stage.value, Cast) and stage.name not in expression.outputs:
            inner = stage.value.value
            if dtype(inner.dtype).bytes > dtype(stage.dtype).bytes:
                continue
            stages = [replace(s, value=with_reads(s.value, _cast(stage.name, inner.dtype))) for s in stages]
            stages[n] = replace(stage, value=inner)
    return replace(expression, stages=tuple(stages))


def _cast(name: str, of: str) -> Callable[[Read], Value]:
    return lambda read: Cast(replace(read, dtype=of), read.dtype) if read.tensor == name else read


def with_ones(expression: Expression) -> Expression:
    """The expression without reductions of a single element, and with what depends on a single number in the places of
    rows: a stage that reads it has an axis for it."""
    stages = [_without_one(stage) for stage in expression.stages]
    shapes = {stage.name: stage.shape for stage in stages}

    def along(stage: Stage) -> Callable[[Read], Value]:
        def read_along(read: Read) -> Value:
            ones = zip(read.indices, shapes.get(read.tensor, ()), stage.axes, strict=False)
            first = [iterator(own.name) if (at, size, own.extent) == (Index(), 1, 1) else at for at, size, own in ones]
            return replace(read, indices=(*first, *read.indices[len(first) :]))

        return read_along

    stages = [_as_row(expression, stage) for stage in stages]
    return replace(expression, stages=tuple(replace(one, value=with_reads(one.value, along(one))) for one in stages))


def with_row_values(expression: Expression) -> Expression:
    """The expression in which reductions over rows, such as the mean of a loss, read a value for each row, if that
    depends on several reductions of the row: one launch then reduces a row in all these ways, and reads it once."""
    sums = {stage.name: stage for stage in expression.stages if stage.reduce is not None and not stage.scan}
    stages: list[Stage] = []
    for stage in expression.stages:
        read = [one for one in reads(stage.value) if one.tensor in sums]
        places = {tuple(facts.plain(index) or "" for index in one.indices) for one in read}
        tensors = [{one.tensor for one in reads(sums[name].value)} for name in {one.tensor for one in read}]
        over = {axis.name: axis for axis in stage.reduced}
        own = any(facts.depends(one, axis.name) for one in reads(stage.value) for axis in stage.axes)
        row = next(iter(places)) if len(places) == 1 else ()
        if stage.name not in sums or own or len(tensors) < 2 or not set.intersection(*tensors) or {*row} != {*over}:
            stages.append(stage)
            continue
        value = Stage(f"{stage.name}.row", tuple(over[name] for name in row), stage.value)
        at = tuple(iterator(name) for name in row)
        stages += [value, replace(stage, value=Read(value.name, at, stage.value.dtype))]
    return replace(expression, stages=tuple(stages))


def with_short_places(expression: Expression) -> Expression:
    """The expression with places of extremes reduced as numbers of 32 bits, which threads exchange at once."""
    stages = [part for stage in expression.stages for part in _short(stage)]
    return replace(expression, stages=tuple(stages))


def _short(stage: Stage) -> Sequence[Stage]:
    value = stage.value
    if stage.reduce not in ("min", "max") or stage.scan or not stage.reduced:
        return (stage,)
    match value:
        case Select(_, Place(index, "i64") as place, Const(number, "i64") as beyond):
            low, high = index.bounds({axis.name: (0, axis.extent - 1) for axis in (*stage.axes, *stage.reduced)})
            if min(low, number) >= -_MOST_SHORT and max(high, number) < _MOST_SHORT:
                pair = replace(value, then=replace(place, dtype="i32"), otherwise=replace(beyond, dtype="i32"))
                short = Stage(f"{stage.name}.short", stage.axes, pair, stage.reduce, stage.reduced)
                at = tuple(iterator(axis.name) for axis in stage.axes)
                return (short, Stage(stage.name, stage.axes, Cast(Read(short.name, at, "i32"), "i64")))
    return (stage,)


def _without_one(stage: Stage) -> Stage:
    ones = {axis.name: 0 for axis in stage.reduced}
    alone = prod(axis.extent for axis in stage.reduced) == 1 and stage.reduce is not None
    if not alone or (stage.scan and next(axis for axis in stage.axes if axis.name == stage.scan).extent > 1):
        return stage
    return Stage(stage.name, stage.axes, substituted(stage.value, ones))


def _as_row(expression: Expression, stage: Stage) -> Stage:
    """A result of one dimension that depends on single numbers, as a row of a matrix with one row."""
    single = {one.name for one in expression.stages if prod(one.shape) == 1}
    last = stage.reduce is None and stage.name in expression.outputs and not facts.readers(expression, stage.name)
    if len(stage.axes) != 1 or stage.shape == (1,) or not last or not single & {r.tensor for r in reads(stage.value)}:
        return stage
    return replace(stage, axes=(Axis(f"{stage.axes[0].name}.row", 1), *stage.axes))
