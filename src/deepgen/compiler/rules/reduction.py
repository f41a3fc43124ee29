"""Reduction-Split: vectors along the reduced axis, with partial sums that are added at the end."""

from __future__ import annotations

from dataclasses import dataclass

from deepgen.compiler.intrinsics.dots import Dot
from deepgen.compiler.rules import facts
from deepgen.compiler.rules.draft import Draft
from deepgen.compiler.rules.template import Extent, plus, times
from deepgen.compiler.rules.tensorize import products_of_vectors
from deepgen.compiler.rules.tiling import NO_SUMS, summed, tile_consumer
from deepgen.compiler.rules.values import ROWS, VECTORS, up_to, usual_blocks
from deepgen.compiler.rules.vectors import along_reduction
from deepgen.compiler.schedule.steps import UNROLL, VECTOR, Tensorize
from deepgen.operators.expr.nodes import Stage
from deepgen.targets import Cpu

_USUAL_SUMS = 4  # independent chains of additions
_LONG_SUMS, _LONG = 8, 64  # the same, for sums of this many iterations or more: more loads are in flight
_MOST_ROWS = 8
_VECTORS = (*VECTORS, _LONG_SUMS)  # vectors per row


@dataclass(frozen=True)
class PartialSums:
    """The partial results of a reduction, as several vectors, and the single vector that these are added into."""

    sums: str
    vector: str
    stage: str
    lanes: int
    along: str  # the axis of partial results
    dot: Dot | None = None  # the instruction that adds up groups of products


class ReductionSplit:
    """Splits a reduction, scheduled together with the stage that reads it elementwise."""

    name, exclusive, targets = "Reduction-Split", False, (Cpu,)

    def declines(self, draft: Draft, stage: Stage) -> str | None:
        sums = summed(draft, stage)
        if sums is None:
            return NO_SUMS
        if isinstance(draft.dot, Dot) and draft.dot.each and dot_of(draft, sums) is None:
            return f"{draft.dot.name} does not multiply its operands"
        vectors = along_reduction(draft.expression, sums, draft.lanes(sums.name))
        return None if vectors else "vectors cannot lie along what is reduced"

    def apply(self, draft: Draft, stage: Stage) -> list[Draft]:
        sums = summed(draft, stage)
        assert sums is not None
        dot = dot_of(draft, sums)
        way = draft.branch(f"vectors_{sums.reduced[-1].name}" if dot is None else dot.name)
        to = dict(zip((axis.name for axis in sums.axes), facts.same_places(stage, sums) or (), strict=True))
        rows = next((axis for axis in reversed(sums.axes) if axis.extent > 1), None)
        high: Extent = 1
        if rows is not None:
            values = up_to(ROWS, min(rows.extent, _MOST_ROWS))
            high = way.knob(way.free_name(sums.name, f"{rows.name}_2"), values, max(v for v in values if v <= 1))
        partial = split_reduction(way, sums, high)
        whole = {axis.name: axis.extent for axis in stage.axes}
        tiles: dict[str, tuple[Extent, ...]] = {to[rows.name]: (high,)} if rows else {}
        usual = usual_blocks(way.target, whole, {to[rows.name]: 1} if rows else {}, None, 0)
        tiled = tile_consumer(way, stage, tiles, usual, vectors=False)
        place_partial(way, partial, stage.name, tiled.inner, rows.name if rows else None)
        way.finish(stage.name)
        return [way]


def dot_of(draft: Draft, sums: Stage) -> Dot | None:
    """The instruction that the expression was prepared for, if it can add up whole vectors of these products."""
    dot = draft.dot
    return dot if isinstance(dot, Dot) and dot.each and products_of_vectors(draft.expression, sums, dot) else None


def split_reduction(draft: Draft, sums: Stage, rows: Extent = 1) -> PartialSums:
    """Partial results along the innermost reduced axis, for `rows` rows at a time."""
    lanes, last, dot = draft.lanes(sums.name), sums.reduced[-1], dot_of(draft, sums)
    group = dot.depth if dot is not None else 1
    values = up_to(_VECTORS, last.extent // (lanes * group))
    exact = [wide for wide in values if last.extent % (wide * lanes * group) == 0]
    values = values if dot is None else exact  # an instruction cannot handle an edge
    long = last.extent >= _LONG * _LONG_SUMS * lanes * group and draft.target.vector_registers >= 2 * _LONG_SUMS + 1
    usual = max(wide for wide in exact or values if wide <= (_LONG_SUMS if long else _USUAL_SUMS))
    wide = draft.knob(draft.free_name(sums.name, f"{last.name}_1"), values, usual)
    held = plus([times([rows, wide]), wide, 1])
    draft.derive(draft.free_name(sums.name, "registers"), held)
    draft.require(held <= draft.target.vector_registers, f"partial results of {sums.name} fit in registers")
    name = f"{sums.name}_parts"
    along = draft.rfactor(sums.name, times([wide, lanes]), usual * lanes, name, group)
    draft.lay_out(name, [*range(1, len(sums.axes) + 1), 0])
    vector = f"{sums.name}_vector"
    draft.rfactor(sums.name, lanes, lanes, vector)
    draft.lay_out(vector, [*range(1, len(sums.axes) + 1), 0])
    return PartialSums(sums.name, vector, name, lanes, along, dot)


def place_partial(draft: Draft, partial: PartialSums, consumer: str, loop: str, rows: str | None) -> None:
    """Computes partial results, a single vector of them, and their sum, all where the consumer reads it."""
    for name in (partial.sums, partial.vector):
        draft.compute_at(name, consumer, loop, "register")
        stage = draft.stage(name)
        (lanes,) = (axis.name for axis in (stage.reduced if name == partial.sums else stage.axes[:1]))
        around = [axis.name for axis in stage.reduced if axis.name != lanes]
        kept = [axis.name for axis in stage.axes if axis.name != lanes]
        draft.reorder(name, [*kept, *around, lanes])
        draft.annotate(name, UNROLL, *around, *(axis for axis in kept if axis == rows))
        draft.annotate(name, VECTOR, lanes)
        draft.finish(name)
    draft.compute_at(partial.stage, consumer, loop, "register")
    _arrange(draft, partial, rows)
    draft.finish(partial.stage)


def _arrange(draft: Draft, partial: PartialSums, rows: str | None) -> None:
    stage = draft.stage(partial.stage)
    outer, vector = draft.split(stage.name, partial.along, (partial.lanes,))
    tile = [*([rows] if rows else []), outer]
    alone = [axis.name for axis in stage.axes if axis.name not in (partial.along, rows)]
    reduced = [axis.name for axis in stage.reduced]
    grouped = reduced[-1:] if partial.dot is not None else []
    around = [name for name in reduced if name not in grouped]
    draft.reorder(stage.name, [*alone, *around, *tile, vector, *grouped])
    draft.annotate(stage.name, UNROLL, *tile)
    if partial.dot is not None:
        draft.step(Tensorize(stage.name, vector, partial.dot.name))
    else:
        draft.annotate(stage.name, VECTOR, vector)
