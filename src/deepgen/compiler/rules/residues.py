"""Split-Residues: a sum in which a stride leaves gaps, as in a transposed convolution, without multiplying by zeros.

Such a sum reads under a guard on a remainder: (i - r + c) % s == 0. For each i only every s-th r contributes, and which
these are depends on i % s alone. So i becomes two axes, i = outer * s + residue, and r runs only over those that
contribute: r = (residue + c) % s + iteration * s. A last stage puts the residues together. If r has only one iteration,
as in a filter of one tap, only one residue has products: the others are zero, which the last stage writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from deepgen.compiler.rules import facts
from deepgen.compiler.rules.padding import guard
from deepgen.operators.expr.contraction import factors
from deepgen.operators.expr.index import Index, Iter, Quotient, Remainder, iterator
from deepgen.operators.expr.nodes import (
    Axis,
    Binary,
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
    reads,
    substituted,
    with_reads,
)


@dataclass(frozen=True)
class _Gap:
    """A guard (axis - over + shift) % stride == 0."""

    axis: Axis
    over: Axis
    shift: int
    stride: int

    @property
    def single(self) -> bool:
        """Whether only one residue has products."""
        return self.over.extent == 1

    @property
    def only(self) -> int:
        """The residue that has products."""
        return -self.shift % self.stride

    @property
    def outer(self) -> Axis:
        first = self.only if self.single else 0
        return Axis(f"{self.axis.name}o", -(-(self.axis.extent - first) // self.stride))

    @property
    def residue(self) -> Axis:
        return Axis(f"{self.axis.name}s", self.stride)

    @property
    def iterations(self) -> Axis:
        return replace(self.over, extent=-(-self.over.extent // self.stride))

    @property
    def place(self) -> Index:
        """The position along the axis, as an index over the two axes that replace it."""
        return iterator(self.outer.name) * self.stride + self._residue

    @property
    def _residue(self) -> Index:
        return Index((), self.only) if self.single else iterator(self.residue.name)

    @property
    def step(self) -> Index:
        """The step of the sum, as an index over its iterations."""
        iteration = iterator(self.over.name)
        return iteration if self.single else (self._residue + self.shift) % self.stride + iteration * self.stride

    @property
    def met(self) -> Index:
        """(axis - over + shift) // stride."""
        first = (self._residue + self.shift) // self.stride
        return iterator(self.outer.name) + first - iterator(self.over.name)

    @property
    def of(self) -> Index:
        return iterator(self.axis.name) - iterator(self.over.name) + self.shift


def with_residues(expression: Expression) -> Expression:
    """The expression with such sums restricted to the terms that contribute."""
    for stage in expression.stages:
        gaps, consumer = _gaps(stage), facts.fusible_consumer(expression, stage)
        if gaps and (consumer is None or _readable(consumer, stage, gaps)):
            return with_residues(_split(expression, stage, consumer, gaps))
    return expression


def _gaps(stage: Stage) -> list[_Gap]:
    """The gaps of a sum of products with one guarded factor; none if two gaps share an axis, or if some residues have
    more products than others."""
    guards = [select for side in factors(stage) or () if (select := guard(side)) is not None]
    if len(guards) != 1 or guards[0].otherwise != Const(0, guards[0].dtype) or len(reads(stage.value)) != 2:
        return []
    gaps = dict.fromkeys(gap for c in _conjuncts(guards[0].condition) if (gap := _gap(stage, c)) is not None)
    axes, over = {gap.axis for gap in gaps}, {gap.over for gap in gaps}
    # An additional iteration would multiply zero by a value that may be infinite.
    whole = all(gap.single or gap.over.extent % gap.stride == 0 for gap in gaps)
    return list(gaps) if len(axes) == len(over) == len(gaps) and whole else []


def _gap(stage: Stage, condition: Value) -> _Gap | None:
    if not isinstance(condition, Compare) or condition.op != "eq" or condition.right != Const(0, "i64"):
        return None
    asked = condition.left.index if isinstance(condition.left, Place) else Index()
    atom = asked.terms[0][0] if len(asked.terms) == 1 and not asked.constant else None
    if not isinstance(atom, Remainder):
        return None
    steps = {term.name: times for term, times in atom.of.terms if isinstance(term, Iter)}
    up = [axis for axis in stage.axes if steps.get(axis.name) == 1]
    down = [axis for axis in stage.reduced if steps.get(axis.name) == -1]
    if len(atom.of.terms) != 2 or len(up) != 1 or len(down) != 1:
        return None
    gap = _Gap(up[0], down[0], atom.of.constant, atom.by)
    return gap if gap.outer.extent > 0 else None


def _readable(consumer: Stage, sums: Stage, gaps: Sequence[_Gap]) -> bool:
    """Whether a stage's other operands exist beyond the end of its axes, in the last step of residues."""
    moved = _moved(gaps, sums, consumer)
    ragged = [gap.axis.name for gap in moved if gap.axis.extent % gap.stride and not gap.single]
    others = [read for read in reads(consumer.value) if read.tensor != sums.name]
    return not any(facts.depends(read, axis) for read in others for axis in ragged)


def _moved(gaps: Sequence[_Gap], sums: Stage, consumer: Stage) -> list[_Gap]:
    """The gaps along the axes of a stage that reads the sums elementwise."""
    named, to = {axis.name: axis for axis in consumer.axes}, facts.places_in(consumer, sums)
    return [replace(gap, axis=named[to[gap.axis.name]]) for gap in gaps]


