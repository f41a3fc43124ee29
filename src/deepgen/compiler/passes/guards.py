"""Moves guards outwards: a guard that does not depend on a loop is asked before it, and one that does bounds it."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

from deepgen.compiler.passes.ir import Alloc, For, Function, If, Stmt, with_children
from deepgen.compiler.schedule.steps import PARALLEL, SERIAL
from deepgen.operators.expr.index import Index, Iter, iterator


def place_guards(function: Function) -> Function:
    return replace(function, body=placed(function.body))


def placed(statement: Stmt) -> Stmt:
    statement = with_children(statement, placed)
    if isinstance(statement, Alloc) and _plain(statement.body):
        return replace(statement.body, then=replace(statement, body=statement.body.then))
    if isinstance(statement, For) and _plain(statement.body):
        return _out_of_loop(statement, statement.body)
    return statement


def _plain(statement: Stmt) -> TypeGuard[If]:
    return isinstance(statement, If) and statement.otherwise is None


def _out_of_loop(loop: For, guard: If) -> Stmt:
    before, limits, inside = [], list(loop.limits), []
    for condition in guard.conditions:
        limit = _limit(loop, condition)
        if loop.variable not in condition.iterators:
            before.append(condition)
        elif limit is not None:
            limits.append(limit)
        else:
            inside.append(condition)
    body = If(tuple(inside), guard.then) if inside else guard.then
    made: Stmt = replace(loop, body=body, limits=tuple(dict.fromkeys(limits)))
    return If(tuple(before), made) if before else made


def _limit(loop: For, condition: Index) -> Index | None:
    """Below which the loop's variable keeps to a condition."""
    times = dict(condition.terms).get(Iter(loop.variable), 0)
    rest = condition - iterator(loop.variable) * times
    if loop.kind not in (SERIAL, PARALLEL) or times >= 0 or loop.variable in rest.iterators:
        return None
    return rest // -times + 1
