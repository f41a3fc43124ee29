"""Decides which buffers become variables: those in registers whose every access is at a place known in the text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from deepgen.compiler.intrinsics.dots import DOTS
from deepgen.compiler.passes.ir import Alloc, Call, For, Function, Stmt, Store, children, walk, with_children
from deepgen.compiler.schedule.steps import PARALLEL, VECTOR
from deepgen.operators.expr.index import Index, Iter, iterator
from deepgen.operators.expr.nodes import reads

_MOST_VARIABLES = 256


def registers(function: Function) -> Function:
    return replace(function, body=_held(function.body))


def _held(statement: Stmt) -> Stmt:
    statement = with_children(statement, _held)
    if not isinstance(statement, Alloc) or statement.buffer.scope != "register":
        return statement
    lanes = _lanes(statement)
    return replace(statement, buffer=replace(statement.buffer, lanes=lanes))


def _lanes(alloc: Alloc) -> int:
    """Of the vectors that a buffer is accessed by; 0 where it cannot be held in variables."""
    if any(isinstance(s, For) and s.kind == PARALLEL for s in walk(alloc.body)):
        return 0
    accesses = set(_accesses(alloc.body, alloc.buffer.name, None))
    if any(at is None for at, _ in accesses):
        return 0
    widths = {lanes for _, lanes in accesses if lanes > 1}
    if len(widths) > 1:
        return 0
    lanes = widths.pop() if widths else 1
    whole = all(at is not None and at % lanes == 0 for at, width in accesses if width > 1)
    return lanes if whole and alloc.buffer.elements <= lanes * _MOST_VARIABLES else 0


def _accesses(statement: Stmt, name: str, vector: For | None) -> Iterator[tuple[int | None, int]]:
    """Where a buffer is accessed, and by how many lanes."""
    if isinstance(statement, Call) and any(place.tensor == name for place in statement.places):
        yield None, 1
    if isinstance(statement, For) and vector is None and statement.kind in (VECTOR, *DOTS):
        vector = statement
    if isinstance(statement, Store):
        offsets = [read.indices[0] for read in reads(statement.value) if read.tensor == name]
        for offset in (*offsets, *(statement.indices if statement.buffer == name else ())):
            yield _access(offset, vector)
    for child in children(statement):
        yield from _accesses(child, name, vector)


def _access(offset: Index, vector: For | None) -> tuple[int | None, int]:
    if vector is None or vector.variable not in offset.iterators:
        return (None, 1) if offset.terms else (offset.constant, 1)
    rest = offset - iterator(vector.variable)
    along = dict(offset.terms).get(Iter(vector.variable)) == 1
    return (rest.constant, vector.extent) if along and not rest.terms else (None, vector.extent)
