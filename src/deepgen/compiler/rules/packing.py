"""Copies into panels: contiguous runs along a panel, and transposed squares across it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from deepgen.compiler.intrinsics.tiles import TileProduct
from deepgen.compiler.intrinsics.vectors import Square
from deepgen.compiler.rules import facts
from deepgen.compiler.rules.draft import Draft
from deepgen.compiler.rules.rule import inlinable
from deepgen.compiler.rules.template import Extent, covered, least, times
from deepgen.compiler.rules.vectors import Vectors, contiguous
from deepgen.compiler.schedule.steps import PARALLEL, UNROLL, VECTOR
from deepgen.operators.expr.nodes import Read, Stage
from deepgen.space import Value
from deepgen.vocabulary import dtype

_SHARES, _SIDE_BY_SIDE = 2, 16  # parts of a copy per thread; panels that are filled at a time


def side_by_side(draft: Draft, name: str, axis: str, panel: tuple[Extent, ...], *, parallel: bool) -> Extent:
    """How many panels are filled at a time from a source that is contiguous along them.

    One at a time would read little of each row, and return to the same pages of memory many times.
    """
    panels = covered(draft.extents[name][axis], times(panel))
    return least(covered(panels, _SHARES * draft.target.cores), _SIDE_BY_SIDE) if parallel else panels


def square_rows(draft: Draft, stage: Stage, across: str, lanes: Extent, group: int = 1) -> str | None:
    """The axis along which a copy reads rows of squares, if it transposes them into columns along `across`.

    The square has as many rows as a vector has lanes, and as many groups of elements in each row.
    """
    read = stage.value
    if not isinstance(read, Read) or not isinstance(lanes, int):
        return None
    if not Square(lanes, group * dtype(stage.dtype).bytes).there:
        return None
    rows = [axis for axis in stage.axes if facts.stride(draft.expression, read, axis.name) == 1]
    return next((axis.name for axis in rows if axis.name != across and axis.extent >= lanes * group), None)


def pack_squares(
    draft: Draft, name: str, panel: tuple[str, tuple[Extent, ...]], row: str, group: int = 1, *, parallel: bool
) -> None:
    """Panel by panel: each has strips as wide as a vector, along which rows are read from beginning to end."""
    across, sizes = panel
    others = [axis.name for axis in draft.stage(name).axes if axis.name not in (across, row)]
    panels, *strips, column = draft.split(name, across, sizes)
    side = sizes[-1]
    squares, step, *within = draft.split(name, row, (side, group) if group > 1 else (side,))
    draft.reorder(name, [panels, *others, *strips, squares, step, column, *within])
    draft.annotate(name, UNROLL, column)
    draft.annotate(name, VECTOR, *within)
    if parallel:
        draft.annotate(name, PARALLEL, panels)


_TRANSPOSED = 8  # unrolled steps along the innermost dimension of a transposed copy
# Where a tiled sum's operand is copied or computed.
IN_PLACE, INLINE, ONCE, BLOCK = "in_place", "inline", "once", "block"


@dataclass(frozen=True)
class RegisterTile:
    """A register tile of sums: `high` rows of `wide` vectors of `lanes` lanes.

    Defaults without a search: `packed`, whether the operand of the rows is packed; `own`, whether each block of tiles
    reads panels that no other block reads, so that it packs them itself; `columns`, the number of its columns if all
    blocks read the same rows.
    """

    high: Extent
    wide: Extent
    lanes: int
    packed: bool = False
    own: bool = False
    columns: int | None = None


def lies_along(draft: Draft, sums: Stage, tensor: str, axis: str) -> bool:
    """Whether all reads of a tensor by sums are contiguous along an axis."""
    return all(facts.stride(draft.expression, read, axis) == 1 for read in facts.reads_of(sums, tensor))


def only_for(draft: Draft, producer: Stage) -> bool:
    """Whether a stage has a single reader, whose rule then schedules it."""
    return inlinable(draft.expression, producer) and len(facts.readers(draft.expression, producer.name)) == 1


def stage_groups(
    draft: Draft, tensor: str, sums: Stage, consumer: Stage, block: str, vectors: Vectors, tile: RegisterTile
) -> None:
    """A copy of a tensor, or a stage that only the sums read, in groups along the axis that the instruction sums over.

    An operand along which vectors run is stored in panels as wide as a tile, with the groups of a panel's columns
    contiguous; for tile instructions, each tile has a strip of the panel.
    """
    assert vectors.by is not None
    by, (read,), panel = vectors.by, facts.reads_of(sums, tensor), (tile.wide, tile.lanes)
    produced = {stage.name for stage in draft.expression.stages}
    own = tensor in produced and only_for(draft, draft.stage(tensor))
    places = [facts.plain(index) for index in read.indices]
    over = places.index(by.axis)

    knob, copy = draft.copy_of(tensor, sums.name)
    name = tensor if own else copy

    def copied(way: Draft, at: str | None) -> None:
        if not own:
            way.cache_read(tensor, name, [sums.name])
        others = [place for place in range(len(places)) if place != over]
        along = places.index(vectors.axis) if tensor in vectors.packed else None
        if along is None:
            way.lay_out(name, [*others, over])
        else:
            outer = [*(place for place in others if place != along), over]
            strip = panel if isinstance(by.dot, TileProduct) else None
            way.lay_out(name, outer, (along, times(panel)), (over, by.dot.depth), strip)
        if at is None:
            way.scoped(name, "global")
        else:
            way.compute_at(name, consumer.name, at)
        if along is None:
            _transpose(way, name, over, by.dot.depth, parallel=at is None)
        else:
            _pack(way, name, (along, panel), (over, by.dot.depth), strips=strip is not None, parallel=at is None)
        way.finish(name)

    ways: dict[Value, Callable[[Draft], None]] = {
        ONCE: lambda way: copied(way, None),
        BLOCK: lambda way: copied(way, block),
    }
    draft.choose(knob, BLOCK if tile.own and tensor in vectors.packed else ONCE, ways)


def _transpose(draft: Draft, name: str, over: int, group: int, *, parallel: bool) -> None:
    """A copy with another innermost dimension: small blocks are unrolled, as transposes of scalars."""
    axes = [axis.name for axis in draft.stage(name).axes]
    others = [axis for place, axis in enumerate(axes) if place != over]
    groups, within = draft.split(name, axes[over], (group,))
    *outer, last = others
    steps, step = draft.split(name, last, (_TRANSPOSED,))
    draft.reorder(name, [*outer, groups, steps, step, within])
    draft.annotate(name, UNROLL, step, within)
    if parallel:
        draft.annotate(name, PARALLEL, draft.fuse(name, [*outer, groups]))


def _pack(
    draft: Draft,
    name: str,
    panel: tuple[int, tuple[Extent, int]],
    group: tuple[int, int],
    *,
    strips: bool,
    parallel: bool,
) -> None:
    """In the order of the copy: vectors along columns, which are interleaved, or a group as one number.

    Groups that are already contiguous are copied in squares. With `strips`, a panel consists of several strips.
    """
    stage = draft.stage(name)
    axes = [axis.name for axis in stage.axes]
    across, down = (contiguous(draft.expression, stage, axes[place]) for place in (panel[0], group[0]))
    if square_rows(draft, stage, axes[panel[0]], panel[1][1], group[1]) == axes[group[0]] and not across:
        pack_squares(draft, name, (axes[panel[0]], panel[1]), axes[group[0]], group[1], parallel=parallel)
        return
    wide = panel[1] if strips else (times(panel[1]),)
    many = side_by_side(draft, name, axes[panel[0]], wide, parallel=parallel) if across else 1
    parts, panels, *strip, column = draft.split(name, axes[panel[0]], (many, *wide))
    groups, within = draft.split(name, axes[group[0]], (group[1],))
    others = [groups if place == group[0] else axis for place, axis in enumerate(axes) if place != panel[0]]
    between = [*others, panels, *strip] if across else [panels, *strip, *others]
    draft.reorder(name, [parts, *between, column, within])
    draft.annotate(name, UNROLL, column if down and not across else within)
    if across or down:
        draft.annotate(name, VECTOR, column if across else within)
    if parallel:
        draft.annotate(name, PARALLEL, parts)
