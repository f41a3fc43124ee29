"""Removes what the ranges of loops decide: guards that always hold, limits that never bind, loops of one turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from deepgen.compiler.intrinsics.tiles import TILES
from deepgen.compiler.passes.bounds import Known, conditions
from deepgen.compiler.passes.ir import (
    EMPTY,
    Alloc,
    Call,
    For,
    Function,
    If,
    Stmt,
    Store,
    with_children,
    with_indices_in,
)
from deepgen.compiler.schedule.steps import BOUND
from deepgen.operators.expr.index import Index, iterator
from deepgen.operators.expr.nodes import Binary, Cast, Compare, Const, Logic, Place, Read, Select, Unary, Value


def simplify(function: Function) -> Function:
    return replace(function, body=simplified(function.body, Known()))


def simplified(statement: Stmt, known: Known) -> Stmt:
    if isinstance(statement, For):
        return _for(statement, known)
    if isinstance(statement, If):
        return _if(statement, known)
    if isinstance(statement, Store):
        indices = tuple(known.simple(i) for i in statement.indices)
        return replace(statement, indices=indices, value=_value(statement.value, known))
    if isinstance(statement, Call):
        return with_indices_in(statement, known.simple)
    if isinstance(statement, Alloc):
        body = simplified(statement.body, known)
        return EMPTY if body == EMPTY else replace(statement, body=body)
    return with_children(statement, lambda s: simplified(s, known))


def _for(loop: For, known: Known) -> Stmt:
    limits = [known.simple(limit) for limit in loop.limits]
    extent = min([loop.extent, *(limit.constant for limit in limits if not limit.terms)])
    limits = _needed([limit for limit in limits if limit.terms], extent, known)
    if extent < 1 or any(known.never(limit - 1) for limit in limits):
        return EMPTY
    if extent == 1 and loop.kind not in (*BOUND, *TILES):
        body = with_indices_in(loop.body, lambda i: i.substitute({loop.variable: 0}))
        return simplified(If(tuple(limit - 1 for limit in limits), body) if limits else body, known)
    inside = known.inside(loop.variable, extent).given(_below(loop.variable, limits))
    body = simplified(loop.body, inside)
    return EMPTY if body == EMPTY else replace(loop, extent=extent, body=body, limits=tuple(limits))


def _needed(limits: Sequence[Index], extent: int, known: Known) -> list[Index]:
    kept: list[Index] = []
    for limit in dict.fromkeys(limits):
        if not known.always(limit - extent):
            kept.append(limit)
    return kept


def _below(variable: str, limits: Sequence[Index]) -> list[Index]:
    return [limit - 1 - iterator(variable) for limit in limits]


def _if(guard: If, known: Known) -> Stmt:
    told = [known.simple(c) for c in dict.fromkeys(guard.conditions)]
    if any(known.never(c) for c in told):
        return EMPTY if guard.otherwise is None else simplified(guard.otherwise, known)
    left = [c for c in told if not known.always(c)]
    then = simplified(guard.then, known.given(left))
    otherwise = None
    if guard.otherwise is not None and left:
        otherwise = simplified(guard.otherwise, known)
        otherwise = None if otherwise == EMPTY else otherwise
    if not left:
        return then
    if then == EMPTY and otherwise is None:
        return EMPTY
    if isinstance(then, If) and then.otherwise is None and otherwise is None:
        return If((*left, *then.conditions), then.then)
    return If(tuple(left), then, otherwise)


def _value(value: Value, known: Known) -> Value:
    if isinstance(value, Place):
        return replace(value, index=known.simple(value.index))
    if isinstance(value, Read):
        return replace(value, indices=tuple(known.simple(i) for i in value.indices))
    if isinstance(value, Const):
        return value
    if isinstance(value, (Cast, Unary)):
        return replace(value, value=_value(value.value, known))
    if isinstance(value, (Binary, Compare, Logic)):
        return replace(value, left=_value(value.left, known), right=_value(value.right, known))
    return _select(value, known)


def _select(value: Select, known: Known) -> Value:
    told = conditions(value.condition)
    if told is None:
        parts = (value.condition, value.then, value.otherwise)
        return Select(*(_value(part, known) for part in parts))
    if any(known.never(c) for c in told):
        return _value(value.otherwise, known)
    left = [known.simple(c) for c in dict.fromkeys(told) if not known.always(c)]
    then = _value(value.then, known.given(left))
    if not left:
        return then
    return Select(all_of(left), then, _value(value.otherwise, known))


def all_of(conditions: Sequence[Index]) -> Value:
    """The value that is true where no index is negative."""
    whole: Value | None = None
    for c in conditions:
        one = Compare("le", Const(0, "i64"), Place(c))
        whole = one if whole is None else Logic("and", whole, one)
    assert whole is not None
    return whole
