"""Sums in tiles: blocks of registers that hold small matrices, as AMX has them.

A tile has as many rows as divide the axis that they lie along, so that there are no edges: products of fewer rows take
less time. Columns beyond an edge are computed, and not stored.
"""

from __future__ import annotations

from deepgen.compiler.intrinsics.tiles import GROUPS, MOST_ROWS, REGISTERS, TURNING, Tile
from deepgen.compiler.rules.candidates import divisors, up_to
from deepgen.compiler.rules.draft import Draft
from deepgen.compiler.rules.groups import RegisterTile
from deepgen.compiler.rules.numbers import Extent, covered, plus, times
from deepgen.compiler.rules.operands import stage_operands
from deepgen.compiler.rules.tiling import block_sizes, by_distance, lay_along, places_in, tile_consumer
from deepgen.compiler.rules.vectors import Vectors
from deepgen.compiler.schedule.steps import Tensorize
from deepgen.operators.expr.nodes import Stage

_FEWEST_ROWS = 4  # with fewer, vectors are as fast
_DOWN, _ACROSS = (1, 2, 3, 4, 5), (1, 2, 3)  # tiles of a block


def row_counts(extent: int) -> list[int]:
    """How many rows a tile may have; none where only few divide the axis."""
    found = [rows for rows in divisors(extent) if _FEWEST_ROWS <= rows <= MOST_ROWS]
    return found[-2:]


def tile_matrices(draft: Draft, sums: Stage, consumer: Stage, vectors: Vectors) -> None:
    assert vectors.by is not None and isinstance(vectors.by.dot, Tile) and vectors.reused_along is not None
    by, along, rows = vectors.by.dot, vectors.axis, vectors.reused_along
    to, extents = places_in(consumer, sums), {axis.name: axis.extent for axis in sums.axes}
    counts, columns = row_counts(extents[rows]), extents[along] // by.lanes
    usual_down = 2 if extents[rows] // counts[-1] % 2 == 0 else 1
    usual_across = 2 if columns > 1 else 1
    high = draft.knob(draft.free_name(sums.name, f"{rows}_3"), counts, counts[-1])
    down = draft.knob(draft.free_name(sums.name, f"{rows}_2"), up_to(_DOWN, extents[rows]), usual_down)
    across = draft.knob(draft.free_name(sums.name, f"{along}_2"), up_to(_ACROSS, columns), usual_across)
    held = plus([times([down, across]), across, TURNING])
    draft.derive(draft.free_name(sums.name, "tiles"), held)
    draft.require(held <= REGISTERS, "tiles of sums, and those that are multiplied, fit in registers")
    tall = times([down, high])
    draft.require(times([covered(extents[rows], tall), tall]) == extents[rows], f"tiles divide {rows}")

    usual = {to[along]: usual_across * by.lanes, to[rows]: usual_down * counts[-1]}
    sizes = block_sizes(draft, sums, consumer, vectors, usual, own=False)
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
    turns, *inner = draft.split(sums.name, by.axis, (GROUPS, by.dot.depth))
    alone = [axis.name for axis in sums.axes if axis.name not in (along, rows)]
    draft.reorder(sums.name, [*alone, *before, turns, *tiles, *inner])
    draft.step(Tensorize(sums.name, tiles[0], by.dot.name))
