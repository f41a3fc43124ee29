"""Checks that the loops to tensorize compute what the instruction computes, and reorders them to match it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from deepgen.compiler.intrinsics.dots import DOTS, Dot
from deepgen.compiler.intrinsics.tiles import STORE, TILES, TileBlock, TileCall, block_of
from deepgen.compiler.passes.ir import Alloc, Around, Call, For, Seq, Stmt, Store, sequence, walk, with_children
from deepgen.compiler.schedule.steps import SERIAL
from deepgen.operators.expr.contraction import factors
from deepgen.operators.expr.index import Index, iterator
from deepgen.operators.expr.nodes import Cast, Read, Value
from deepgen.vocabulary import BadInput, dtype


@dataclass(frozen=True)
class Operands:
    """The first elements of a dot product's operands."""

    sums: Index
    left: Read
    right: Read


def operands(loop: For) -> Operands:
    """The operands of the loops of a dot product."""
    assert isinstance(loop.body, For) and isinstance(loop.body.body, Store)
    matched = _matched(DOTS[loop.kind], loop, loop.body, loop.body.body)
    assert matched is not None
    return matched


@dataclass(frozen=True)
class TileOperands:
    """The first elements of a tile block's operands, and the distances between rows and between tiles, in elements."""

    block: TileBlock
    left: Read
    row: int
    below: int
    right: Read
    next: int


def tile_operands(loop: For) -> TileOperands:
    """The operands of a tile block's loops, given the outermost."""
    nest = [loop]
    while isinstance(nest[-1].body, For):
        nest.append(nest[-1].body)
    store = nest[-1].body
    matched = _matched_tiles(nest, store) if isinstance(store, Store) and len(nest) == 6 else None
    if matched is None:
        tile = TILES[loop.kind]
        raise BadInput(
            f"{tile.name} cannot do the loops from {loop.variable} inwards",
            allowed=f"whole tiles: {tile.left} with {tile.whole} side by side, {tile.right} in groups of {tile.depth} "
            f"for {tile.lanes} columns, and sums that lie row by row",
        )
    return matched


def _matched_tiles(nest: Sequence[For], store: Store) -> TileOperands | None:
    tile, sides = TILES[nest[0].kind], factors(store)
    if sides is None or store.value.dtype != tile.result:
        return None
    if any(loop.kind != tile.name or loop.limits for loop in nest):
        return None
    block, wide = block_of(tile.name, [loop.extent for loop in nest]), nest[2].extent * tile.lanes
    sums = _apart(store.indices[0], nest, (block.rows * wide, wide, tile.lanes, 1, 0, 0))
    for one, other in (sides, sides[::-1]):
        left = _read_apart(one, tile.left, nest, (None, None, 0, 0, tile.depth, 1))
        right = _read_apart(other, tile.right, nest, (0, 0, None, tile.depth, tile.depth * tile.lanes, 1))
        if sums is not None and left is not None and right is not None:
            return TileOperands(block, left[0], left[1][1], left[1][0], right[0], right[1][2])
    return None


def _read_apart(
    value: Value, dtype: str, nest: Sequence[For], wanted: Sequence[int | None]
) -> tuple[Read, list[int]] | None:
    read = value.value if isinstance(value, Cast) else value
    if not isinstance(read, Read) or read.dtype != dtype:
        return None
    apart = _apart(read.indices[0], nest, wanted)
    return None if apart is None else (replace(read, indices=(apart[0],)), apart[1])


def _apart(offset: Index, nest: Sequence[For], wanted: Sequence[int | None]) -> tuple[Index, list[int]] | None:
    """An offset without these loops, and its step along each; None if a step is not the wanted one."""
    apart: list[int] = []
    for loop, wanted_step in zip(nest, wanted, strict=True):
        step = offset.step(loop.variable)
        if step is None or (wanted_step not in (None, step) and loop.extent > 1):
            return None
        apart.append(step)
        offset = offset - iterator(loop.variable) * step
    return offset, apart


