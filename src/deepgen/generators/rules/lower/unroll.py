"""Writes out the turns of unrolled loops."""

from __future__ import annotations

from dataclasses import replace

from deepgen.generators.rules.lower.bounds import Known
from deepgen.generators.rules.lower.ir import (
    Alloc,
    Fence,
    For,
    Function,
    Stmt,
    Store,
    sequence,
    walk,
    with_children,
    with_indices_in,
)
from deepgen.generators.rules.lower.simplify import simplified
from deepgen.generators.rules.schedule.steps import SERIAL, UNROLL
from deepgen.operators.expr.nodes import reads

_MOST_STORES = 2048  # in the text of one loop: beyond that, compilers take minutes


def unroll(function: Function) -> Function:
    held = frozenset(
        s.buffer.name for s in walk(function.body) if isinstance(s, Alloc) and s.buffer.scope == "register"
    )
    return replace(function, body=simplified(unrolled(function.body, held), Known()))


def unrolled(statement: Stmt, registers: frozenset[str]) -> Stmt:
    statement = with_children(statement, lambda s: unrolled(s, registers))
    if not isinstance(statement, For) or statement.kind != UNROLL:
        return statement
    stores = sum(isinstance(s, Store) for s in walk(statement.body))
    if statement.limits or stores * statement.extent > _MOST_STORES:
        return replace(statement, kind=SERIAL)
    turns = [_turn(statement, turn) for turn in range(statement.extent)]
    if not _fenced(statement, registers):
        return sequence(*turns)
    return sequence(*(s for turn in turns for s in (turn, Fence())))


def _turn(loop: For, turn: int) -> Stmt:
    return with_indices_in(loop.body, lambda i: i.substitute({loop.variable: turn}))


def _fenced(loop: For, registers: frozenset[str]) -> bool:
    """Whether turns only add to sums in registers, from memory that no other turn reads.

    Compilers load ahead what later turns read, until registers run out and sums are spilled.
    """
    stores = [s for s in walk(loop.body) if isinstance(s, Store)]
    if not any(s.reduce and s.buffer in registers for s in stores):
        return False
    memory = [r for s in stores for r in reads(s.value) if r.tensor not in registers]
    return all(loop.variable in r.indices[0].iterators for r in memory)
