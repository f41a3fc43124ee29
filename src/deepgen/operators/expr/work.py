"""The work of an expression: operations where they are needed, and elements that are actually read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from deepgen.operators.base import Array, Work
from deepgen.operators.expr.contraction import contraction, parts
from deepgen.operators.expr.index import Index
from deepgen.operators.expr.interpret import Computed, ElementBlock, evaluate
from deepgen.operators.expr.nodes import (
    Axis,
    Binary,
    Cast,
    Const,
    Expression,
    Place,
    Read,
    Select,
    Stage,
    Unary,
    Value,
    children,
    reads,
    walk,
)
from deepgen.vocabulary.dtypes import dtype

_MOST_POINTS = 1 << 22  # for which conditions are evaluated together; with more points, all count


def work(expression: Expression) -> Work:
    operations: Counter[str] = Counter()
    read: dict[str, int] = {tensor.name: 0 for tensor in expression.tensors}
    for stage in expression.stages:
        look = _Look(expression, stage)
        operations.update(look.operations())
        for name, elements in look.elements_read():
            if name in read:
                read[name] = max(read[name], elements)
    of = {tensor.name: dtype(tensor.dtype).bytes for tensor in expression.tensors}
    written = sum(prod(expression.shape_of(n)) * dtype(expression.dtype_of(n)).bytes for n in expression.outputs)
    return Work(
        {name: count for name, count in sorted(operations.items()) if count},
        read=sum(elements * of[name] for name, elements in read.items()),
        written=written,
    )


@dataclass(frozen=True)
class _Group:
    """Axes that conditions or indices link, with those conditions, and the dimensions of those indices."""

    axes: tuple[Axis, ...] = ()
    conditions: tuple[Value, ...] = ()
    dimensions: tuple[int, ...] = ()

    @property
    def points(self) -> int:
        return prod(axis.extent for axis in self.axes)


class _Look:
    """One stage, and the number of its points that satisfy conditions on indices."""

    def __init__(self, expression: Expression, stage: Stage) -> None:
        self.expression, self.stage = expression, stage
        self.axes = {axis.name: axis for axis in (*stage.axes, *stage.reduced)}
        self.nothing = Computed(expression, {})

    def operations(self) -> Counter[str]:
        stage = self.stage
        counts: Counter[str] = Counter()
        product = contraction(self.expression, stage)
        # A product is computed in the arithmetic of its factors, and so is the sum.
        narrow = product.formats[0] if product is not None else None
        self._count(stage.value, (), counts, narrow)
        if stage.reduce is not None:
            counts[narrow or stage.dtype] += self.points(_zero_unless(stage.value))
        return counts

    def _count(self, value: Value, under: tuple[Value, ...], counts: Counter[str], narrow: str | None) -> None:
        if isinstance(value, Select) and _of_indices(value.condition):
            inside = (*under, *parts(value.condition))
            self._count(value.then, inside, counts, narrow)
            other: Counter[str] = Counter()
            self._count(value.otherwise, under, other, narrow)
            if other:  # only where the condition does not hold
                less: Counter[str] = Counter()
                self._count(value.otherwise, inside, less, narrow)
                counts.update(other - less)
            return
        if isinstance(value, Binary) and value.op == "mul":
            under = (*under, *_zero_unless(value))
        for child in children(value):
            self._count(child, under, counts, None)
        if isinstance(value, (Unary, Binary)) and value.dtype != "bool":
            counts[narrow or value.dtype] += self.points(under)

    def points(self, conditions: Sequence[Value]) -> int:
        """How many points of the stage satisfy all of these conditions."""
        total = 1
        for group in self._components(conditions, ()):
            total *= int(np.count_nonzero(self._mask(group))) if group.conditions else group.points
        return total

    def elements_read(self) -> Iterable[tuple[str, int]]:
        """For each read of a tensor, the number of elements that it touches."""
        yield from self._elements(self.stage.value, ())

    def _elements(self, value: Value, under: tuple[Value, ...]) -> Iterable[tuple[str, int]]:
        if isinstance(value, Read):
            yield value.tensor, self._distinct(value, under)
        for place, child in enumerate(children(value)):
            guarded = isinstance(value, Select) and place == 1 and _of_indices(value.condition)
            yield from self._elements(child, (*under, *parts(children(value)[0])) if guarded else under)

    def _distinct(self, read: Read, under: tuple[Value, ...]) -> int:
        shape, total = self.expression.shape_of(read.tensor), 1
        for group in self._components(under, read.indices):
            most = prod(shape[d] for d in group.dimensions)
            alone = len(group.dimensions) == 1 and len(group.axes) == 1 and not group.conditions
            if alone or not group.dimensions or group.points > _MOST_POINTS:
                total *= min(most, group.points)
                continue
            block, place = _whole(group.axes), np.zeros((), np.int64)
            for d in group.dimensions:
                place = place * shape[d] + evaluate(Place(read.indices[d]), block, self.nothing).values
            total *= int(np.unique(np.broadcast_to(place, block.shape)[self._mask(group)]).size)
        return total

    def _components(self, conditions: Sequence[Value], indices: Sequence[Index]) -> list[_Group]:
        groups = [_Group((axis,)) for axis in self.axes.values()]
        for condition in conditions:
            groups = _tied(groups, _iterators(condition), _Group(conditions=(condition,)))
        for place, index in enumerate(indices):
            groups = _tied(groups, index.iterators, _Group(dimensions=(place,)))
        return groups

    def _mask(self, group: _Group) -> Array:
        """Where all conditions of a group hold."""
        block, mask = _whole(group.axes), np.ones((), bool)
        if group.points <= _MOST_POINTS:
            for condition in group.conditions:
                mask = mask & evaluate(condition, block, self.nothing).values
        return np.broadcast_to(mask, block.shape)


def _tied(groups: list[_Group], names: frozenset[str], by: _Group) -> list[_Group]:
    """Merges the groups of these axes, and adds the condition or index that links them."""
    met = [group for group in groups if any(axis.name in names for axis in group.axes)]
    if not met:
        return groups
    joined = [*met, by]
    one = _Group(
        tuple(axis for group in joined for axis in group.axes),
        tuple(condition for group in joined for condition in group.conditions),
        tuple(place for group in joined for place in group.dimensions),
    )
    return [*(group for group in groups if group not in met), one]


def _whole(axes: tuple[Axis, ...]) -> ElementBlock:
    return ElementBlock(axes, tuple(0 for _ in axes), tuple(axis.extent for axis in axes))


def _of_indices(condition: Value) -> bool:
    return not reads(condition)


def _iterators(value: Value) -> frozenset[str]:
    return frozenset().union(*(node.index.iterators for node in walk(value) if isinstance(node, Place)))


def _zero_unless(value: Value) -> tuple[Value, ...]:
    """Conditions without which a value is zero and needs no work."""
    if isinstance(value, Cast):
        return _zero_unless(value.value)
    if isinstance(value, Binary) and value.op == "mul":
        return (*_zero_unless(value.left), *_zero_unless(value.right))
    zero = isinstance(value, Select) and isinstance(value.otherwise, Const) and value.otherwise.value == 0
    if zero and isinstance(value, Select) and _of_indices(value.condition):
        return (*parts(value.condition), *_zero_unless(value.then))
    return ()
