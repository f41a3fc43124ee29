"""Sums in tiles are stored where they belong, if nothing else is to be done with them."""

from __future__ import annotations

from dataclasses import replace

from deepgen.compiler.intrinsics.tiles import TILES, Block
from deepgen.compiler.passes.ir import (
    Alloc,
    Call,
    For,
    Function,
    Seq,
    Stmt,
    Store,
    sequence,
    walk,
    with_children,
)
from deepgen.compiler.passes.tensorize import tile_operands
from deepgen.operators.expr.index import Index, Iter
from deepgen.operators.expr.nodes import Read
from deepgen.vocabulary.dtypes import dtype


def store_tiles(function: Function) -> Function:
    return replace(function, body=_stored(function.body))


def _stored(statement: Stmt) -> Stmt:
    if not isinstance(statement, Alloc) or not isinstance(statement.body, Seq):
        return with_children(statement, _stored)
    *before, stored, copied = statement.body.body
    tiles = [s for s in walk(sequence(*before)) if isinstance(s, For) and s.kind in TILES]
    block = tile_operands(tiles[0]).block if tiles else None
    to = _rows(copied, statement, block) if block is not None else None
    if block is None or to is None or not isinstance(stored, Call):
        return with_children(statement, _stored)
    place, row = to
    return sequence(*before, Call(f"{block.name}_store", (place,), (row * dtype(place.dtype).bytes,)))


def _rows(copied: Stmt, sums: Alloc, block: Block) -> tuple[Read, int] | None:
    """Where loops copy all sums of a block to, and how far rows are apart there; None where they do anything else."""
    extents: dict[str, int] = {}
    while isinstance(copied, For) and not copied.limits:
        extents[copied.variable] = copied.extent
        copied = copied.body
    if not isinstance(copied, Store) or copied.reduce is not None or not isinstance(copied.value, Read):
        return None
    (here,), (there,) = copied.value.indices, copied.indices
    from_steps, to_steps = ({name: dict(i.terms).get(Iter(name), 0) for name in extents} for i in (here, there))
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
    """The elements that loops reach, in order."""
    places = [0]
    for name, extent in extents.items():
        places = [place + turn * steps[name] for place in places for turn in range(extent)]
    return sorted(places)
