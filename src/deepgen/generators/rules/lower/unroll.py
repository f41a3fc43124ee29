"""Writes out the turns of unrolled loops."""

from __future__ import annotations

from dataclasses import replace

from deepgen.generators.rules.lower.bounds import Known
from deepgen.generators.rules.lower.ir import For, Function, Stmt, Store, sequence, walk, with_children, with_indices_in
from deepgen.generators.rules.lower.simplify import simplified
from deepgen.generators.rules.schedule.steps import SERIAL, UNROLL

_MOST_STORES = 2048  # in the text of one loop: beyond that, compilers take minutes


def unroll(function: Function) -> Function:
    return replace(function, body=simplified(unrolled(function.body), Known()))


def unrolled(statement: Stmt) -> Stmt:
    statement = with_children(statement, unrolled)
    if not isinstance(statement, For) or statement.kind != UNROLL:
        return statement
    stores = sum(isinstance(s, Store) for s in walk(statement.body))
    if statement.limits or stores * statement.extent > _MOST_STORES:
        return replace(statement, kind=SERIAL)
    return sequence(*(_turn(statement, turn) for turn in range(statement.extent)))


def _turn(loop: For, turn: int) -> Stmt:
    return with_indices_in(loop.body, lambda i: i.substitute({loop.variable: turn}))
