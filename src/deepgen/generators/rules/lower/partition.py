"""Two versions of the code around unrolled and vector loops: one without guards for whole tiles, one for edges.

What decides is asked once, before a tile: whether its guards hold for all turns of the loops inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from deepgen.generators.rules.lower.bounds import Known, conditions
from deepgen.generators.rules.lower.guards import placed
from deepgen.generators.rules.lower.ir import Alloc, For, Function, If, Stmt, Store, children, walk, with_children
from deepgen.generators.rules.lower.simplify import simplified
from deepgen.generators.rules.schedule.regions import low_and_span
from deepgen.generators.rules.schedule.steps import SERIAL, UNROLL, VECTOR
from deepgen.operators.expr.index import Index
from deepgen.operators.expr.nodes import Select
from deepgen.operators.expr.nodes import walk as walk_value

AT_ONCE = (UNROLL, VECTOR)


def partition(function: Function) -> Function:
    return replace(function, body=_versions(function.body, Known()))


def _versions(statement: Stmt, known: Known) -> Stmt:
    """Of a statement that is the body of a loop, or of the function."""
    wanted = _wanted(statement, known)
    if not wanted:
        return _inner(statement, known)
    whole = simplified(statement, known.given(wanted))
    return If(wanted, _inner(whole, known.given(wanted)), edges(statement))


def _inner(statement: Stmt, known: Known) -> Stmt:
    if isinstance(statement, For):
        body_known = known.inside(statement.variable, statement.extent)
        change = _inner if statement.kind in AT_ONCE else _versions
        return replace(statement, body=change(statement.body, body_known))
    if isinstance(statement, Alloc) and statement.buffer.scope == "register":
        wanted = _wanted(statement, known)
        if wanted:
            whole = simplified(statement, known.given(wanted))
            return If(wanted, _inside(whole, known.given(wanted)), edges(statement))
    return _inside(statement, known)


def _inside(statement: Stmt, known: Known) -> Stmt:
    if isinstance(statement, If):
        return replace(statement, then=_inner(statement.then, known.given(statement.conditions)))
    return with_children(statement, lambda s: _inner(s, known))


def _wanted(statement: Stmt, known: Known) -> tuple[Index, ...]:
    """What must not be negative so that no guard in a tile is needed."""
    found = [c for c in dict.fromkeys(_guards(statement, _Tile(known, {}, False))) if not known.always(c)]
    return tuple(
        c
        for n, c in enumerate(found)
        if not any(
            known.given([d]).always(c)
            for m, d in enumerate(found)
            if m != n and (m < n or not known.given([c]).always(d))
        )
    )


@dataclass(frozen=True)
class _Tile:
    known: Known
    inner: dict[str, int]  # the loops that are done at once, with their extents
    registers: bool  # whether a buffer in registers lies around, whose tile all loops belong to

    def low(self, condition: Index) -> Index | None:
        """The least value of a condition in the tile, if all other loops lie around the tile."""
        if condition.iterators <= {*self.known.ranges, *self.inner}:
            return low_and_span(condition, self.inner)[0]
        return None


def _guards(statement: Stmt, tile: _Tile) -> Iterator[Index]:
    if isinstance(statement, If):
        for c in statement.conditions:
            low = tile.low(c) if c.iterators & set(tile.inner) else None
            if low is not None:
                yield low
    if isinstance(statement, Store):
        for select in (v for v in walk_value(statement.value) if isinstance(v, Select)):
            for c in conditions(select.condition) or ():
                low = tile.low(c) if c.iterators & set(tile.inner) else None
                if low is not None:
                    yield low
    if isinstance(statement, Alloc) and statement.buffer.scope == "register":
        tile = replace(tile, registers=True)
    if isinstance(statement, For):
        if statement.kind in AT_ONCE:
            tile = replace(tile, inner={**tile.inner, statement.variable: statement.extent})
        elif not tile.registers:
            return
        else:
            for limit in statement.limits:
                low = tile.low(limit - statement.extent)
                if low is not None:
                    yield low
    for child in children(statement):
        yield from _guards(child, tile)


def edges(statement: Stmt) -> Stmt:
    """A tile with its guards: where these depend on a loop that is done at once, its turns follow each other."""
    return placed(_serial(statement))


def _serial(statement: Stmt) -> Stmt:
    if isinstance(statement, For) and statement.kind in AT_ONCE:
        asked = (c for s in walk(statement) if isinstance(s, If) for c in s.conditions)
        if any(statement.variable in c.iterators for c in asked):
            statement = replace(statement, kind=SERIAL)
    return with_children(statement, _serial)