def _split(expression: Expression, sums: Stage, consumer: Stage | None, gaps: Sequence[_Gap]) -> Expression:
    iterations = {gap.over: gap.iterations for gap in gaps}
    reduced = tuple(iterations.get(axis, axis) for axis in sums.reduced)
    stages = [replace(sums, axes=_axes(sums, gaps), value=_products(expression, sums, gaps), reduced=reduced)]
    last, own = sums, list(gaps)
    if consumer is not None:
        last, own = consumer, _moved(gaps, sums, consumer)
        to, outer = facts.places_in(consumer, sums), {gap.axis.name: gap.outer.name for gap in own}
        at = [
            *(gap.residue.name for gap in _several(own)),
            *(outer.get(to[axis.name], to[axis.name]) for axis in sums.axes),
        ]
        read = Read(sums.name, tuple(map(iterator, at)), sums.dtype)
        moved = substituted(consumer.value, {gap.axis.name: gap.place for gap in own})
        value = with_reads(moved, lambda other: read if other.tensor == sums.name else other)
        stages.append(replace(consumer, axes=_axes(consumer, own), value=value))
    stages[-1] = replace(stages[-1], name=facts.free_name(expression, f"{last.name}_parts"))
    by = {gap.axis.name: gap.stride for gap in own}
    residues = [iterator(gap.axis.name) % gap.stride for gap in _several(own)]
    whole = tuple(iterator(axis.name) // by.get(axis.name, 1) for axis in last.axes)
    parts: Value = Read(stages[-1].name, (*residues, *whole), last.dtype)
    if there := [_is(iterator(gap.axis.name) % gap.stride, gap.only) for gap in own if gap.single]:
        nothing = Const(0, sums.dtype)
        empty = nothing if consumer is None else with_reads(consumer.value, _instead(sums.name, nothing))
        if isinstance(empty, Cast) and empty.value == nothing:
            empty = Const(0, empty.dtype)
        parts = Select(_all(there), parts, empty)
    stages.append(Stage(last.name, last.axes, parts))
    new = {sums.name: stages[:1], last.name: stages[-2:]} if consumer is not None else {sums.name: stages}
    return replace(expression, stages=tuple(s for old in expression.stages for s in new.get(old.name, [old])))


def _several(gaps: Sequence[_Gap]) -> list[_Gap]:
    return [gap for gap in gaps if not gap.single]


def _instead(name: str, value: Value) -> Callable[[Read], Value]:
    return lambda read: value if read.tensor == name else read


def _axes(stage: Stage, gaps: Sequence[_Gap]) -> tuple[Axis, ...]:
    outer = {gap.axis: gap.outer for gap in gaps}
    return (*(gap.residue for gap in _several(gaps)), *(outer.get(axis, axis) for axis in stage.axes))


def _products(expression: Expression, sums: Stage, gaps: Sequence[_Gap]) -> Value:
    """The summed value over the new axes."""
    value = sums.value
    assert isinstance(value, Binary)
    asked = {_is(gap.of % gap.stride, 0) for gap in gaps}

    def side(operand: Value) -> Value:
        select, (read,) = guard(operand), reads(operand)
        inner: Value = replace(read, indices=tuple(_index(i, gaps) for i in read.indices))
        if select is not None:
            kept = [_in_indices(c, gaps) for c in _conjuncts(select.condition) if c not in asked]
            conditions = list(dict.fromkeys([*kept, *_outside(expression, sums, gaps, reads(inner)[0])]))
            inner = Select(_all(conditions), inner, Const(0, read.dtype)) if conditions else inner
        return replace(operand, value=inner) if isinstance(operand, Cast) else inner

    return replace(value, left=side(value.left), right=side(value.right))


def _outside(expression: Expression, sums: Stage, gaps: Sequence[_Gap], read: Read) -> Iterator[Value]:
    """Conditions for reads that may leave their tensor: in the last step of residues, and in a sum's last iteration."""
    iterations = {gap.over: gap.iterations for gap in gaps}
    axes = (*_axes(sums, gaps), *(iterations.get(axis, axis) for axis in sums.reduced))
    ranges = {axis.name: (0, axis.extent - 1) for axis in axes}
    for index, size in zip(read.indices, expression.shape_of(read.tensor), strict=True):
        low, high = index.bounds(ranges)
        if low < 0:
            yield Compare("le", Const(0, "i64"), Place(index))
        if high >= size:
            yield _below(index, size)


def _all(conditions: Sequence[Value]) -> Value:
    return reduce(lambda a, b: Logic("and", a, b), conditions)


def _is(index: Index, number: int) -> Compare:
    return Compare("eq", Place(index), Const(number, "i64"))


def _below(index: Index, end: int) -> Value:
    return Compare("lt", Place(index), Const(end, "i64"))


def _in_indices(value: Value, gaps: Sequence[_Gap]) -> Value:
    """A condition over the new axes."""
    if isinstance(value, (Compare, Logic)):
        return replace(value, left=_in_indices(value.left, gaps), right=_in_indices(value.right, gaps))
    return replace(value, index=_index(value.index, gaps)) if isinstance(value, Place) else value


def _index(index: Index, gaps: Sequence[_Gap]) -> Index:
    total = Index((), index.constant)
    for atom, times in index.terms:
        met = [gap.met for gap in gaps if atom == Quotient(gap.of, gap.stride)]
        by = {gap.axis.name: gap.place for gap in gaps} | {gap.over.name: gap.step for gap in gaps}
        total = total + (met[0] if met else Index(((atom, 1),)).substitute(by)) * times
    return total


def _conjuncts(condition: Value) -> Iterable[Value]:
    if isinstance(condition, Logic) and condition.op == "and":
        return (*_conjuncts(condition.left), *_conjuncts(condition.right))
    return (condition,)
