"""Loops that choose a register are written out: a register has no address."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from deepgen.compiler.passes.ir import Alloc, Call, For, Stmt, Store, children, with_children
from deepgen.compiler.schedule.steps import SERIAL, UNROLL
from deepgen.operators.expr.nodes import reads

HELD = ("register", "warp", "fragment")
_MOST_HELD = 512  # elements; more than that are in memory in any case


def with_registers(body: Stmt) -> Stmt:
    return _unrolled(body, frozenset(_choosing(body, frozenset())))


def _choosing(statement: Stmt, held: frozenset[str]) -> Iterator[str]:
    """The variables of loops that choose among registers."""
    if isinstance(statement, Alloc) and statement.buffer.scope in HELD and statement.buffer.elements <= _MOST_HELD:
        held |= {statement.buffer.name}
    if isinstance(statement, Store):
        places = [*reads(statement.value)]
        chosen = [i for read in places if read.tensor in held for i in read.indices]
        for i in (*chosen, *(statement.indices if statement.buffer in held else ())):
            yield from i.iterators
    if isinstance(statement, Call):
        for read in statement.places:
            if read.tensor in held:
                yield from (name for i in read.indices for name in i.iterators)
    for child in children(statement):
        yield from _choosing(child, held)


def _unrolled(statement: Stmt, variables: frozenset[str]) -> Stmt:
    statement = with_children(statement, lambda s: _unrolled(s, variables))
    if isinstance(statement, For) and statement.kind == SERIAL and statement.variable in variables:
        return replace(statement, kind=UNROLL)
    return statement
