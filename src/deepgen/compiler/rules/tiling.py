"""Multi-level-Tiling: parts for threads, blocks for caches, tiles for registers; vectors along one axis."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from math import prod

from deepgen.compiler.intrinsics.dots import Dot
from deepgen.compiler.rules import facts
from deepgen.compiler.rules.draft import Draft
from deepgen.compiler.rules.operands import fits_panels, of_blocks, stage_operands
from deepgen.compiler.rules.packing import RegisterTile
from deepgen.compiler.rules.template import Extent, covered, plus, times
from deepgen.compiler.rules.values import ROWS, VECTORS, Panels, blocks, register_tile, unrolls, up_to, usual_blocks
from deepgen.compiler.rules.vectors import Vectors, along_results, contiguous
from deepgen.compiler.schedule.steps import PARALLEL, UNROLL, VECTOR, Tensorize
from deepgen.operators.expr.nodes import Axis, Stage, reads
from deepgen.targets import Cpu
from deepgen.vocabulary import dtype

_WORTH_PACKING = 0.95  # of the cycles with rows that are read in place
NO_SUMS = "it takes over no reduction place by place"
_SHORT, _SHORT_ALONE = 4, 8  # iterations that are fully unrolled by default; the latter for sums over a filter alone
_FILTER = 64  # most products of a sum over a filter alone, as in depthwise convolutions
_SCATTERED, _PAGES = 2, 5  # cycles for a result that is stored separately; if each is in another page of memory
_PAGE = 4096  # bytes


@dataclass(frozen=True)
class Tiled:
    """The loops of a consumer at which preceding stages are computed."""

    outer: str  # one loop: what threads divide
    inner: str  # a single loop, which threads divide


class MultiLevelTiling:
    """Tiles a reduction, scheduled together with the stage that reads it elementwise."""

    name, exclusive, targets = "Multi-level-Tiling", False, (Cpu,)

    def declines(self, draft: Draft, stage: Stage) -> str | None:
        sums = summed(draft, stage)
        if sums is None:
            return NO_SUMS
        vectors = along_results(draft.expression, sums, draft.lanes(sums.name))
        return None if vectors else "vectors cannot lie along any axis of its results"

    def apply(self, draft: Draft, stage: Stage) -> list[Draft]:
        sums = summed(draft, stage)
        assert sums is not None
        ways = []
        for place, vectors in enumerate(along_results(draft.expression, sums, draft.lanes(sums.name))):
            way = draft.branch(f"vectors_{vectors.axis}")
            ways.append((tile(way, sums, stage, vectors) * (1 + place / 8), place, way))
        return [way for *_, way in sorted(ways)]


def summed(draft: Draft, stage: Stage) -> Stage | None:
    """The reduction that is fused into this stage, which reads its results elementwise."""
    if stage.reduce is not None or stage.scan is not None:
        return None
    for other in draft.expression.stages:
        if other.reduce is not None and other.scan is None and other.name not in draft.done:
            consumer = facts.fusible_consumer(draft.expression, other)
            if consumer is not None and consumer.name == stage.name:
                return other
    return None


def tile(draft: Draft, sums: Stage, consumer: Stage, vectors: Vectors) -> float:
    """Estimated cycles per result and step of its sum."""
    lanes = vectors.lanes
    to = facts.places_in(consumer, sums)
    extents = {axis.name: axis.extent for axis in sums.axes}
    along, rows = vectors.axis, vectors.reused_along
    cycles, usual_rows, usual_vectors, packed = _usual_tile(draft, sums, vectors)
    widths = up_to(VECTORS, -(-extents[along] // lanes))
    wide = draft.knob(draft.free_name(sums.name, f"{along}_2"), widths, usual_vectors)
    high: Extent = 1
    if rows is not None:
        high = draft.knob(draft.free_name(sums.name, f"{rows}_2"), up_to(ROWS, extents[rows]), usual_rows)
    held = plus([times([high, wide]), wide, 1])
    draft.derive(draft.free_name(sums.name, "registers"), held)
    draft.require(held <= draft.target.vector_registers, "a tile, a row of vectors and one more fit in registers")

    usual = {to[along]: usual_vectors * lanes} | ({to[rows]: usual_rows} if rows else {})
    panels = panels_of(sums, vectors, to)
    sizes = block_sizes(draft, sums, consumer, vectors, usual, own=panels)
    registers = ({to[rows]: (high,)} if rows else {}) | {to[along]: (wide, lanes)}
    loops = tile_consumer(draft, consumer, registers, sizes, vectors=True)
    draft.compute_at(sums.name, consumer.name, loops.inner, "register")
    lay_along(draft, sums, along, (wide, lanes))
    _tile_sums(draft, sums, vectors)
    draft.finish(sums.name, consumer.name)
    own = panels.whole and own_panels(consumer, {to[along], *panels.apart}, usual, sizes)
    columns = usual[to[along]] * sizes[to[along]] if not panels.apart else None
    stage_operands(draft, sums, consumer, loops.outer, vectors, RegisterTile(high, wide, lanes, packed, own, columns))
    steps = prod(axis.extent for axis in sums.reduced)
    return cycles / (extents.get(rows or "", 1) * extents[along]) + _scattered(consumer, to[along]) / steps


def _scattered(consumer: Stage, along: str) -> int:
    """Cycles for storing a result, with vectors along this axis."""
    inner = consumer.axes[[axis.name for axis in consumer.axes].index(along) + 1 :]
    if not inner:
        return 0
    distance = prod(axis.extent for axis in inner) * dtype(consumer.dtype).bytes
    return _SCATTERED if distance < _PAGE else _PAGES


def _usual_tile(draft: Draft, sums: Stage, vectors: Vectors) -> tuple[float, int, int, bool]:
    """The cycles, rows and vectors of the default tile, and whether the operand of its rows is packed."""
    extents, rows = {axis.name: axis.extent for axis in sums.axes}, vectors.reused_along
    sizes = (extents.get(rows or "", 1), extents[vectors.axis], vectors.lanes)
    tensors = {tensor.name for tensor in draft.expression.tensors}
    lying = (name for name in vectors.loaded if name in tensors and not fits_panels(sums, name, vectors.axis))
    loose = vectors.by is None and any(lying)
    excess = vectors.by is not None and isinstance(vectors.by.dot, Dot) and bool(vectors.by.dot.excess)
    in_place, packed = (
        register_tile(draft.target, *sizes, packed=way, loose=loose, excess=excess) for way in (False, True)
    )
    packable = all(name in tensors and fits_panels(sums, name, rows) for name in vectors.single)
    better = vectors.by is None and packable and packed[0] < _WORTH_PACKING * in_place[0]
    return (*packed, True) if better else (*in_place, False)


def block_sizes(
    draft: Draft, sums: Stage, consumer: Stage, vectors: Vectors, tiles: Mapping[str, int], *, own: Panels | None
) -> dict[str, int]:
    """How many tiles along each axis of the consumer a block has by default; `own` as in `usual_blocks`."""
    column = prod(axis.extent for axis in sums.reduced) * _element_bytes(sums, vectors)
    extents = {axis.name: axis.extent for axis in consumer.axes}
    copied = sum(bytes_of(stage) for stage in draft.expression.stages if of_blocks(draft, stage, sums))
    most = prod(extents.values()) * draft.target.l2_bytes // (2 * copied) if copied else None
    panels = facts.places_in(consumer, sums)[vectors.axis]
    return usual_blocks(draft.target, extents, tiles, panels, column, own=own, most=most)


def _element_bytes(sums: Stage, vectors: Vectors) -> int:
    """The size of an element of a panel."""
    return dtype(vectors.by.dot.right if vectors.by else sums.dtype).bytes


def bytes_of(stage: Stage) -> int:
    return prod(axis.extent for axis in stage.axes) * dtype(stage.dtype).bytes


def panels_of(sums: Stage, vectors: Vectors, to: Mapping[str, str]) -> Panels:
    """The panels of the operands along which vectors run; `to` maps axes of the sums to the consumer's."""
    panels = [read for read in reads(sums.value) if read.tensor in (*vectors.loaded, *vectors.packed)]
    plain = [{*map(facts.plain, read.indices)} for read in panels]
    alone: set[str | None] = set.intersection(*plain) if plain else set()
    return Panels(
        frozenset(to[axis.name] for axis in sums.axes if axis.extent > 1 and axis.name in alone - {vectors.axis}),
        vectors.axis in alone,
        prod(axis.extent for axis in sums.reduced if axis.name in alone) * _element_bytes(sums, vectors),
    )


