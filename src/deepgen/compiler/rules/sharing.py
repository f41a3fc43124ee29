"""Compute-Once: what is costly to compute, and is summed up and then read again, is computed once and kept.

Softmax is of this kind: the sum of a row is over the same exponentials that are divided by it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from deepgen.compiler.rules import facts
from deepgen.operators.expr.index import iterator
from deepgen.operators.expr.nodes import (
    Axis,
    Expression,
    Place,
    Read,
    Stage,
    Value,
    children,
    substituted,
    walk,
)
from deepgen.operators.expr.rewrite import replaced


@dataclass(frozen=True)
class _Found:
    """A costly value of a stage, and the axes that it depends on, in the order in which they appear."""

    stage: Stage
    value: Value
    axes: tuple[Axis, ...]

    def renamed(self) -> Value:
        """The same for all stages that compute the same."""
        return substituted(self.value, {axis.name: iterator(f"k{n}") for n, axis in enumerate(self.axes)})

    @property
    def extents(self) -> tuple[int, ...]:
        return tuple(axis.extent for axis in self.axes)


def with_kept(expression: Expression) -> Expression:
    """The expression with a stage for each costly value that a reduction and another stage have in common."""
    groups: dict[tuple[Value, tuple[int, ...]], list[_Found]] = {}
    for stage in expression.stages:
        for found in _costly_values(stage):
            groups.setdefault((found.renamed(), found.extents), []).append(found)
    taken = {t.name for t in expression.tensors} | {s.name for s in expression.stages}
    for (value, extents), group in groups.items():
        users = {found.stage.name: found.stage for found in group}
        if len(users) < 2 or len({stage.reduce is None for stage in users.values()}) < 2:
            continue
        name = next(n for n in (f"kept{i or ''}" for i in range(len(taken) + 1)) if n not in taken)
        taken.add(name)
        kept = Stage(name, tuple(Axis(f"k{n}", extent) for n, extent in enumerate(extents)), value)
        expression = _with_stage(expression, kept, group)
    return expression


def _costly_values(stage: Stage) -> Iterator[_Found]:
    """Outermost costly values; of stages that choose, none: what is not chosen may not be there to be read."""
    if stage.scan is not None or facts.guarded(stage):
        return
    known = {axis.name: axis for axis in (*stage.axes, *stage.reduced)}
    for value in _outermost(stage.value):
        axes = tuple(known[name] for name in _iterators(value))
        if axes and not any(isinstance(node, Place) for node in walk(value)):
            yield _Found(stage, value, axes)


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


def _with_stage(expression: Expression, kept: Stage, group: list[_Found]) -> Expression:
    stages: list[Stage] = []
    for stage in expression.stages:
        own = [found for found in group if found.stage.name == stage.name]
        if own and kept not in stages:
            stages.append(kept)
        value = stage.value
        for found in own:
            places = tuple(iterator(axis.name) for axis in found.axes)
            value = replaced(value, found.value, Read(kept.name, places, kept.value.dtype))
        stages.append(replace(stage, value=value))
    return replace(expression, stages=tuple(stages))
