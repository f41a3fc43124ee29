"""Transposing copies, a square at a time: one call, implemented by vector shuffles, replaces the loops over it.

A square has as many rows as columns. It is moved in units of 4 or 8 bytes: an element, or a group of small ones that
are contiguous in both places. Read unit by unit, each step along a row would touch another cache line, and rows a power
of two apart would evict each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from deepgen.compiler.intrinsics.vectors import Square
from deepgen.compiler.passes.ir import Around, Call, For, If, Inside, Stmt, Store, with_children
from deepgen.compiler.passes.partition import edges
from deepgen.compiler.schedule.bounds import low_and_span
from deepgen.compiler.schedule.steps import SERIAL, UNROLL, VECTOR
from deepgen.operators.expr.index import Index, iterator
from deepgen.operators.expr.nodes import Read
from deepgen.vocabulary import dtype

_KINDS = (SERIAL, UNROLL, VECTOR)  # of the loops: along a row, over the rows, within a unit


def squares(body: Stmt, around: Around) -> Stmt:
    return _Squares(around.whole.buffers).of(body)


@dataclass(frozen=True)
class _Nest:
    """Loops around a single copy, and all indices that must not be negative for it to run."""

    loops: tuple[For, ...]
    conditions: tuple[Index, ...]
    store: Store


class _Squares(Inside):
    def of(self, statement: Stmt) -> Stmt:
        square = self.square_of(statement) if isinstance(statement, For) else None
        return with_children(statement, self.inside(statement).of) if square is None else square

    def square_of(self, loop: For) -> Stmt | None:
        """A call for a whole square, with the loops as a fallback for partial ones; None for other loops."""
        nest = _nest(loop)
        call = None if nest is None else self.call(nest)
        if nest is None or call is None:
            return None
        inside = {one.variable: one.extent for one in nest.loops}
        lows = dict.fromkeys(low_and_span(condition, inside)[0] for condition in nest.conditions)
        asked = tuple(low for low in lows if not self.bounds.always(low))
        if any(self.bounds.never(low) for low in asked):
            return None
        return If(asked, call, edges(loop, frozenset())) if asked else call

    def call(self, nest: _Nest) -> Call | None:
        store, read = nest.store, nest.store.value
        if store.reduce is not None or not isinstance(read, Read) or read.tensor == store.buffer:
            return None
        to, source = self.buffers[store.buffer], self.buffers[read.tensor]
        if to.dtype != source.dtype or "register" in (to.scope, source.scope):
            return None
        along, over, *within = nest.loops
        size, count = dtype(to.dtype).bytes, within[0].extent if within else 1
        square = Square(along.extent, count * size)
        (to_along, to_over, *to_within), (from_along, from_over, *from_within) = (
            [index.step(loop.variable) for loop in nest.loops] for index in (store.indices[0], read.indices[0])
        )
        if along.extent != over.extent or not square.there or to_along is None or from_over is None:
            return None
        if to_over != count or from_along != count or any(step != 1 for step in (*to_within, *from_within)):
            return None
        start = {one.variable: Index() for one in nest.loops}
        places = [index.substitute(start) for index in (store.indices[0], read.indices[0])]
        ends = (Read(to.name, (places[0],), to.dtype), Read(source.name, (places[1],), source.dtype))
        return Call(square, ends, (to_along * size, from_over * size))


def _nest(loop: For) -> _Nest | None:
    loops: list[For] = []
    conditions: list[Index] = []
    statement: Stmt = loop
    while not isinstance(statement, Store):
        if isinstance(statement, If) and statement.otherwise is None:
            conditions += statement.conditions
            statement = statement.then
        elif isinstance(statement, For) and statement.kind == dict(enumerate(_KINDS)).get(len(loops)):
            conditions += _below(statement)
            loops.append(statement)
            statement = statement.body
        else:
            return None
    return _Nest(tuple(loops), tuple(conditions), statement) if len(loops) > 1 else None


def _below(loop: For) -> Iterator[Index]:
    for limit in loop.limits:
        yield limit - 1 - iterator(loop.variable)