def tensorize(statement: Stmt, around: Around) -> Stmt:
    if isinstance(statement, For) and statement.kind in TILES:
        tile_operands(statement)
        return statement
    if not isinstance(statement, For) or statement.kind not in DOTS:
        return with_children(statement, lambda one: tensorize(one, around))
    inner = statement.body
    if not isinstance(inner, For) or inner.kind != statement.kind or not isinstance(inner.body, Store):
        # The remainder of the pair at an edge.
        return replace(statement, kind=SERIAL, body=tensorize(inner, around))
    dot, store = DOTS[statement.kind], inner.body
    for lanes, depth in ((statement, inner), (inner, statement)):
        if _matched(dot, lanes, depth, store) is not None:
            return replace(lanes, body=replace(depth, body=store))
    raise BadInput(
        f"{dot.name} cannot do the loops {statement.variable} and {inner.variable}",
        allowed=f"{dot.lanes} sums of {dot.depth} products of {dot.left} and {dot.right}, both side by side along the "
        f"{dot.depth}, and {'both' if dot.each else 'the second'} along the {dot.lanes}",
    )


def _matched(dot: Dot, lanes: For, depth: For, store: Store) -> Operands | None:
    sides = factors(store)
    if sides is None or store.value.dtype != dot.result:
        return None
    if (lanes.extent, depth.extent) != (dot.lanes, dot.depth) or lanes.limits or depth.limits:
        return None
    sums = _apart(store.indices[0], (lanes, depth), (1, 0))
    for one, other in (sides, sides[::-1]):
        left = _read_apart(one, dot.left, (lanes, depth), (dot.depth if dot.each else 0, 1))
        right = _read_apart(other, dot.right, (lanes, depth), (dot.depth, 1))
        if sums is not None and left is not None and right is not None:
            return Operands(sums[0], left[0], right[0])
    return None


def stores(statement: Stmt, around: Around) -> Stmt:
    if not isinstance(statement, Alloc) or not isinstance(statement.body, Seq):
        return with_children(statement, lambda one: stores(one, around))
    *before, stored, copied = statement.body.body
    tiles = [s for s in walk(sequence(*before)) if isinstance(s, For) and s.kind in TILES]
    block = tile_operands(tiles[0]).block if tiles else None
    to = _rows(copied, statement, block) if block is not None else None
    if block is None or to is None or not isinstance(stored, Call):
        return with_children(statement, lambda one: stores(one, around))
    place, row = to
    return sequence(*before, Call(TileCall(block, STORE), (place,), (row * dtype(place.dtype).bytes,)))


def _rows(copied: Stmt, sums: Alloc, block: TileBlock) -> tuple[Read, int] | None:
    """The place to which loops copy all sums of a block, and the distance between rows there; None if the loops do
    anything else."""
    extents: dict[str, int] = {}
    while isinstance(copied, For) and not copied.limits:
        extents[copied.variable] = copied.extent
        copied = copied.body
    if not isinstance(copied, Store) or copied.reduce is not None or not isinstance(copied.value, Read):
        return None
    (here,), (there,) = copied.value.indices, copied.indices
    from_steps, to_steps = ({name: i.step(name) or 0 for name in extents} for i in (here, there))
    wide = block.across * block.tile.lanes
    rows = {to_steps[name] * wide // step for name, step in from_steps.items() if step >= wide}
    places = _places(from_steps, extents)
    if len(rows) != 1 or copied.value.tensor != sums.buffer.name or places != list(range(sums.buffer.elements)):
        return None
    (row,) = rows
    if any(to_steps[n] != (step // wide * row if step >= wide else step) for n, step in from_steps.items()):
        return None
    base = there.substitute(dict.fromkeys(extents, Index()))
    return Read(copied.buffer, (base,), copied.value.dtype), row


def _places(steps: dict[str, int], extents: dict[str, int]) -> list[int]:
    """The offsets that loops reach, in ascending order."""
    places = [0]
    for name, extent in extents.items():
        places = [place + iteration * steps[name] for place in places for iteration in range(extent)]
    return sorted(places)
