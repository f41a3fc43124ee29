"""Turns reductions inside larger values into separate stages, and gives all axes their canonical names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from deepgen.operators.expr import facts
from deepgen.operators.expr.index import Index, iterator
from deepgen.operators.expr.nodes import Axis, Place, Read, Stage, Value, children, reads, substituted, with_children


@dataclass(frozen=True)
class LiftedReduction:
    """A reduction within a value. It exists only while an expression is built: in a finished one it is a stage."""

    op: str
    value: Value
    axes: tuple[Axis, ...]

    @property
    def dtype(self) -> str:
        return self.value.dtype


@dataclass
class _Lifting:
    """The stages that are lifted out of one."""

    name: str
    taken: set[str]
    stages: list[Stage] = field(default_factory=list)

    def lifted(self, value: Any, around: Sequence[Axis]) -> Value:
        """The value with reads in place of its reductions; `around`: the axes that may be used in it."""
        if isinstance(value, LiftedReduction):
            inner = self.lifted(value.value, (*around, *value.axes))
            return self._read(value, inner, around)
        below = children(value)
        return with_children(value, [self.lifted(child, around) for child in below]) if below else value

    def _read(self, reduction: LiftedReduction, inner: Value, around: Sequence[Axis]) -> Value:
        """Makes a stage over those enclosing axes that the reduction depends on, and returns a read of it."""
        bound = {axis.name for axis in reduction.axes}
        used = _iterators(inner) - bound
        kept = [axis for axis in around if axis.name in used and axis.name not in bound]
        axes = tuple(kept) or (Axis("one", 1),)
        built = _named("", axes, inner, reduction.op, reduction.axes)
        same = next((stage for stage in self.stages if _same(stage, built)), None)
        if same is None:
            same = Stage(self._free(reduction.op), built.axes, built.value, built.reduce, built.reduced)
            self.stages.append(same)
        places = tuple(iterator(axis.name) for axis in kept) or (Index(),)
        return Read(same.name, places, inner.dtype)

    def _free(self, op: str) -> str:
        """A name such as C_sum, with a number if that is taken."""
        names = (f"{self.name}_{op}{n or ''}" for n in range(1 << 16))
        result = next(name for name in names if name not in self.taken)
        self.taken.add(result)
        return result


def stages_of(
    name: str, axes: tuple[Axis, ...], value: Any, sources: frozenset[str], scan: tuple[str, int] | None
) -> list[Stage]:
    """The stage of a value, after those of the reductions inside it. `scan`: the reduction and the dimension."""
    lifting = _Lifting(name, {name, *sources})
    if scan is None and isinstance(value, LiftedReduction):
        inner = lifting.lifted(value.value, (*axes, *value.axes))
        stage = _named(name, axes, inner, value.op, value.axes)
    else:
        stage = _named(name, axes, lifting.lifted(value, axes))
    if scan is not None:
        stage = Stage(name, stage.axes, stage.value, scan[0], (), stage.axes[scan[1]].name)
    return _needed(lifting.stages, stage)


def _needed(lifted: list[Stage], last: Stage) -> list[Stage]:
    """The stages that are needed, without those that were only read by selects that were removed."""
    kept = [last]
    for stage in reversed(lifted):
        if any(read.tensor == stage.name for reader in kept for read in reads(reader.value)):
            kept.insert(0, stage)
    return kept


def _named(
    name: str, axes: tuple[Axis, ...], value: Value, reduce: str | None = None, reduced: tuple[Axis, ...] = ()
) -> Stage:
    """A stage with axes i0, i1, ... and r0, r1, ..., and without selects that always make the same choice."""
    own = tuple(Axis(f"i{n}", axis.extent) for n, axis in enumerate(axes))
    over = tuple(Axis(f"r{n}", axis.extent) for n, axis in enumerate(reduced))
    # The axis of a reduction hides an enclosing axis of the same name.
    renamed = {old.name: iterator(new.name) for old, new in zip((*axes, *reduced), (*own, *over), strict=True)}
    value = substituted(value, renamed)
    names = {axis.name for axis in (*own, *over)}
    if _iterators(value) <= names:  # otherwise the check of the stage reports the unknown name
        value = facts.simplified(value, facts.of_axes((*own, *over)))
    return Stage(name, own, value, reduce, over)


def _same(one: Stage, other: Stage) -> bool:
    return (one.axes, one.value, one.reduce, one.reduced) == (other.axes, other.value, other.reduce, other.reduced)


def _iterators(value: Value) -> frozenset[str]:
    if isinstance(value, Place):
        return value.index.iterators
    if isinstance(value, Read):
        return frozenset().union(*(index.iterators for index in value.indices))
    return frozenset().union(*map(_iterators, children(value)))
