"""Copies ahead of their use: a ring of buffers, of which one is read while the others are filled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from deepgen.compiler.intrinsics.matrix import WARPGROUP, wide_product
from deepgen.compiler.passes.ir import (
    Barrier,
    Buffer,
    Call,
    For,
    If,
    Seq,
    Stmt,
    Store,
    children,
    sequence,
    walk,
    with_children,
    with_indices_in,
)
from deepgen.compiler.schedule.state import Loop
from deepgen.compiler.schedule.steps import SERIAL, UNROLL, VECTOR
from deepgen.operators.expr.index import Index, iterator
from deepgen.operators.expr.nodes import Read, Value, reads, with_reads

COMMIT, WAIT = "copy_commit", "copy_wait"
_CHUNK = 128  # bytes: buffers of a ring begin at multiples of it, so that each is swizzled alike


def several(buffer: Buffer, depth: int) -> Buffer:
    """A ring of buffers."""
    apart = buffer.elements + -buffer.elements % _CHUNK
    return replace(buffer, sizes=(depth, *buffer.sizes), strides=(apart, *buffer.strides))


def filled_ahead(loop: Loop, depth: int, copies: Mapping[str, Stmt], body: Stmt, signalled: bool = False) -> Stmt:
    """The loop with copies `depth - 1` iterations ahead. `copies` are statements over the loop's variable, by buffer.

    With `told`, matrix units that read copies themselves are told of them. Where they read both operands, products of
    one iteration still run while the next one begins: what they read is overwritten an iteration later, by copies that
    are one iteration less ahead.
    """
    now, first = iterator(loop.variable), f"{loop.variable}.ahead"
    for name in copies:
        body = _in_ring(body, name, now % depth)
    waits = Call(WARPGROUP.waits())
    last = isinstance(body, Seq) and body.body[-1] == waits  # products run on their own until then
    late = last and depth > 2 and _in_lines(body)
    ahead = depth - 2 if late else depth - 1
    before = For(first, ahead, UNROLL, _asked(loop, copies, iterator(first), depth))
    ready: list[Stmt] = [Call(f"{WAIT}<{ahead - 1}>"), *([Call(WARPGROUP.ready)] if signalled else []), Barrier()]
    asked = _asked(loop, copies, now + ahead, depth)
    ends: list[Stmt] = [Call(f"{WAIT}<0>")]
    if isinstance(body, Seq) and last:
        pending = Call(WARPGROUP.waits(_groups(body))) if late else waits
        iterations = sequence(*ready, *body.body[:-1], asked, pending)
        ends += [waits] if late else []
    else:
        iterations = sequence(*ready, asked, body)
    # Whoever comes first to the copies must not overwrite what others still read.
    return sequence(Barrier(), before, For(loop.variable, loop.extent, SERIAL, iterations), *ends)


def _in_lines(body: Stmt) -> bool:
    """Whether matrix units read both operands of all products themselves."""
    products = [product for s in walk(body) if isinstance(s, Call) and (product := wide_product(s.name))]
    return bool(products) and all(product.apart for product in products)


def _groups(body: Stmt) -> int:
    """How many groups of products an iteration has."""
    if isinstance(body, Call):
        return int(body.name == WARPGROUP.commit)
    return (body.extent if isinstance(body, For) else 1) * sum(map(_groups, children(body)))


def _asked(loop: Loop, copies: Mapping[str, Stmt], iteration: Index, depth: int) -> Stmt:
    """The copies of an iteration, if there is one; they count as one group, be it empty."""
    parts = [_in_ring(_ahead(copy), name, iterator(loop.variable) % depth) for name, copy in copies.items()]
    moved = with_indices_in(sequence(*parts), lambda i: i.substitute({loop.variable: iteration}))
    return sequence(If((loop.extent - 1 - iteration,), moved), Call(COMMIT))


def is_transposed(copy: Stmt) -> bool:
    """Whether neighbours that are written lie apart where they are read: such copies are waited for."""
    runs = [s for s in walk(copy) if isinstance(s, For) and s.kind == VECTOR]
    stores = [(run.variable, s) for run in runs for s in walk(run) if isinstance(s, Store)]
    pairs = [(variable, read) for variable, s in stores for read in reads(s.value)]
    inmost = [(variable, [i for i in read.indices if i.iterators][-1:]) for variable, read in pairs]
    return any(variable not in i.iterators for variable, last in inmost for i in last)


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
