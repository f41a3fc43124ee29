"""Compute-Once: costly values that are summed and then read again are computed once and stored.

Softmax is an example: the exponentials that a row's sum adds up are also divided by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import TypeVar

from deepgen.compiler.rules import facts
from deepgen.operators.expr.contraction import factors
from deepgen.operators.expr.index import Index, iterator
from deepgen.operators.expr.nodes import (
    PLACE_OF,
    PLACED,
    Axis,
    Binary,
    Cast,
    Compare,
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
    replaced,
    substituted,
    walk,
    with_reads,
)


@dataclass(frozen=True)
class _Costly:
    """A costly value of a stage, and the axes that it depends on, in the order in which they appear."""

    stage: Stage
    value: Value
    axes: tuple[Axis, ...]

    def renamed(self) -> Value:
        """The value with canonical axis names, which is equal for all stages that compute the same."""
        return substituted(self.value, {axis.name: iterator(f"k{n}") for n, axis in enumerate(self.axes)})

    @property
    def extents(self) -> tuple[int, ...]:
        return tuple(axis.extent for axis in self.axes)


def with_kept(expression: Expression) -> Expression:
    """The expression with a stage for each costly value that a reduction and another stage share."""
    groups: dict[tuple[Value, tuple[int, ...]], list[_Costly]] = {}
    for stage in expression.stages:
        for costly in _costly_values(stage):
            groups.setdefault((costly.renamed(), costly.extents), []).append(costly)
    for (value, extents), group in groups.items():
        users = {costly.stage.name: costly.stage for costly in group}
        if len(users) < 2 or len({stage.reduce is None for stage in users.values()}) < 2:
            continue
        axes = tuple(Axis(f"k{n}", extent) for n, extent in enumerate(extents))
        kept = Stage(facts.free_name(expression, "kept"), axes, value)
        expression = _with_stage(expression, kept, group)
    return expression


def _costly_values(stage: Stage) -> Iterator[_Costly]:
    """The outermost costly values of a stage; none if it selects: values that are not selected may not be readable."""
    if stage.scan is not None or facts.guarded(stage):
        return
    by_name = {axis.name: axis for axis in (*stage.axes, *stage.reduced)}
    for value in _outermost(stage.value):
        axes = tuple(by_name[name] for name in _iterators(value))
        if axes and not any(isinstance(node, Place) for node in walk(value)):
            yield _Costly(stage, value, axes)


def _outermost(value: Value) -> Iterator[Value]:
    if facts.costly_value(value):
        yield value
    else:
        for child in children(value):
            yield from _outermost(child)


def _iterators(value: Value) -> list[str]:
    names: dict[str, None] = {}
    for node in walk(value):
        if isinstance(node, Read):
            for index in node.indices:
                names |= dict.fromkeys(sorted(index.iterators))
    return list(names)


def _with_stage(expression: Expression, kept: Stage, group: list[_Costly]) -> Expression:
    stages: list[Stage] = []
    for stage in expression.stages:
        own = [costly for costly in group if costly.stage.name == stage.name]
        if own and kept not in stages:
            stages.append(kept)
        value = stage.value
        for costly in own:
            places = tuple(iterator(axis.name) for axis in costly.axes)
            value = replaced(value, costly.value, Read(kept.name, places, kept.value.dtype))
        stages.append(replace(stage, value=value))
    return replace(expression, stages=tuple(stages))


_Item = TypeVar("_Item")
_VECTOR = 16  # elements of the smallest format per load


def with_joined(expression: Expression, reductions: bool = False) -> Expression:
    """The expression with adjacent axes fused wherever possible, if it has sums of products, or rows of any length
    without reductions.

    With `reductions`, also if it has any reduction, and also its reduced axes.
    """
    products = any(stage.reduce == "sum" and len(reads(stage.value)) > 1 for stage in expression.stages)
    reduces = reductions and any(stage.reduce is not None for stage in expression.stages)
    if not products and not reduces and not _rows_of_any_length(expression):
        return expression
    expression = replace(expression, stages=tuple(map(_without_single, expression.stages)))
    for stage in expression.stages:
        for place in range(len(stage.axes) - 1):
            together = _together(expression, [(stage.name, place)], reductions)
            if together is not None:
                return with_joined(_joined(expression, together), reductions)
        for first, second in zip(stage.reduced, stage.reduced[1:], strict=False) if reductions else ():
            begun = _reading(expression, stage, first, second)
            together = None if None in begun else _together(expression, [one for one in begun if one], reductions)
            if together:  # if not empty: a sum of what does not depend on these axes reads nothing along them
                return with_joined(_joined(expression, together), reductions)
    return expression


def _rows_of_any_length(expression: Expression) -> bool:
    """Whether rows do not start at vector boundaries, and there are no reductions or scans: rows can then be fused into
    one."""
    outputs = [expression.stage(name) for name in expression.outputs]
    odd = any(stage.axes and stage.axes[-1].extent % _VECTOR for stage in outputs)
    return odd and not any(map(facts.is_summed, expression.stages))


def _without_single(stage: Stage) -> Stage:
    """A sum without reduced axes of extent 1, such as those of a one-pixel filter, as long as another one remains."""
    several = tuple(axis for axis in stage.reduced if axis.extent > 1)
    if not several or len(several) == len(stage.reduced):
        return stage
    gone: dict[str, Index | int] = {axis.name: 0 for axis in stage.reduced if axis.extent == 1}
    return replace(stage, value=substituted(stage.value, gone), reduced=several)


def _together(expression: Expression, begun: list[tuple[str, int]], reductions: bool) -> dict[str, int] | None:
    """The tensors in which two dimensions must be fused if these are, with the position of the first of them.

    None if something uses them separately.
    """
    together: dict[str, int] = {}
    todo = [*begun]
    while todo:
        name, place = todo.pop()
        if together.setdefault(name, place) != place:
            return None
        for stage in expression.stages:
            pairs: list[tuple[str, int] | None] = []
            for read in facts.reads_of(stage, name):
                over = _reduced_by(stage, read, place) if reductions else None
                pairs += _reading(expression, stage, *over) if over else [_read_by(stage, read, place)]
            if stage.name == name:
                pairs += _reading(expression, stage, *stage.axes[place : place + 2])
            for pair in pairs:
                if pair is None:
                    return None
                todo += [pair] if pair[0] not in together or together[pair[0]] != pair[1] else []
    return together


def _reading(expression: Expression, stage: Stage, first: Axis, second: Axis) -> list[tuple[str, int] | None]:
    """The pairs of dimensions that a stage reads along two of its axes."""
    both = {first.name, second.name}
    placed = any(isinstance(node, Place) and node.index.iterators & both for node in walk(stage.value))
    if placed or stage.scan in both:
        return [None]
    along = [read for read in reads(stage.value) if any(index.iterators & both for index in read.indices)]
    return [_side_by_side(expression, read, first, second) for read in along]


def _side_by_side(expression: Expression, read: Read, first: Axis, second: Axis) -> tuple[str, int] | None:
    """The position at which a read uses two axes directly, over whole dimensions of its tensor."""
    names = [facts.plain(index) for index in read.indices]
    places = [n for n, index in enumerate(read.indices) if index.iterators & {first.name, second.name}]
    shape = expression.shape_of(read.tensor)
    whole = [names[n] for n in places] == [first.name, second.name] and places[1] == places[0] + 1
    fits = whole and shape[places[0]] == first.extent and shape[places[1]] == second.extent
    return (read.tensor, places[0]) if fits else None


def _read_by(stage: Stage, read: Read, place: int) -> tuple[str, int] | None:
    """The axes along which a stage reads two dimensions."""
    first = _neighbours(stage.axes, read, place)
    return None if first is None else (stage.name, first)


def _reduced_by(stage: Stage, read: Read, place: int) -> tuple[Axis, Axis] | None:
    """The axes over which a stage reduces two dimensions."""
    first = _neighbours(stage.reduced, read, place)
    return None if first is None else (stage.reduced[first], stage.reduced[first + 1])


def _neighbours(axes: Sequence[Axis], read: Read, place: int) -> int | None:
    """The place of the first of two neighbouring axes along which two dimensions are read; None if there are none."""
    pairs = [(first.name, second.name) for first, second in pairwise(axes)]
    both = tuple(facts.plain(index) for index in read.indices[place : place + 2])
    return next((n for n, pair in enumerate(pairs) if pair == both), None)


def _joined(expression: Expression, together: Mapping[str, int]) -> Expression:
    def read(original: Read) -> Value:
        place = together.get(original.tensor)
        return original if place is None else replace(original, indices=_without(original.indices, place + 1))

    tensors = [
        replace(t, shape=_product(t.shape, together[t.name])) if t.name in together else t for t in expression.tensors
    ]
    stages = [_over_one(stage, together) for stage in expression.stages]
    stages = [replace(stage, value=with_reads(stage.value, read)) for stage in stages]
    stages = [_one_axis(s, together[s.name]) if s.name in together else s for s in stages]
    return replace(expression, tensors=tuple(tensors), stages=tuple(stages))


def _over_one(stage: Stage, together: Mapping[str, int]) -> Stage:
    """The stage with one axis in place of two reduced ones."""
    joined = [one for one in reads(stage.value) if one.tensor in together]
    pairs = {over for one in joined if (over := _reduced_by(stage, one, together[one.tensor]))}
    for first, second in pairs:
        place = stage.reduced.index(first)
        whole = replace(first, extent=first.extent * second.extent)
        stage = replace(stage, reduced=(*stage.reduced[:place], whole, *stage.reduced[place + 2 :]))
    return stage


def _one_axis(stage: Stage, place: int) -> Stage:
    first, second = stage.axes[place : place + 2]
    axes = _without(stage.axes, place + 1)
    joined = replace(first, extent=first.extent * second.extent)
    return replace(stage, axes=(*axes[:place], joined, *axes[place + 1 :]))


def _product(shape: tuple[int, ...], place: int) -> tuple[int, ...]:
    return (*shape[:place], shape[place] * shape[place + 1], *shape[place + 2 :])


def _without(items: tuple[_Item, ...], place: int) -> tuple[_Item, ...]:
    return (*items[:place], *items[place + 1 :])


def with_flat_rows(expression: Expression) -> Expression:
    """The expression with a tensor's last two dimensions fused, if they are reduced and then read again by a stored
    stage: there, other tensors, such as the weights of a group norm, are read at quotients and remainders."""
    for stage in expression.stages:
        for read in reads(stage.value) if stage.reduce is not None and not stage.scan else ():
            inner = {axis.name for axis in stage.reduced} >= {facts.plain(index) or "" for index in read.indices[-2:]}
            if inner and len(read.indices) > 2 and (flat := _flat(expression, read.tensor)):
                return with_flat_rows(flat)
    return expression


def _flat(expression: Expression, tensor: str) -> Expression | None:
    if tensor not in {one.name for one in expression.tensors}:
        return None
    length = expression.shape_of(tensor)[-1]
    stages, stored = [], 0
    for stage in expression.stages:
        pairs = {tuple(facts.plain(index) for index in read.indices[-2:]) for read in facts.reads_of(stage, tensor)}
        if not pairs:
            stages.append(stage)
            continue
        whole = stage.axes if stage.reduce is None else stage.reduced
        names = tuple(axis.name for axis in whole[-2:])
        again = stage.name not in expression.outputs or facts.readers(expression, stage.name)
        extents = tuple(axis.extent for axis in whole[-2:])
        placed = any(isinstance(node, Place) for node in walk(stage.value))
        if (
            pairs != {names}
            or extents != expression.shape_of(tensor)[-2:]
            or (stage.reduce is None and again)
            or placed
        ):
            return None
        flat, stored = replace(whole[-2], extent=prod(extents)), stored + (stage.reduce is None)
        value = _read_flat(stage.value, tensor, names, iterator(flat.name), length)
        axes, own = (*whole[:-2], flat), replace(stage, value=value)
        stages.append(replace(own, axes=axes) if stage.reduce is None else replace(own, reduced=axes))
    shape = expression.shape_of(tensor)
    one_less = (*shape[:-2], prod(shape[-2:]))
    tensors = tuple(replace(one, shape=one_less) if one.name == tensor else one for one in expression.tensors)
    return replace(expression, tensors=tensors, stages=tuple(stages)) if stored else None


def _read_flat(value: Value, tensor: str, names: tuple[str, ...], flat: Index, length: int) -> Value:
    def read(one: Read) -> Value:
        if one.tensor == tensor:
            return replace(one, indices=(*one.indices[:-2], flat))
        return substituted(one, {names[0]: flat // length, names[1]: flat % length})

    return with_reads(value, read)


_FIRST = dict(zip(("min", "max"), PLACED, strict=True))
_READ_ONCE = 40_000  # elements of a contiguous row that threads keep in registers in any case


def with_places(expression: Expression) -> Expression:
    """The expression with the place of an extreme, as argmax finds it, reduced together with the extreme: each number
    and its place are one integer of 64 bits, so rows are read once instead of twice.

    Contiguous rows that threads keep in registers are left alone.
    """
    for stage in expression.stages:
        for extreme in expression.stages:
            value = _ordered(expression, stage, extreme)
            if value is None:
                continue
            name = f"{extreme.name}.first"
            first = Stage(name, stage.axes, value, "min", stage.reduced)
            places = tuple(iterator(axis.name) for axis in stage.axes)
            last = Stage(stage.name, stage.axes, Unary(PLACE_OF, Read(name, places, value.dtype)))
            after = [one for other in expression.stages for one in ((first, last) if other == stage else (other,))]
            return with_places(replace(expression, stages=tuple(one for one in after if one != extreme)))
    return expression


def _ordered(expression: Expression, stage: Stage, extreme: Stage) -> Value | None:
    """The numbers of an extreme with their places, if the stage finds its first place and nothing else needs it."""
    chosen, both = stage.value, (stage, extreme)
    if any(one.scan or len(one.reduced) != 1 for one in both) or stage.reduce != "min" or extreme.reduce not in _FIRST:
        return None
    (along,), (own,) = stage.reduced, extreme.reduced
    if not isinstance(chosen, Select) or not isinstance(chosen.condition, Compare) or chosen.condition.op != "eq":
        return None
    place, beyond = Place(iterator(along.name)), chosen.otherwise
    if chosen.then != place or not isinstance(beyond, Const) or beyond.value < along.extent - 1 or along.extent >> 31:
        return None
    if extreme.name in expression.outputs or facts.readers(expression, extreme.name) != (stage,):
        return None
    sides = (chosen.condition.left, chosen.condition.right)
    for number, read in (sides, sides[::-1]):
        if isinstance(read, Read) and read.tensor == extreme.name and number.dtype in ("f32", "f16", "bf16"):
            by = {axis.name: i for axis, i in zip(extreme.axes, read.indices, strict=True)}
            same = substituted(extreme.value, {**by, own.name: iterator(along.name)}) == number
            rows = all(r.indices and facts.plain(r.indices[-1]) == along.name for r in reads(number))
            if same and own.extent == along.extent and not (rows and along.extent <= _READ_ONCE):
                return Binary(_FIRST[extreme.reduce], place, number)
    return None


_SMALL, _BETWEEN, _WIDE = ("i8", "u8"), "i16", "i32"


def with_steps(expression: Expression) -> Expression:
    """The expression with an intermediate cast, for targets on which no instruction adds up products of bytes."""
    return replace(expression, stages=tuple(map(_stage, expression.stages)))


def _stage(stage: Stage) -> Stage:
    sides = factors(stage)
    left, right = map(_in_between, sides) if sides else (None, None)
    return stage if left is None or right is None else replace(stage, value=Binary("mul", left, right))


def _in_between(value: Value) -> Value | None:
    if not isinstance(value, Cast) or value.dtype != _WIDE or value.value.dtype not in _SMALL:
        return None
    return Cast(Cast(value.value, _BETWEEN), _WIDE)
