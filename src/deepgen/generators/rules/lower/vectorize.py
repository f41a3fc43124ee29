"""Brings vector loops to single stores, in pieces of the hardware's vectors; what cannot be a vector stays a loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from deepgen.generators.rules.intrinsics.dots import DOTS
from deepgen.generators.rules.lower.ir import (
    Alloc,
    Barrier,
    Call,
    Fence,
    For,
    Function,
    If,
    Seq,
    Stmt,
    Store,
    sequence,
    with_children,
    with_indices_in,
)
from deepgen.generators.rules.schedule.steps import SERIAL, VECTOR
from deepgen.operators.expr.index import Index, Iter, iterator
from deepgen.operators.expr.nodes import BOOL, Place, Read, Select, Value, children, reads, walk
from deepgen.vocabulary.dtypes import dtype

_DONE_AT_ONCE = (VECTOR, *DOTS)
_MOST_PIECES = 16  # that follow each other in the text; more are a loop
_ARITHMETIC_BYTES = 4  # of smaller floats


def vectorize(function: Function, vector_bytes: int) -> Function:
    return replace(function, body=_vectorized(function.body, vector_bytes))


def _vectorized(statement: Stmt, vector_bytes: int) -> Stmt:
    statement = with_children(statement, lambda s: _vectorized(s, vector_bytes))
    if not isinstance(statement, For) or statement.kind != VECTOR:
        return statement
    return _pushed(statement, statement.body, vector_bytes) or replace(statement, kind=SERIAL)


def _pushed(loop: For, body: Stmt, vector_bytes: int) -> Stmt | None:
    """The vector loop inside of whatever its body is, down to the stores; None where that would not be the same."""
    if isinstance(body, Seq):
        parts = [_pushed(loop, s, vector_bytes) for s in body.body]
        return sequence(*(p for p in parts if p is not None)) if all(p is not None for p in parts) else None
    if isinstance(body, Store):
        return _pieces(loop, body, vector_bytes)
    if (
        loop.limits
        or isinstance(body, (Alloc, Barrier, Call, Fence))
        or (isinstance(body, For) and body.kind in _DONE_AT_ONCE)
    ):
        return None  # of two vector loops the inner one stays
    asked = body.limits if isinstance(body, For) else body.conditions
    if any(loop.variable in i.iterators for i in asked):
        return None
    if isinstance(body, For):
        pushed = _pushed(loop, body.body, vector_bytes)
        return None if pushed is None else replace(body, body=pushed)
    then = _pushed(loop, body.then, vector_bytes)
    otherwise = None if body.otherwise is None else _pushed(loop, body.otherwise, vector_bytes)
    if then is None or (otherwise is None) != (body.otherwise is None):
        return None
    return If(body.conditions, then, otherwise)


def _pieces(loop: For, store: Store, vector_bytes: int) -> Stmt:
    lanes = vector_bytes // max(_bytes(store, loop.variable))
    if loop.limits or lanes < 2 or not _serves(loop.variable, store):
        return replace(loop, kind=SERIAL, body=store)
    pieces: list[Stmt] = []
    start = 0
    if loop.extent // lanes > _MOST_PIECES:
        outer, count = f"{loop.variable}.piece", loop.extent // lanes
        pieces.append(For(outer, count, SERIAL, _piece(loop, store, iterator(outer) * lanes, lanes)))
        start = count * lanes
    while start < loop.extent:
        while lanes > loop.extent - start:
            lanes //= 2
        pieces.append(_piece(loop, store, Index((), start), lanes))
        start += lanes
    return sequence(*pieces)


def _piece(loop: For, store: Store, start: Index, lanes: int) -> Stmt:
    at = start if lanes == 1 else start + iterator(loop.variable)
    body = with_indices_in(store, lambda i: i.substitute({loop.variable: at}))
    return body if lanes == 1 else For(loop.variable, lanes, VECTOR, body)


def _serves(variable: str, store: Store) -> bool:
    """Whether a store can be done for all values of the variable at once."""
    (offset,) = store.indices
    # What is not chosen is not read, so that a choice by lanes must not read.
    chosen = (v for v in walk(store.value) if isinstance(v, Select) and _depends(v.condition, variable))
    if any(reads(v.then) or reads(v.otherwise) for v in chosen):
        return False
    if variable not in offset.iterators:
        return store.reduce is not None
    return Iter(variable) in dict(offset.terms)


def _depends(value: Value, variable: str) -> bool:
    if isinstance(value, Place):
        return variable in value.index.iterators
    if isinstance(value, Read):
        return any(variable in i.iterators for i in value.indices)
    return any(_depends(child, variable) for child in children(value))


def _bytes(store: Store, variable: str) -> Iterator[int]:
    """The sizes of the numbers that vectors are made of."""
    of = dtype(store.value.dtype)
    yield of.bytes if of.integer else max(of.bytes, _ARITHMETIC_BYTES)
    for value in walk(store.value):
        if value.dtype != BOOL and _depends(value, variable):
            of = dtype(value.dtype)
            yield of.bytes if of.integer else max(of.bytes, _ARITHMETIC_BYTES)
