"""Writes out the iterations of unrolled loops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from deepgen.compiler.passes.ir import (
    Alloc,
    Around,
    Fence,
    For,
    Stmt,
    Store,
    accesses,
    children,
    held_in,
    sequence,
    walk,
    with_children,
    with_indices_in,
)
from deepgen.compiler.passes.simplify import simplified
from deepgen.compiler.schedule.bounds import IndexBounds
from deepgen.compiler.schedule.steps import SERIAL, UNROLL
from deepgen.operators.expr.nodes import reads

_MANY = 16  # sums, of which vectors take most of the registers that there are
_MOST_STORES = 2048  # in the text of one loop: beyond that, compilers take minutes


def unroll(body: Stmt, _: Around) -> Stmt:
    return simplified(_unrolled(body, held_in(body, ("register",)), fence=True), IndexBounds())


def _unrolled(statement: Stmt, registers: frozenset[str], fence: bool) -> Stmt:
    """`fence` is whether fences may stand in it: they must not where unrolled loops around share what is loaded."""
    written_out = isinstance(statement, For) and statement.kind == UNROLL
    if isinstance(statement, For):
        fence = (fence and _fenced(statement, registers)) if written_out else True
    inner = with_children(statement, lambda s: _unrolled(s, registers, fence))
    if not isinstance(inner, For) or not written_out:
        return inner
    stores = sum(isinstance(s, Store) for s in walk(inner.body))
    if inner.limits or stores * inner.extent > _MOST_STORES:
        return replace(inner, kind=SERIAL)
    iterations = [_iteration(inner, iteration) for iteration in range(inner.extent)]
    return sequence(*(s for iteration in iterations for s in ((iteration, Fence()) if fence else (iteration,))))


def _iteration(loop: For, iteration: int) -> Stmt:
    return with_indices_in(loop.body, lambda i: i.substitute({loop.variable: iteration}))


def _fenced(loop: For, registers: frozenset[str]) -> bool:
    """Whether iterations only add to many sums in registers, from memory that no other iteration reads.

    Compilers load ahead what later iterations read, until registers run out and sums are spilled. With fences a tile
    of 8 x 8 f32 is a tenth faster with gcc 12 on a Neoverse N1.
    """
    stores = [s for s in walk(loop.body) if isinstance(s, Store)]
    memory = [r for s in stores for r in reads(s.value) if r.tensor not in registers]
    return (
        _sums(loop, registers) >= _MANY
        and bool(memory)
        and all(loop.variable in r.indices[0].iterators for r in memory)
    )


def _sums(statement: Stmt, registers: frozenset[str]) -> int:
    """How often the text of a statement adds to a register."""
    if isinstance(statement, Store):
        return int(bool(statement.reduce) and statement.buffer in registers)
    times = statement.extent if isinstance(statement, For) and statement.kind == UNROLL else 1
    return times * sum(_sums(child, registers) for child in children(statement))


HELD = ("register", "warp", "fragment")
_MOST_HELD = 512  # elements; more than that are in memory in any case


def unroll_registers(body: Stmt, _: Around) -> Stmt:
    """Loops that choose among registers: compilers for GPUs write them out, as registers have no places."""
    return _written_out(body, frozenset(_choosing(body, frozenset())))


def _choosing(statement: Stmt, held: frozenset[str]) -> Iterator[str]:
    """The variables of loops that choose among registers."""
    if isinstance(statement, Alloc) and statement.buffer.scope in HELD and statement.buffer.elements <= _MOST_HELD:
        held |= {statement.buffer.name}
    for read in accesses(statement):
        if read.tensor in held:
            yield from (name for i in read.indices for name in i.iterators)
    for child in children(statement):
        yield from _choosing(child, held)


def _written_out(statement: Stmt, variables: frozenset[str]) -> Stmt:
    statement = with_children(statement, lambda s: _written_out(s, variables))
    if isinstance(statement, For) and statement.kind == SERIAL and statement.variable in variables:
        return replace(statement, kind=UNROLL)
    return statement
