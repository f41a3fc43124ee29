"""Add-Multi-level-SPM: the operands of a tiled reduction are copied to a separate buffer, packed in the order of use.

On CPUs that buffer stays in cache, because it is read contiguously, and vectors are loaded from it along any axis.
Whether the copy is made once or for each block is a knob of its own, `at_NAME`.
"""

from __future__ import annotations

from collections.abc import Callable

from deepgen.compiler.rules import facts
from deepgen.compiler.rules.draft import Draft
from deepgen.compiler.rules.packing import (
    BLOCK,
    IN_PLACE,
    INLINE,
    ONCE,
    RegisterTile,
    lies_along,
    only_for,
    pack_squares,
    side_by_side,
    square_rows,
    stage_groups,
)
from deepgen.compiler.rules.template import Extent, times
from deepgen.compiler.rules.vectors import Vectors, copy_loops
from deepgen.compiler.schedule.steps import PARALLEL, UNROLL, VECTOR
from deepgen.operators.expr.nodes import Cast, Read, Stage, reads, walk
from deepgen.space import Value
from deepgen.vocabulary import dtype

_SHORT_RUN = 512  # bytes of a row that a block reads: with fewer, CPUs do not prefetch


def stage_operands(
    draft: Draft, sums: Stage, consumer: Stage, block: str, vectors: Vectors, tile: RegisterTile
) -> None:
    """A knob for each tensor that the sums read."""
    for name in dict.fromkeys(read.tensor for read in reads(sums.value)):
        if name in draft.done:
            continue
        if vectors.by is not None and (name in vectors.packed or not lies_along(draft, sums, name, vectors.by.axis)):
            stage_groups(draft, name, sums, consumer, block, vectors, tile)
        elif any(stage.name == name for stage in draft.expression.stages):
            _produced(draft, draft.stage(name), sums, consumer, block, inline=vectors.by is None)
        elif vectors.by is None:
            _of_tensor(draft, name, sums, consumer, block, vectors, tile)


def _produced(draft: Draft, producer: Stage, sums: Stage, consumer: Stage, block: str, *, inline: bool) -> None:
    """A stage before the sums, such as padding: computed where it is read, for each block, or once.

    By default it is computed for each block if blocks read disjoint parts of it, except for borders.
    """
    if not only_for(draft, producer):
        return  # it is scheduled as a separate stage

    def once(way: Draft) -> None:
        copy_loops(way, producer, parallel=True)
        way.scoped(producer.name, "global")

    def in_block(way: Draft) -> None:
        way.compute_at(producer.name, consumer.name, block)
        copy_loops(way, producer, parallel=False)

    ways: dict[Value, Callable[[Draft], None]] = {ONCE: once, BLOCK: in_block}
    if inline:
        ways[INLINE] = lambda way: way.inline(producer.name)
    draft.choose(f"at_{producer.name}", BLOCK if of_blocks(draft, producer, sums) else ONCE, ways)
    draft.finish(producer.name)


def of_blocks(draft: Draft, producer: Stage, sums: Stage) -> bool:
    """Whether blocks of sums read disjoint parts of a stage that only they read, except for borders."""
    matches = facts.reads_of(sums, producer.name)
    own = all(facts.depends(read, axis.name) for read in matches for axis in sums.axes if axis.extent > 1)
    return bool(matches) and own and only_for(draft, producer)


def fits_panels(sums: Stage, tensor: str, axis: str | None) -> bool:
    """Whether a copy of what sums read of a tensor can be stored in panels along one of their axes."""
    matches = facts.reads_of(sums, tensor)
    return (
        len(matches) == 1 and [facts.plain(index) for index in matches[0].indices].count(axis) == 1 and axis is not None
    )


def _of_tensor(
    draft: Draft, tensor: str, sums: Stage, consumer: Stage, block: str, vectors: Vectors, tile: RegisterTile
) -> None:
    """An input tensor: read in place, or packed into panels as wide, or as high, as a tile."""
    wide, matches = _cast_to(sums, tensor), facts.reads_of(sums, tensor)
    single, must = tensor in vectors.single, tensor in vectors.packed
    axis, panel = (vectors.reused_along, (tile.high,)) if single else (vectors.axis, (tile.wide, tile.lanes))
    along = [place for place, index in enumerate(matches[0].indices) if facts.plain(index) == axis]
    in_panels = fits_panels(sums, tensor, axis)
    reused = any(not facts.depends(matches[0], other.name) for other in sums.axes if other.extent > 1)
    if (not in_panels and (not single or wide is None)) or not (must or reused):
        return

    knob, name = draft.copy_of(tensor, sums.name)

    def copied(way: Draft, at: str | None) -> None:
        way.cache_read(tensor, name, [sums.name], wide)
        if in_panels:
            others = [place for place in range(len(matches[0].indices)) if place not in along]
            way.lay_out(name, others, (along[0], times(panel)))
        if at is not None:
            way.compute_at(name, consumer.name, at)
        else:
            way.scoped(name, "global")
        if in_panels:
            _pack(way, name, along[0], panel, parallel=at is None)
        else:
            copy_loops(way, way.stage(name), parallel=at is None)
        way.finish(name)

    ways: dict[Value, Callable[[Draft], None]] = {} if must else {IN_PLACE: lambda way: None}
    ways[ONCE] = lambda way: copied(way, None)
    ways[BLOCK] = lambda way: copied(way, block)
    run = None if tile.columns is None else tile.columns * dtype(matches[0].dtype).bytes
    short = tensor in vectors.loaded and run is not None and run < _SHORT_RUN
    packed = BLOCK if tile.own and not single and not short else ONCE
    draft.choose(knob, IN_PLACE if single and wide is None and not tile.packed else packed, ways)


def _cast_to(sums: Stage, tensor: str) -> str | None:
    """The format that every read of a tensor is cast to: a copy is then stored in that format, so that each element is
    cast once."""
    casts = [n for n in walk(sums.value) if isinstance(n, Cast) and isinstance(n.value, Read)]
    kinds = [n.dtype for n in casts if isinstance(n.value, Read) and n.value.tensor == tensor]
    return kinds[0] if len(kinds) == len(facts.reads_of(sums, tensor)) and len(set(kinds)) == 1 else None


def _pack(draft: Draft, name: str, along: int, panel: tuple[Extent, ...], *, parallel: bool) -> None:
    """Packs panel by panel, and within a panel in the order of the other dimensions.

    If the source is contiguous along the panels, several are filled at a time; if it is contiguous across them, it is
    copied in squares.
    """
    stage = draft.stage(name)
    axes = [axis.name for axis in stage.axes]
    row = square_rows(draft, stage, axes[along], panel[-1]) if len(panel) > 1 else None
    if row is not None:
        pack_squares(draft, name, (axes[along], panel), row, parallel=parallel)
        return
    others = [axis for axis in axes if axis != axes[along]]
    if len(panel) > 1 and facts.stride(draft.expression, reads(stage.value)[0], axes[along]) == 1:
        many = side_by_side(draft, name, axes[along], panel, parallel=parallel)
        outer, panels, *inner, vector = draft.split(name, axes[along], (many, *panel))
        draft.reorder(name, [outer, *others, panels, *inner, vector])
        draft.annotate(name, UNROLL, *inner)
        draft.annotate(name, VECTOR, vector)
    else:
        outer, *inner = draft.split(name, axes[along], panel)
        draft.reorder(name, [outer, *others, *inner])
        draft.annotate(name, UNROLL, *(inner if len(panel) == 1 else ()))
    if parallel:
        draft.annotate(name, PARALLEL, outer)
