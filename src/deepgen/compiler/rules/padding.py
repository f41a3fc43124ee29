"""Lift-Padding: what a sum reads under a guard becomes a separate stage, which is read without one.

Guards inside a reduction cost as much as its arithmetic. As a stage, padding can be computed once, per block, or, as
before, where it is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace

from deepgen.operators.expr.facts import of_axes
from deepgen.operators.expr.index import Atom, Index, Iter, Quotient, iterator
from deepgen.operators.expr.nodes import (
    Axis,
    Cast,
    Compare,
    Const,
    Expression,
    Logic,
    Place,
    Read,
    Select,
    Stage,
    Value,
    children,
    replaced,
)


@dataclass(frozen=True)
class _Padding:
    """A padding stage, and the read of it that replaces a guarded read."""

    stage: Stage
    read: Read


def with_padding(expression: Expression, narrow: Set[str] = frozenset()) -> Expression:
    """The expression with a stage for each guarded read of a reduction whose guard depends only on what is read.

    The stage stores the cast value, except for reductions in `narrow`: for those it keeps the tensor's own format.
    """
    stages: list[Stage] = []
    taken = {t.name for t in expression.tensors} | {s.name for s in expression.stages}
    for stage in expression.stages:
        value = stage.value
        for guarded in (
            dict.fromkeys(_guarded(value, stage.name in narrow))
            if stage.reduce is not None and stage.scan is None
            else ()
        ):
            padding = _padding(stage, guarded, taken)
            if padding is not None and _legal(padding.stage, expression):
                taken.add(padding.stage.name)
                stages.append(padding.stage)
                value = replaced(value, guarded, padding.read)
        stages.append(replace(stage, value=value))
    return replace(expression, stages=tuple(stages))


def _guarded(value: Value, narrow: bool) -> Iterator[Value]:
    """Guarded reads, including the cast around them, if any, unless they are to be `narrow`."""
    if guard(value) is not None:
        yield value.value if narrow and isinstance(value, Cast) else value
    else:
        for child in children(value):
            yield from _guarded(child, narrow)


def guard(value: Value) -> Select | None:
    """The choice between a read and a constant, if the value is one, possibly under a cast."""
    inner = value.value if isinstance(value, Cast) else value
    if isinstance(inner, Select) and isinstance(inner.then, Read) and isinstance(inner.otherwise, Const):
        return inner
    return None


def _padding(stage: Stage, guarded: Value, taken: set[str]) -> _Padding | None:
    select = guard(guarded)
    assert select is not None and isinstance(select.then, Read)
    read = select.then
    ranges = {axis.name: (0, axis.extent - 1) for axis in (*stage.axes, *stage.reduced)}
    axes: list[Axis] = []
    places: list[Index] = []
    along: dict[object, Index] = {}
    for index in read.indices:
        core = _core(index)
        if not core.terms:
            continue  # a single index, such as the height of a filter for rows
        low, high = core.bounds(ranges)
        name = f"p{len(axes)}"
        axes.append(Axis(name, high - low + 1))
        places.append(core - low)
        along.setdefault(core.terms, iterator(name) + low)
    if not axes:
        return None
    try:
        condition = _moved(select.condition, along)
        moved = Read(read.tensor, tuple(_index(index, along) for index in read.indices), read.dtype)
    except KeyError:
        return None
    name = next(n for n in (f"{read.tensor}_padded{i or ''}" for i in range(len(taken) + 1)) if n not in taken)
    value: Value = Select(condition, moved, select.otherwise)
    if isinstance(guarded, Cast):
        value = Cast(value, guarded.dtype)
    return _Padding(Stage(name, tuple(axes), value), Read(name, tuple(places), value.dtype))


def _legal(stage: Stage, expression: Expression) -> bool:
    """Whether it reads nothing outside a tensor: an enclosing condition may have kept the guarded read inside."""
    select = guard(stage.value)
    assert select is not None and isinstance(select.then, Read)
    inside = of_axes(stage.axes).assuming(select.condition)
    ends = zip(map(inside.bounds, select.then.indices), expression.shape_of(select.then.tensor), strict=True)
    return all(low >= 0 and high < size for (low, high), size in ends)


def _core(index: Index) -> Index:
    """The sum of iterators that determines an index: the index without its constant, or the dividend of its
    quotient."""
    if len(index.terms) == 1 and isinstance(index.terms[0][0], Quotient):
        return _core(index.terms[0][0].of)
    return index - index.constant


def _moved(value: Value, along: Mapping[object, Index]) -> Value:
    """A condition over the axes of the new stage. Raises KeyError if it depends on anything else."""
    if isinstance(value, (Logic, Compare)):
        return replace(value, left=_moved(value.left, along), right=_moved(value.right, along))
    if isinstance(value, Place):
        return replace(value, index=_index(value.index, along))
    if isinstance(value, Const):
        return value
    raise KeyError


def _index(index: Index, along: Mapping[object, Index]) -> Index:
    if not index.terms:
        return index
    if index.terms in along:
        return along[index.terms] + index.constant
    total = Index((), index.constant)
    for atom, times in index.terms:
        total = total + _atom(atom, along) * times
    return total


def _atom(atom: Atom, along: Mapping[object, Index]) -> Index:
    if isinstance(atom, Iter):
        return along[Index(((atom, 1),)).terms]
    inner = _index(atom.of, along)
    return inner // atom.by if isinstance(atom, Quotient) else inner % atom.by
