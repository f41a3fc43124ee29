"""Tensorize: sums of products of small numbers by instructions that add up several of them at once.

An instruction takes whole groups of products. If a reduced axis is not a multiple of the group, `prepared` pads it with
zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from deepgen.compiler.intrinsics.dots import Dot
from deepgen.compiler.intrinsics.tiles import DOUBLE_BUFFER, GROUPS, MOST_ROWS, REGISTERS, Instruction, TileProduct
from deepgen.compiler.rules import facts
from deepgen.compiler.rules.draft import Draft
from deepgen.compiler.rules.operands import stage_operands
from deepgen.compiler.rules.packing import RegisterTile
from deepgen.compiler.rules.padding import guard, with_padding
from deepgen.compiler.rules.template import Extent, covered, plus, times
from deepgen.compiler.rules.tiling import NO_SUMS, block_sizes, by_distance, lay_along, summed, tile, tile_consumer
from deepgen.compiler.rules.values import divisors, up_to
from deepgen.compiler.rules.vectors import Grouped, Vectors, packable, reused_along
from deepgen.compiler.schedule.steps import Tensorize
from deepgen.operators.expr.contraction import factors
from deepgen.operators.expr.index import iterator
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
)
from deepgen.targets import Cpu
from deepgen.vocabulary import dtype


class TensorizeRule:
    """Tensorizes a reduction, scheduled together with the stage that reads it elementwise."""

    name, exclusive, targets = "Tensorize", True, (Cpu,)

    def declines(self, draft: Draft, stage: Stage) -> str | None:
        if self._vectors(draft, stage) is not None:
            return None
        if summed(draft, stage) is None:
            return NO_SUMS
        if draft.dot is None:
            return "the CPU has no instruction that adds up such products"
        return f"{draft.dot.name} cannot do it: operands, dtypes or lane axes do not match"

    def apply(self, draft: Draft, stage: Stage) -> list[Draft]:
        sums, vectors = summed(draft, stage), self._vectors(draft, stage)
        assert draft.dot is not None and sums is not None and vectors is not None
        way = draft.branch(draft.dot.name)
        if isinstance(draft.dot, TileProduct):
            tile_matrices(way, sums, stage, vectors)
        else:
            tile(way, sums, stage, vectors)
        return [way]

    def _vectors(self, draft: Draft, stage: Stage) -> Vectors | None:
        sums = summed(draft, stage)
        if draft.dot is None or sums is None:
            return None
        if isinstance(draft.dot, TileProduct) and draft.dot.name in draft.names:
            return None  # a thread has one tile configuration, that of the first sums
        return grouped(sums, draft.dot)


def prepared(expression: Expression, dot: Instruction) -> Expression | None:
    """An expression with sums padded to whole groups of an instruction's products; None if the instruction fits no
    sum."""
    if isinstance(dot, Dot) and dot.each:
        served = any(products_of_vectors(expression, stage, dot) for stage in expression.stages)
        return with_padding(expression) if served else None
    stages: list[Stage] = []
    names: set[str] = set()
    for stage in expression.stages:
        axis = _group_axis(stage, dot)
        whole = stage if axis is None else rounded(stage, axis, dot.whole)
        if axis is not None and isinstance(dot, TileProduct):
            whole = _with_whole_tiles(expression, whole, dot)
        stages.append(whole)
        names |= set() if axis is None else {stage.name}
    return with_padding(replace(expression, stages=tuple(stages)), names) if names else None


def products_of_vectors(expression: Expression, sums: Stage, dot: Dot) -> bool:
    """Whether an instruction that multiplies whole vectors of both operands can compute sums without packing.

    That is so if one operand is read only once, such as the matrix in a matrix-vector product.
    """
    for left, right in _factors(sums, dot):
        if not isinstance(left, Read) or not isinstance(right, Read) or sums.reduced[-1].extent % dot.whole:
            continue
        along = [facts.stride(expression, read, sums.reduced[-1].name) for read in (left, right)]
        axes = [axis.name for axis in sums.axes if axis.extent > 1]
        once = any(all(facts.depends(read, axis) for axis in axes) for read in (left, right))
        if along == [1, 1] and once:
            return True
    return False


def grouped(sums: Stage, dot: Instruction) -> Vectors | None:
    """How an instruction computes sums, with its lanes along the last suitable axis; None if it cannot.

    An axis that fills at least half a vector is suitable if no other fills one.
    """
    axis = None if isinstance(dot, Dot) and dot.each else _group_axis(sums, dot)
    if axis is None or axis.extent % dot.whole:
        return None
    extents = {one.name: one.extent for one in sums.axes}
    for lanes, rows, left, right in _lanes_and_rows(sums, dot):
        if not isinstance(left, Read) or not isinstance(right, Read):
            continue
        if isinstance(dot, TileProduct) and not row_counts(extents.get(rows or "", 1)):
            continue
        by = Grouped(dot, axis.name)
        return Vectors(lanes.name, rows, (), (right.tensor,), (left.tensor,), dot.lanes, by)
    return None


def _lanes_and_rows(sums: Stage, dot: Instruction) -> Iterator[tuple[Axis, str | None, Value, Value]]:
    """The axes along which an instruction could have its lanes and its rows, and its operands."""
    tiles = isinstance(dot, TileProduct)
    last_first = sums.axes[::-1]
    for lanes in sorted(last_first, key=lambda one: one.extent < dot.lanes):
        for left, right in _factors(sums, dot):
            read = _read(right)
            fits = lanes.extent * (1 if tiles else 2) >= dot.lanes and not facts.depends(_read(left), lanes.name)
            if fits and packable(sums, read, lanes.name):
                yield lanes, reused_along(sums, lanes.name, [read], nearest=tiles), left, right


def _factors(stage: Stage, dot: Instruction) -> list[tuple[Value, Value]]:
    """The instruction's first and second operand: reads, under guards if they have any."""
    sides = factors(stage)
    left, right = (_narrow(side, dot) for side in sides) if sides else (None, None)
    if stage.dtype != dot.result or left is None or right is None:
        return []
    both = ((left, right), (right, left))
    pairs = [(one, other) for one, other in both if (one.dtype, other.dtype) == (dot.left, dot.right)]
    return pairs if _read(left).tensor != _read(right).tensor else []