def own_panels(consumer: Stage, apart: Set[str], tiles: Mapping[str, int], sizes: Mapping[str, int]) -> bool:
    """Whether blocks of these sizes cover all axes but these completely."""
    others = [axis for axis in consumer.axes if axis.name not in apart]
    return all(sizes[axis.name] * tiles.get(axis.name, 1) >= axis.extent for axis in others)


def lay_along(draft: Draft, sums: Stage, axis: str, tile: tuple[Extent, ...] = ()) -> None:
    """Stores sums with an axis as their innermost dimension; in whole tiles if the last vector has lanes beyond the
    axis."""
    places = {one.name: place for place, one in enumerate(sums.axes)}
    others = [place for name, place in places.items() if name != axis]
    if tile and sums.axes[places[axis]].extent % draft.lanes(sums.name):
        draft.lay_out(sums.name, others, (places[axis], times(tile)))
    elif axis != sums.axes[-1].name:
        draft.lay_out(sums.name, [*others, places[axis]])


def tile_consumer(
    draft: Draft,
    stage: Stage,
    registers: Mapping[str, tuple[Extent, ...]],
    sizes: Mapping[str, int],
    *,
    vectors: bool,
    whole: bool = False,
) -> Tiled:
    """Tiles a stage by the sizes of its register tiles; `sizes` are default block sizes.

    With `vectors`, the innermost loop of the last register tile is a vector. With `whole`, blocks have whole tiles
    only, and their contents are not unrolled.
    """
    names: dict[str, list[str]] = {}
    for axis in stage.axes:
        tile = registers.get(axis.name, ())
        split = (
            (_block(draft, stage, axis, tile, sizes[axis.name], whole=whole), *tile) if tile or axis.extent > 1 else ()
        )
        names[axis.name] = draft.split(stage.name, axis.name, split)
    outer, middle = [loops[0] for loops in names.values()], [loops[1] for loops in names.values() if loops[1:]]
    inner = [loop for axis in registers for loop in names[axis][2:]]
    draft.reorder(stage.name, [*outer, *middle, *inner])
    joined = draft.fuse(stage.name, outer)
    draft.annotate(stage.name, PARALLEL, joined)
    draft.annotate(stage.name, UNROLL, *(() if whole else inner[:-1] if vectors else inner))
    draft.annotate(stage.name, VECTOR, *(inner[-1:] if vectors else ()))
    return Tiled(joined, middle[-1] if middle else joined)


