"""Copies ahead of their use: a ring of buffers, of which one is read while the others are filled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from deepgen.generators.rules.lower.gpu.tensorize import PRODUCTS_WAIT
from deepgen.generators.rules.lower.ir import (
    Barrier,
    Buffer,
    Call,
    For,
    If,
    Seq,
    Stmt,
    Store,
    sequence,
    with_children,
    with_indices_in,
)
from deepgen.generators.rules.schedule.state import Loop
from deepgen.generators.rules.schedule.steps import SERIAL, UNROLL
from deepgen.operators.expr.index import Index, iterator
from deepgen.operators.expr.nodes import Read, Value
from deepgen.operators.expr.rewrite import with_reads

COMMIT, WAIT = "copy_commit", "copy_wait"
READY = "writes_ready"
_CHUNK = 128  # bytes: buffers of a ring begin at multiples of it, so that each is swizzled alike


def several(buffer: Buffer, depth: int) -> Buffer:
    """A ring of buffers."""
    apart = buffer.elements + -buffer.elements % _CHUNK
    return replace(buffer, sizes=(depth, *buffer.sizes), strides=(apart, *buffer.strides))


def filled_ahead(loop: Loop, depth: int, copies: Mapping[str, Stmt], body: Stmt, told: bool = False) -> Stmt:
    """The loop with copies `depth - 1` turns ahead. `copies` are statements over the loop's variable, by buffer.

    With `told`, matrix units that read copies themselves are told of them.
    """
    now, first = iterator(loop.variable), f"{loop.variable}.ahead"
    before = For(first, depth - 1, UNROLL, _asked(loop, copies, iterator(first), depth))
    for name in copies:
        body = _in_ring(body, name, now % depth)
    ready: list[Stmt] = [Call(f"{WAIT}<{depth - 2}>"), *([Call(READY)] if told else []), Barrier()]
    asked, waits = _asked(loop, copies, now + (depth - 1), depth), Call(PRODUCTS_WAIT)
    if isinstance(body, Seq) and body.body[-1] == waits:
        # Products run on their own by now: copies are asked for meanwhile.
        turns = sequence(*ready, *body.body[:-1], asked, waits)
    else:
        turns = sequence(*ready, asked, body)
    # Whoever comes first to the copies must not overwrite what others still read.
    return sequence(Barrier(), before, For(loop.variable, loop.extent, SERIAL, turns), Call(f"{WAIT}<0>"))


def _asked(loop: Loop, copies: Mapping[str, Stmt], turn: Index, depth: int) -> Stmt:
    """The copies of a turn, if there is one; they count as one group, be it empty."""
    parts = [_in_ring(_ahead(copy), name, iterator(loop.variable) % depth) for name, copy in copies.items()]
    moved = with_indices_in(sequence(*parts), lambda i: i.substitute({loop.variable: turn}))
    return sequence(If((loop.extent - 1 - turn,), moved), Call(COMMIT))


def _ahead(statement: Stmt) -> Stmt:
    if isinstance(statement, Store):
        return replace(statement, ahead=True)
    return with_children(statement, _ahead)


def _in_ring(statement: Stmt, name: str, slot: Index) -> Stmt:
    def place(read: Read) -> Value:
        return replace(read, indices=(slot, *read.indices)) if read.tensor == name else read

    if isinstance(statement, Store):
        indices = (slot, *statement.indices) if statement.buffer == name else statement.indices
        return replace(statement, indices=indices, value=with_reads(statement.value, place))
    if isinstance(statement, Call):
        places = tuple(replace(r, indices=(slot, *r.indices)) if r.tensor == name else r for r in statement.places)
        return replace(statement, places=places)
    return with_children(statement, lambda s: _in_ring(s, name, slot))