def _narrow(value: Value, dot: Instruction) -> Value | None:
    """The value that is cast to the format of the sums."""
    if isinstance(value, Cast) and value.dtype == dot.result and (isinstance(value.value, Read) or guard(value)):
        return value.value
    return None


def _read(value: Value) -> Read:
    read = value.then if isinstance(value, Select) else value
    assert isinstance(read, Read)
    return read


def _group_axis(stage: Stage, dot: Instruction) -> Axis | None:
    """The reduced axis of which an instruction takes several steps at once: both operands must be read along it."""
    pairs = _factors(stage, dot)
    if not pairs:
        return None
    axes = [
        axis
        for axis in stage.reduced
        if all(alone(_read(side), axis.name) for side in pairs[0]) and _worth_it(axis.extent, dot)
    ]
    return max(axes, key=lambda axis: min(axis.extent, dot.whole), default=None)


def _worth_it(extent: int, dot: Instruction) -> bool:
    """Whether few enough of the products are with zeros that pad the last step: for tiles nearly half of them, as these
    are many times as fast as the next best instruction."""
    whole = -(-extent // dot.whole) * dot.whole
    if isinstance(dot, TileProduct):
        return whole * 5 <= extent * 9
    return whole - extent < dot.depth or whole * 4 <= extent * 5


def alone(read: Read, axis: str) -> bool:
    """Whether an axis alone determines the index in exactly one dimension."""
    along = [index for index in read.indices if axis in index.iterators]
    return len(along) == 1 and facts.plain(along[0]) == axis


def rounded(stage: Stage, axis: Axis, step: int) -> Stage:
    """A sum of products padded to whole steps along an axis, with zeros beyond its end."""
    whole = -(-axis.extent // step) * step
    if whole == axis.extent:
        return stage
    inside = Compare("lt", Place(iterator(axis.name)), Const(axis.extent, "i64"))
    assert isinstance(stage.value, Binary)
    left, right = (_guarded(side, inside) for side in (stage.value.left, stage.value.right))
    reduced = tuple(replace(one, extent=whole) if one == axis else one for one in stage.reduced)
    return replace(stage, value=replace(stage.value, left=left, right=right), reduced=reduced)


def _with_whole_tiles(expression: Expression, stage: Stage, dot: TileProduct) -> Stage:
    """Sums with a few rows more, of zeros, where that makes for better tiles: 72 for images 71 pixels wide."""
    extents = {axis.name: axis.extent for axis in stage.axes}
    choices = {rows: extents[rows] for _, rows, *_ in _lanes_and_rows(stage, dot) if rows is not None}
    if not choices:
        return stage
    rows, extent = max(choices.items(), key=lambda choice: choice[1])
    exact = [tile_cycles(one, tall) / one for one in choices.values() for tall in row_counts(one)]
    least, tall = min((tile_cycles(extent, tall), tall) for tall in range(_USUAL_ROWS, MOST_ROWS + 1))
    if extent <= MOST_ROWS or any(cycles <= _WORTH_A_COPY * least / extent for cycles in exact):
        return stage
    assert isinstance(stage.value, Binary)
    left, right = (_inside(expression, side, rows) for side in (stage.value.left, stage.value.right))
    axes = tuple(replace(one, extent=-(-extent // tall) * tall) if one.name == rows else one for one in stage.axes)
    return replace(stage, value=replace(stage.value, left=left, right=right), axes=axes)


def _inside(expression: Expression, side: Value, axis: str) -> Value:
    """An operand that is zero where this axis leads beyond its tensor."""
    assert isinstance(side, Cast)
    read = _read(side.value)
    for index, size in zip(read.indices, expression.shape_of(read.tensor), strict=True):
        if axis in index.iterators:
            side = _guarded(side, Compare("lt", Place(index), Const(size, "i64")))
    return side


def _guarded(side: Value, inside: Value) -> Cast:
    assert isinstance(side, Cast)
    select = guard(side)
    if select is not None:
        return replace(side, value=replace(select, condition=Logic("and", select.condition, inside)))
    zero = Const(0 if dtype(side.value.dtype).integer else 0.0, side.value.dtype)
    return replace(side, value=Select(inside, side.value, zero))


_FEWEST_ROWS, _USUAL_ROWS = 4, 8  # of a tile; with fewer than four, plain vectors are as fast
_LOADED = 8  # cycles for tiles of the second operand, where a row takes one
_WORTH_A_COPY = 1.2  # times the cycles
_DOWN, _ACROSS = (1, 2, 3, 4, 5), (1, 2, 3)  # tiles per block


def row_counts(extent: int) -> list[int]:
    """How many rows a tile can have; none if the axis has only small divisors."""
    counts = [rows for rows in divisors(extent) if _FEWEST_ROWS <= rows <= MOST_ROWS]
    return counts[-2:]


def tile_cycles(extent: int, tall: int) -> int:
    """The cycles of a column of tiles. Two share the tiles of the second operand if their number is even."""
    count = -(-extent // tall)
    return count * tall + count // (2 - count % 2) * _LOADED


def tile_matrices(draft: Draft, sums: Stage, consumer: Stage, vectors: Vectors) -> None:
    assert vectors.by is not None and isinstance(vectors.by.dot, TileProduct) and vectors.reused_along is not None
    by, along, rows = vectors.by.dot, vectors.axis, vectors.reused_along
    to, extents = facts.places_in(consumer, sums), {axis.name: axis.extent for axis in sums.axes}
    counts, columns = row_counts(extents[rows]), extents[along] // by.lanes
    usual_high = min(counts, key=lambda tall: tile_cycles(extents[rows], tall))
    usual_down = 2 if extents[rows] // usual_high % 2 == 0 else 1
    usual_across = 2 if columns > 1 else 1
    high = draft.knob(draft.free_name(sums.name, f"{rows}_3"), counts, usual_high)
    down = draft.knob(draft.free_name(sums.name, f"{rows}_2"), up_to(_DOWN, extents[rows]), usual_down)
    across = draft.knob(draft.free_name(sums.name, f"{along}_2"), up_to(_ACROSS, columns), usual_across)
    held = plus([times([down, across]), across, DOUBLE_BUFFER])
    draft.derive(draft.free_name(sums.name, "tiles"), held)
    draft.require(held <= REGISTERS, "tiles of sums, and those that are multiplied, fit in registers")
    tall = times([down, high])
    draft.require(times([covered(extents[rows], tall), tall]) == extents[rows], f"tiles divide {rows}")

    usual = {to[along]: usual_across * by.lanes, to[rows]: usual_down * usual_high}
    sizes = block_sizes(draft, sums, consumer, vectors, usual, own=None)
    registers: dict[str, tuple[Extent, ...]] = {to[rows]: (down, high), to[along]: (across, by.lanes)}
    loops = tile_consumer(draft, consumer, registers, sizes, vectors=True, whole=True)
    draft.compute_at(sums.name, consumer.name, loops.inner, "register")
    lay_along(draft, sums, along)
    _tile_sums(draft, sums, vectors, high)
    draft.finish(sums.name, consumer.name)
    stage_operands(draft, sums, consumer, loops.outer, vectors, RegisterTile(tall, across, by.lanes))


def _tile_sums(draft: Draft, sums: Stage, vectors: Vectors, high: Extent) -> None:
    assert vectors.by is not None and vectors.reused_along is not None
    by, along, rows = vectors.by, vectors.axis, vectors.reused_along
    tiles = [*draft.split(sums.name, rows, (high,)), *draft.split(sums.name, along, (by.dot.lanes,))]
    before = [axis.name for axis in by_distance(draft, sums, vectors) if axis.name != by.axis]
    iterations, *inner = draft.split(sums.name, by.axis, (GROUPS, by.dot.depth))
    alone = [axis.name for axis in sums.axes if axis.name not in (along, rows)]
    draft.reorder(sums.name, [*alone, *before, iterations, *tiles, *inner])
    draft.step(Tensorize(sums.name, tiles[0], by.dot.name))
