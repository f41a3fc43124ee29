"""Two versions of the code around unrolled and vector loops: one without guards for whole tiles, one for edges.

The choice is made once per tile: whether its guards hold for all iterations inside. If tiles start at multiples of
their size, the edge tile always has the same size: it becomes a smaller tile, also without guards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from math import gcd

from deepgen.compiler.intrinsics.dots import DOTS
from deepgen.compiler.intrinsics.tiles import TILES
from deepgen.compiler.passes.guards import guards
from deepgen.compiler.passes.ir import (
    EMPTY,
    Alloc,
    Around,
    Buffer,
    Call,
    For,
    If,
    Seq,
    Stmt,
    Store,
    children,
    held_in,
    sequence,
    walk,
    with_children,
)
from deepgen.compiler.passes.simplify import simplified
from deepgen.compiler.schedule.bounds import IndexBounds, conditions, low_and_span
from deepgen.compiler.schedule.steps import SCAN, SERIAL, UNROLL, VECTOR
from deepgen.operators.expr.index import Index, Iter
from deepgen.operators.expr.nodes import Select, reads
from deepgen.operators.expr.nodes import walk as walk_value

AT_ONCE = (UNROLL, VECTOR, SCAN, *DOTS, *TILES)
_MOST_CHOICES = 4  # each of which doubles the code


def partition(body: Stmt, _: Around) -> Stmt:
    return _versions(body, _WholeTile(IndexBounds(), held_in(body, ("register",))))


def _versions(statement: Stmt, tile: _WholeTile) -> Stmt:
    """The versions of a statement that is the body of a loop or of the function."""
    wanted = _wanted(statement, tile)
    if wanted:
        if not _sums(_guarded_part(statement, tile), tile.held):
            return _narrowed(statement, tile)
        return _smaller_at_edges(statement, tile, wanted) or _two(statement, tile, wanted)
    choice = next(
        (c for c in _choices(statement, tile) if not tile.bounds.always(c) and not tile.bounds.never(c)), None
    )
    if choice is None or tile.choices == _MOST_CHOICES:
        return _inner(statement, tile)
    ways = (replace(tile, bounds=tile.bounds.assuming([c]), choices=tile.choices + 1) for c in (choice, -1 - choice))
    yes, no = (_versions(simplified(statement, way.bounds), way) for way in ways)
    return If((choice,), yes, no)


def _two(statement: Stmt, tile: _WholeTile, wanted: tuple[Index, ...]) -> Stmt:
    assumed = replace(tile, bounds=tile.bounds.assuming(wanted))
    if len(wanted) > 1:
        other = _rest(statement, tile)
    else:  # whole vectors in it are kept
        at_edge = replace(tile, bounds=tile.bounds.assuming([-1 - wanted[0]]))
        other = simplified(_rest(simplified(statement, at_edge.bounds), at_edge), at_edge.bounds)
    return If(wanted, _versions(simplified(statement, assumed.bounds), assumed), other)


def _smaller_at_edges(statement: Stmt, tile: _WholeTile, wanted: tuple[Index, ...]) -> Stmt | None:
    """Whole tiles, and smaller ones at the edge of one axis; None if the smaller ones would not all have the same
    size."""
    if tile.choices == _MOST_CHOICES:
        return None
    for low in wanted:
        step = gcd(*(times for _, times in low.terms))
        there = low.constant % step - step  # its value in the first partial tile
        smaller = _cut(statement, low, there, tile)
        if smaller != statement and not _done_where(there - step - low, statement, tile):
            way = replace(tile, choices=tile.choices + 1)
            assumed = replace(way, bounds=tile.bounds.assuming([low]))
            whole = _versions(simplified(statement, assumed.bounds), assumed)
            assumed = replace(way, bounds=tile.bounds.assuming([low - there, there - low]))
            part = _versions(simplified(smaller, assumed.bounds), assumed)
            return If((low,), whole, None if part == EMPTY else If((low - there,), part))
    return None


def _done_where(condition: Index, statement: Stmt, tile: _WholeTile) -> bool:
    """Whether a statement has any effect where a condition holds."""
    return not tile.bounds.never(condition) and _done(statement, tile.bounds.assuming([condition]), tile.held)


def _done(statement: Stmt, bounds: IndexBounds, held: frozenset[str]) -> bool:
    """Whether a statement has any effect: stores to its own buffers do not count."""
    left = simplified(edges(statement, held), bounds)
    own = {s.buffer.name for s in walk(left) if isinstance(s, Alloc)}
    return any(isinstance(s, Call) or (isinstance(s, Store) and s.buffer not in own) for s in walk(left))


def _cut(statement: Stmt, low: Index, there: int, tile: _WholeTile) -> Stmt:
    """The statement with unrolled and vector loops shortened to what guards allow when an index has a certain value."""
    asked = [c - low + there for s in walk(statement) if isinstance(s, If) for c in s.conditions]
    ends: dict[str, int] = {}

    def find(s: Stmt, bounds: IndexBounds) -> None:
        if isinstance(s, For):
            if s.kind in (UNROLL, VECTOR) and not s.starts:
                inner_ends = {end for c in asked if (end := _end(s.variable, c)) is not None and 0 < end < s.extent}
                # Guards allow different extents: no iteration in which one of them holds may be lost.
                idle = (
                    e
                    for e in sorted(inner_ends)
                    if not _done(s.body, bounds.between(s.variable, e, s.extent), tile.held)
                )
                ends[s.variable] = max(ends.get(s.variable, 0), next(idle, s.extent))
            bounds = bounds.inside(s.variable, s.extent)
        for child in children(s):
            find(child, bounds)

    def cut(s: Stmt) -> Stmt:
        if isinstance(s, For):
            s = replace(s, extent=min(s.extent, ends.get(s.starts or s.variable, s.extent)))
        return with_children(s, cut)

    find(statement, tile.bounds.assuming([low - there, there - low]))
    return cut(statement)


def _end(variable: str, condition: Index) -> int | None:
    """Where a condition ends a loop, if it is on this loop alone, or on it and inner vectors: after whole vectors, or
    within the first."""
    left, times = condition.constant + 1, {atom: -times for atom, times in condition.terms}
    own = times.pop(Iter(variable), None)
    if own == 1 and not times:
        return left
    lanes = max([own or 0, *times.values()])
    if own is None or len(times) != 1 or 1 not in (own, *times.values()) or (left > lanes and left % lanes):
        return None
    return min(left, lanes) if own == 1 else max(1, left // lanes)


def _narrowed(statement: Stmt, tile: _WholeTile) -> Stmt:
    """Two versions of the only part of a tile that has guards, so that the rest is emitted once."""
    if isinstance(statement, Alloc):
        return replace(statement, body=_narrowed(statement.body, tile.having(statement.buffer)))
    parts = statement.body if isinstance(statement, Seq) else ()
    if sum(bool(_wanted(s, tile)) for s in parts) == 1:
        return sequence(*(_narrowed(s, tile) if _wanted(s, tile) else _inner(s, tile) for s in parts))
    return _two(statement, tile, _wanted(statement, tile))


def _guarded_part(statement: Stmt, tile: _WholeTile) -> Stmt:
    if isinstance(statement, Alloc):
        return _guarded_part(statement.body, tile.having(statement.buffer))
    parts = [s for s in statement.body if _wanted(s, tile)] if isinstance(statement, Seq) else []
    return _guarded_part(parts[0], tile) if len(parts) == 1 else statement


def _sums(statement: Stmt, held: frozenset[str]) -> bool:
    return any(isinstance(s, Store) and s.reduce is not None and s.buffer in held for s in walk(statement))


def _inner(statement: Stmt, tile: _WholeTile) -> Stmt:
    if isinstance(statement, For):
        inside = replace(tile, bounds=tile.bounds.inside(statement.variable, statement.extent), inner={})
        if statement.kind in AT_ONCE:
            around = replace(inside, around=inside.around | {statement.variable})
            return replace(statement, body=_inner(statement.body, around))
        return replace(statement, body=_versions(statement.body, inside))
    if isinstance(statement, If):
        assumed = replace(tile, bounds=tile.bounds.assuming(statement.conditions))
        return replace(statement, then=_inner(statement.then, assumed))
    if isinstance(statement, Alloc):
        return replace(statement, body=_inner(statement.body, tile.having(statement.buffer)))
    return with_children(statement, lambda s: _inner(s, tile))


def _wanted(statement: Stmt, tile: _WholeTile) -> tuple[Index, ...]:
    """Indices that must not be negative for a tile to need no guards."""
    kept: list[Index] = []
    for low in dict.fromkeys(_guards(statement, tile)):
        if not tile.bounds.assuming(kept).always(low) and not tile.bounds.never(low):
            kept = [c for c in kept if not tile.bounds.assuming([low]).always(c)] + [low]
    return tuple(kept)


@dataclass(frozen=True)
class _WholeTile:
    """The context of a statement in a tile."""

    bounds: IndexBounds
    held: frozenset[str]  # all buffers that are in registers
    inner: Mapping[str, int] = field(default_factory=dict)  # the loops that execute at once, with their extents
    registers: frozenset[str] = frozenset()  # enclosing register buffers: all loops inside belong to their tile
    around: frozenset[str] = frozenset()  # enclosing loops that execute at once: no condition inside may test them
    choices: int = 0  # made so far

    def having(self, buffer: Buffer) -> _WholeTile:
        return replace(self, registers=self.registers | {buffer.name}) if buffer.scope == "register" else self

    def low(self, condition: Index) -> Index | None:
        """The least value of a condition in the tile, if all its other loops enclose the tile."""
        return low_and_span(condition, self.inner)[0] if self.decides(condition, {*self.inner}) else None

    def decides(self, condition: Index, inner: Set[str] = frozenset()) -> bool:
        """Whether a condition can be tested here: it must be the same for all iterations of enclosing loops that
        execute at once."""
        return condition.iterators <= self.bounds.ranges.keys() - self.around | inner


def _guards(statement: Stmt, tile: _WholeTile) -> Iterator[Index]:
    asked: Iterable[Index] = ()
    if isinstance(statement, If):
        asked = statement.conditions
    if isinstance(statement, Store):
        asked = _chosen_by(statement)
    for c in asked:
        low = tile.low(c) if c.iterators & set(tile.inner) else None
        if low is not None:
            yield low
    if isinstance(statement, Alloc):
        tile = tile.having(statement.buffer)
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


def _choices(statement: Stmt, tile: _WholeTile) -> Iterator[Index]:
    """Conditions that select between values in the same way for the whole tile, as at a border of zeros."""
    if isinstance(statement, Store) and (tile.inner or tile.registers):
        for c in _chosen_by(statement):
            if tile.decides(c):
                yield c
    if isinstance(statement, Alloc):
        tile = tile.having(statement.buffer)
    if isinstance(statement, For) and statement.kind in AT_ONCE:
        tile = replace(tile, inner={**tile.inner, statement.variable: statement.extent})
    elif isinstance(statement, For) and not tile.registers:
        return
    for child in children(statement):
        yield from _choices(child, tile)


def _chosen_by(store: Store) -> Iterator[Index]:
    for value in walk_value(store.value):
        if isinstance(value, Select):
            yield from conditions(value.condition) or ()


def _rest(statement: Stmt, tile: _WholeTile) -> Stmt:
    """The tile at an edge: if it has several vectors, the whole ones and then single elements."""
    of_vectors = {
        s.variable for s in walk(statement) if isinstance(s, For) and s.kind == UNROLL and _asked(s) and _vectors_in(s)
    }
    if of_vectors and _edge_kind(statement, tile.held) == SERIAL:

        def in_order(s: Stmt) -> Stmt:
            if isinstance(s, For) and s.variable in of_vectors:
                s = replace(s, kind=SERIAL)
            return with_children(s, in_order)

        return _inner(in_order(statement), tile)
    return _by_vectors(edges(statement, tile.held), tile)


def _vectors_in(statement: Stmt) -> bool:
    return any(isinstance(s, For) and s.kind == VECTOR and _asked(s) for s in walk(statement))


def _by_vectors(statement: Stmt, tile: _WholeTile) -> Stmt:
    """Several vectors of sums whose elements are guarded one by one: each whole vector is added at once."""
    if isinstance(statement, For) and statement.kind == UNROLL:
        inside = replace(tile, bounds=tile.bounds.inside(statement.variable, statement.extent))
        return replace(statement, body=_by_vectors(statement.body, inside))
    if isinstance(statement, For) and statement.kind == VECTOR and isinstance(statement.body, Store):
        wanted = _wanted(statement, tile)
        if wanted and statement.body.reduce is not None and all(tile.decides(c) for c in wanted):
            return If(wanted, simplified(statement, tile.bounds.assuming(wanted)), statement)
    if isinstance(statement, Seq):
        return with_children(statement, lambda s: _by_vectors(s, tile))
    return statement


def edges(statement: Stmt, held: frozenset[str]) -> Stmt:
    """A tile with its guards: loops on which these depend become serial.

    Buffers in registers stay there if they are only copied: their indices must then be constants.
    """
    return guards(_loops_as(statement, _edge_kind(statement, held)))


def _edge_kind(statement: Stmt, held: frozenset[str]) -> str:
    loops = {s.variable for s in walk(statement) if isinstance(s, For) and _asked(s)}
    stores = [s for s in walk(statement) if isinstance(s, Store)]
    places = [(s.buffer, s.indices) for s in stores] + [(r.tensor, r.indices) for s in stores for r in reads(s.value)]
    varied = {name for name, indices in places if any(index.iterators & loops for index in indices)}
    return UNROLL if varied & held and not _sums(statement, held) else SERIAL


def _asked(loop: For) -> bool:
    """Whether guards inside a loop that executes at once depend on it."""
    asked = (c for s in walk(loop) if isinstance(s, If) for c in s.conditions)
    return loop.kind in AT_ONCE and any(loop.variable in c.iterators for c in asked)


def _loops_as(statement: Stmt, kind: str) -> Stmt:
    if isinstance(statement, For) and _asked(statement):
        statement = replace(statement, kind=kind)
    return with_children(statement, lambda s: _loops_as(s, kind))