def _block(draft: Draft, stage: Stage, axis: Axis, tile: tuple[Extent, ...], usual: int, *, whole: bool) -> Extent:
    """How many tiles of an axis a block has, as a knob."""
    values = sorted({*blocks(axis.extent, bool(tile)), usual})
    block = draft.knob(draft.free_name(stage.name, f"{axis.name}_1"), values, usual)
    pieces = covered(axis.extent, times(tile))
    count = covered(pieces, block)
    if whole:
        draft.require(times([count, block]) == pieces, f"no tiles in blocks of {axis.name} are empty")
    else:
        draft.require(times([count, block, 8]) <= times([pieces, 9]), f"few tiles in blocks of {axis.name} are empty")
    draft.derive(draft.free_name(stage.name, f"{axis.name}_0"), count)
    return block


def _tile_sums(draft: Draft, sums: Stage, vectors: Vectors) -> None:
    along, rows = vectors.axis, vectors.reused_along
    outer, vector = draft.split(sums.name, along, (vectors.lanes,))
    reduced = by_distance(draft, sums, vectors)
    last = next((axis for axis in reversed(reduced) if axis.extent > 1), reduced[-1])
    group = vectors.by.dot.depth if vectors.by else 1
    steps = unrolls(last.extent // group)
    # Vectors of every second element need shuffles: many of them take compilers minutes.
    alone = prod(axis.extent for axis in reduced) <= _FILTER and contiguous(draft.expression, sums, along)
    short = last.extent // group <= (_SHORT_ALONE if alone else _SHORT)  # such as the side of a filter
    deep = draft.knob(draft.free_name(sums.name, f"{last.name}_1"), steps, steps[-1] if short else 1)
    before = [axis.name for axis in reduced if axis != last]
    iterations, unrolled, *grouped = draft.split(sums.name, last.name, (deep, group) if vectors.by else (deep,))
    others = [axis.name for axis in sums.axes if axis.name not in (along, rows)]
    tile = [*([rows] if rows else []), outer]
    draft.reorder(sums.name, [*others, *before, iterations, unrolled, *tile, vector, *grouped])
    draft.annotate(sums.name, UNROLL, unrolled, *tile)
    if vectors.by:
        draft.step(Tensorize(sums.name, vector, vectors.by.dot.name))
    else:
        draft.annotate(sums.name, VECTOR, vector)


def by_distance(draft: Draft, sums: Stage, vectors: Vectors) -> list[Axis]:
    """The reduced axes, those with the largest strides in operands that are read in place first."""
    lying = [read for read in reads(sums.value) if read.tensor not in vectors.packed]

    def distance(axis: Axis) -> int:
        if vectors.by and axis.name == vectors.by.axis:
            return -1
        return max((abs(facts.stride(draft.expression, read, axis.name) or 0) for read in lying), default=0)

    return sorted(sums.reduced, key=distance, reverse=True)
