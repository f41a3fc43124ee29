"""Reductions that read the result of another, over the same elements: a variance, or the sum of a softmax.

Blocks reduce parts of long rows both ways while a part is in their caches: memory is read once. From the sums of
squares around each part's own mean, and from sums of exponentials of what is below each part's own maximum, follow
those of the whole row: sum (x - m)^2 = sum over parts of (sum (x - m_p)^2 + n_p (m_p - m)^2), for any m.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf, prod

from deepgen.compiler.rules import facts
from deepgen.compiler.rules.gpu.columns import why_no_columns
from deepgen.compiler.rules.gpu.parts import even_parts
from deepgen.compiler.rules.gpu.plan import WIDEST
from deepgen.operators.expr.index import Index, iterator
from deepgen.operators.expr.nodes import (
    Axis,
    Binary,
    Compare,
    Const,
    Expression,
    Place,
    Read,
    Select,
    Stage,
    Unary,
    Value,
    reads,
    substituted,
    with_reads,
)
from deepgen.targets import Gpu
from deepgen.vocabulary import dtype

_BYTES, _LEAST_BYTES = 32 << 10, 4 << 10  # of a part, which stays in L1 until it is read again
_LEAST_PARTS, _MOST_PARTS = 8, 8192
_BLOCKS = 4  # per multiprocessor, at least
_AT_ONCE = 2  # rows of a multiprocessor
_PART, _WHICH = "piece", "which"
_BOTH = Axis(_WHICH, 2)


@dataclass(frozen=True)
class _Pair:
    """`second` reduces what `element` is to it, and the result of `first`, which `center` is: a mean, or a maximum."""

    first: Stage
    second: Stage
    element: Value
    center: Value


@dataclass(frozen=True)
class Chained:
    """An expression with such reductions of parts in one launch, and of whole rows in the next; the stages that store
    both results."""

    expression: Expression
    stored: frozenset[str]


def with_chained_parts(plain: Expression, gpu: Gpu, many: bool = False) -> Chained | None:
    """None for expressions without such reductions, or whose rows are many, unless caches cannot hold as many of these
    as are reduced at the same time, or short. `many`: only for such."""
    pairs = {pair.second.name: pair for pair in _pairs(plain)}
    ways = [(pair, count) for pair in pairs.values() if (count := _parts(pair.second, gpu, many)) > 1]
    if len(ways) != 1:
        return None
    ((pair, count),) = ways
    expression = _in_parts(plain, pair, count)
    return Chained(expression, frozenset(stage.name for stage in expression.stages if stage.axes[-1:] == (_BOTH,)))


def _pairs(plain: Expression) -> Iterator[_Pair]:
    by_name = {stage.name: stage for stage in plain.stages}
    for second in plain.stages:
        value = second.value
        if second.reduce != "sum" or second.scan or not second.axes or why_no_columns(second) is None:
            continue
        match value:
            case Binary("mul", Binary("sub", element, center) as left, right) if left == right:
                how = "sum"
            case Unary("exp", Binary("sub", element, center)):
                how = "max"
            case _:
                continue
        over = {axis.name for axis in second.reduced}
        names = {read.tensor for read in reads(center)}
        firsts = [by_name[name] for name in names if name in by_name and by_name[name].reduce is not None]
        rows = all(not index.iterators & over for read in reads(center) for index in read.indices)
        if len(firsts) != 1 or not rows or {firsts[0].name, second.name} & {*plain.outputs}:
            continue
        if (how == "sum" or isinstance(center, Read)) and _same_elements(firsts[0], second, element, how):
            yield _Pair(firsts[0], second, element, center)


def _same_elements(first: Stage, second: Stage, element: Value, how: str) -> bool:
    axes = [*zip(first.axes, second.axes, strict=False), *zip(first.reduced, second.reduced, strict=False)]
    same = [one.extent for one, _ in axes] == [other.extent for _, other in axes]
    counts = (len(first.axes), len(first.reduced)) == (len(second.axes), len(second.reduced))
    names: dict[str, Index | int] = {other.name: iterator(one.name) for one, other in axes}
    alike = (first.reduce, first.scan, first.dtype) == (how, None, second.dtype)
    return same and counts and alike and substituted(element, names) == first.value


def _parts(stage: Stage, gpu: Gpu, many: bool) -> int:
    """How many parts to reduce each row in."""
    elements, rows = facts.elements(stage), prod(stage.shape)
    over = {axis.name for axis in stage.reduced}
    streams = [read for read in reads(stage.value) if any(index.iterators & over for index in read.indices)]
    size = min((dtype(read.dtype).bytes for read in streams), default=1)
    along = facts.longest(stage)
    longest = along.extent // (WIDEST if along == stage.reduced[-1] else 1)  # runs are along the last
    busy = min(gpu.multiprocessors * _BLOCKS // rows, elements * size // _LEAST_BYTES)  # parts for all multiprocessors
    count = min(_MOST_PARTS, max(elements * size // _BYTES, busy), longest)
    few = rows * _BLOCKS <= gpu.multiprocessors and not many
    row = elements * size
    beyond = row > gpu.shared_per_block and min(rows, _AT_ONCE * gpu.multiprocessors) * row > gpu.l2_bytes
    return even_parts(stage, count) if count >= _LEAST_PARTS and (few or beyond) else 1


def _in_parts(plain: Expression, pair: _Pair, count: int) -> Expression:
    first, second, kind = pair.first, pair.second, pair.second.dtype
    along = facts.longest(second)
    length = -(-along.extent // count)
    part = Axis(_PART, -(-along.extent // length))
    own = replace(along, extent=length)
    place = iterator(_PART) * length + iterator(along.name)
    row = tuple(iterator(axis.name) for axis in second.axes)
    reduced = tuple(own if axis == along else axis for axis in second.reduced)
    axes, at = (part, *second.axes), (iterator(_PART), *row)
    squares = first.reduce == "sum"
    beside = facts.elements(second) // along.extent
    numbers: Value = Const(float(length * beside), kind)
    rest = along.extent - length * (part.extent - 1)
    if rest < length:
        whole = Compare("lt", Place(iterator(_PART)), Const(part.extent - 1, "i64"))
        numbers = Select(whole, numbers, Const(float(rest * beside), kind))

    def inside(value: Value, otherwise: float) -> Value:
        moved = substituted(value, {along.name: place})
        if rest == length:
            return moved
        real = Compare("lt", Place(place), Const(along.extent, "i64"))
        return Select(real, moved, Const(otherwise, kind))

    names = [f"{first.name}.parts", f"{second.name}.parts"]
    one, other = (Read(name, at, kind) for name in names)
    center: Value = Binary("div", one, numbers) if squares else one
    away = Binary("sub", pair.element, center)
    values = (Binary("mul", away, away) if squares else Unary("exp", away), pair.element)
    parts = [
        Stage(names[0], axes, inside(values[1], 0.0 if squares else -inf), first.reduce, reduced),
        Stage(names[1], axes, inside(values[0], 0.0), "sum", reduced),
    ]
    is_first = Compare("eq", Place(iterator(_WHICH)), Const(0, "i64"))
    both = Stage(f"{second.name}.both", (*axes, _BOTH), Select(is_first, one, other))
    one, other = (Read(both.name, (*at, Index() + n), kind) for n in range(2))
    total = Stage(first.name, second.axes, one, first.reduce, (part,))
    if squares:
        apart = Binary("sub", Binary("div", one, numbers), pair.center)
        value: Value = Binary("add", other, Binary("mul", numbers, Binary("mul", apart, apart)))
    else:  # a part of negative infinity alone adds nothing to others
        below = Unary("exp", Binary("sub", one, pair.center))
        value = Select(Compare("lt", Const(-inf, kind), one), Binary("mul", other, below), below)
    last = Stage(second.name, second.axes, value, "sum", (part,))
    stages = [stage for stage in plain.stages if stage != first]
    n = stages.index(second)
    stages[n : n + 1] = [*parts, both, total, last]
    return _stored_together(replace(plain, stages=tuple(stages)), total, last)


def _stored_together(expression: Expression, total: Stage, last: Stage) -> Expression:
    """Both results of a row in one launch: if others than a single small stage read them, they are stored together."""
    users = {one for name in (total.name, last.name) for one in facts.readers(expression, name)} - {last}
    if len(users) == 1 and all(prod(one.shape) <= prod(last.shape) for one in users):
        return expression
    row = tuple(iterator(axis.name) for axis in last.axes)
    is_first = Compare("eq", Place(iterator(_WHICH)), Const(0, "i64"))
    names = [total.name, last.name]
    one, other = (Read(name, row, last.dtype) for name in names)
    whole = Stage(f"{last.name}.whole", (*last.axes, _BOTH), Select(is_first, one, other))

    def stored(read: Read) -> Value:
        if read.tensor not in names:
            return read
        return replace(read, tensor=whole.name, indices=(*read.indices, Index() + names.index(read.tensor)))

    n = expression.stages.index(last) + 1
    later = (replace(stage, value=with_reads(stage.value, stored)) for stage in expression.stages[n:])
    return replace(expression, stages=(*expression.stages[:n], whole, *later))
