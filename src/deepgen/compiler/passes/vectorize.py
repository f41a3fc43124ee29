"""Splits vector loops into single stores of hardware vectors; what cannot be vectorized remains a loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from deepgen.compiler.intrinsics.dots import DOTS
from deepgen.compiler.intrinsics.tiles import TILES
from deepgen.compiler.passes.guards import limit_of
from deepgen.compiler.passes.ir import (
    Around,
    For,
    If,
    Inside,
    Seq,
    Stmt,
    Store,
    guarded,
    held_in,
    sequence,
    unguarded,
    with_children,
    with_indices_in,
)
from deepgen.compiler.passes.simplify import HELD, all_of, simplified
from deepgen.compiler.schedule.bounds import IndexBounds, conditions
from deepgen.compiler.schedule.stages import identity
from deepgen.compiler.schedule.steps import SCAN, SERIAL, UNROLL, VECTOR
from deepgen.operators.expr.index import Index, Iter, iterator
from deepgen.operators.expr.nodes import BOOL, Binary, Const, Place, Read, Select, Value, children, reads, walk
from deepgen.operators.expr.nodes import with_children as with_operands
from deepgen.vocabulary import dtype

_DONE_AT_ONCE = (VECTOR, *DOTS, *TILES)
_MOST_PIECES = 16  # in straight-line code; more become a loop
_MOST_CHOSEN = 16  # lanes of one select: masks wider than a vector take compilers long
_ARITHMETIC_BYTES = 4  # size in which smaller floats are computed
INTERLEAVED = (2, 4)  # strides of interleaved vectors, which are stored together
_INTERLEAVED_BYTES = 16  # of each of them: CPUs interleave within this many


def vectorize(body: Stmt, around: Around) -> Stmt:
    return _Vectors(around.whole.buffers, bytes=around.machine.vector_bytes).of(body)


@dataclass(frozen=True)
class _Vectors(Inside):
    bytes: int = 16  # of the hardware's vectors

    def of(self, statement: Stmt) -> Stmt:
        statement = with_children(statement, self.inside(statement).of)
        if isinstance(statement, For) and statement.kind == SCAN:
            return self.scanned(statement)
        if not isinstance(statement, For) or statement.kind != VECTOR:
            return statement
        return self.pushed(statement, statement.body) or replace(statement, kind=SERIAL)

    def pushed(self, loop: For, body: Stmt) -> Stmt | None:
        """The vector loop moved inside its body, down to the stores; None if that would change the result."""
        if isinstance(body, Seq):
            parts = [self.pushed(loop, s) for s in body.body]
            return sequence(*(p for p in parts if p is not None)) if all(p is not None for p in parts) else None
        if isinstance(body, Store):
            return self.pieces(loop, body)
        inner = isinstance(body, For) and body.kind in _DONE_AT_ONCE  # of two nested vector loops the inner one stays
        if loop.limits or inner or not isinstance(body, (For, If)):
            return None
        asked = body.limits if isinstance(body, For) else body.conditions
        if any(loop.variable in i.iterators for i in asked):
            return None
        if isinstance(body, For):
            pushed = self.inside(body).pushed(loop, body.body)
            return None if pushed is None else replace(body, body=pushed)
        then = self.pushed(loop, body.then)
        otherwise = None if body.otherwise is None else self.pushed(loop, body.otherwise)
        if then is None or (otherwise is None) != (body.otherwise is None):
            return None
        return If(body.conditions, then, otherwise)

    def scanned(self, loop: For) -> Stmt:
        """A loop along which a stage is scanned; a vector loop if its extent is the vector length."""
        store = loop.body
        if isinstance(store, Store) and not loop.limits and (scan := scan_of(loop.variable, store)) is not None:
            lanes = self.bytes // max(_bytes(store, loop.variable))
            if lanes > 1 and loop.extent == lanes and self.inside(loop).computes_both(loop.variable, scan.value):
                return replace(loop, kind=VECTOR)
        return replace(loop, kind=SERIAL)

    def pieces(self, loop: For, store: Store) -> Stmt:
        lanes = self.bytes // max(_bytes(store, loop.variable))
        interleaved = store.indices[0].step(loop.variable) in INTERLEAVED
        if interleaved:
            lanes = min(lanes, max(1, _INTERLEAVED_BYTES // dtype(store.value.dtype).bytes))
        borders = [] if loop.limits else _borders(loop, store)
        if borders:
            return sequence(*(self.between(loop, store, *ends) for ends in pairwise([0, *borders, loop.extent])))
        if loop.limits or lanes < 2 or not self.inside(loop).serves(loop.variable, store, lanes):
            return _shortened(replace(loop, kind=SERIAL, body=store), store)
        pieces: list[Stmt] = []
        start = 0
        if loop.extent // lanes > _MOST_PIECES:
            outer, count = f"{loop.variable}.piece", loop.extent // lanes
            pieces.append(For(outer, count, SERIAL, _piece(loop, store, iterator(outer) * lanes, lanes)))
            start = count * lanes
        # The remainder may be stored together with elements that were stored already: small vectors are slow to
        # interleave.
        again = interleaved and store.reduce is None and not any(r.tensor == store.buffer for r in reads(store.value))
        while start < loop.extent:
            if again and start:
                start = min(start, loop.extent - lanes)
            while lanes > loop.extent - start:
                lanes //= 2
            pieces.append(_piece(loop, store, Index((), start), lanes))
            start += lanes
        return sequence(*pieces)

    def between(self, loop: For, store: Store, start: int, end: int) -> Stmt:
        """A part of a loop in which all lanes make the same choice."""
        part = replace(loop, extent=end - start)
        shifted = {loop.variable: iterator(loop.variable) + start}
        piece = simplified(with_indices_in(store, lambda i: i.substitute(shifted)), self.inside(part).bounds)
        assert isinstance(piece, Store)
        return piece if part.extent == 1 else self.pieces(part, piece)

    def serves(self, variable: str, store: Store, lanes: int) -> bool:
        """Whether a store can be executed for all values of the variable at once."""
        (offset,) = store.indices
        if lanes > _MOST_CHOSEN and _chosen(variable, store.value):
            return False
        if not self.computes_both(variable, store.value):
            return False
        if variable not in offset.iterators:
            return store.reduce is not None
        return bool(offset.step(variable))

    def computes_both(self, variable: str, value: Value) -> bool:
        """A select per lane computes both values, so both must be readable."""
        return all(self.readable(either) for v in _chosen(variable, value) for either in (v.then, v.otherwise))

    def readable(self, value: Value) -> bool:
        """Whether a value can be computed at any values of the enclosing loops."""
        offsets = [(read.indices[0], self.buffers[read.tensor].elements) for read in reads(value)]
        inside = all(self.bounds.always(i) and self.bounds.always(size - 1 - i) for i, size in offsets)
        return inside and not any(_divides(v) for v in walk(value))


def _chosen(variable: str, value: Value) -> list[Select]:
    """The selects that differ between lanes."""
    return [v for v in walk(value) if isinstance(v, Select) and _depends(v.condition, variable)]


def _shortened(loop: For, store: Store) -> For:
    """The loop up to where its condition ends, if what is selected after that changes nothing.

    Values that are not selected must not be read, and a compiler may vectorize the select: if gcc 12 knows which
    elements are selected, it loads the other elements of an AVX-512 vector as well, beyond the end of a tensor.
    """
    chosen = store.value
    if store.reduce is None or not isinstance(chosen, Select):
        return loop
    limits = [limit_of(loop, asked) for asked in conditions(chosen.condition) or ()]
    if not limits or None in limits or chosen.otherwise != identity(store.reduce, chosen.dtype):
        return loop
    ends = (limit for limit in limits if limit is not None)
    return replace(loop, body=replace(store, value=chosen.then), limits=(*loop.limits, *ends))


@dataclass(frozen=True)
class VectorScan:
    """A store that combines its value with the previous element: operation, value, the condition for the first element,
    and the read of the previous one."""

    op: str
    value: Value
    first: Value
    before: Read


def scan_of(variable: str, store: Store) -> VectorScan | None:
    """Describes a store along a scanned loop over contiguous elements; None for any other store."""
    chosen, (offset,) = store.value, store.indices
    if not isinstance(chosen, Select) or not isinstance(chosen.otherwise, Binary) or store.reduce is not None:
        return None
    before, value = chosen.otherwise.left, chosen.otherwise.right
    if not isinstance(before, Read) or before.tensor != store.buffer or before.indices[0] != offset - 1:
        return None
    if value != chosen.then or offset.step(variable) != 1:
        return None
    return VectorScan(chosen.otherwise.op, value, chosen.condition, before)


def _borders(loop: For, store: Store) -> list[int]:
    """Where along a loop a per-lane condition changes, such as at padding that has the same place in every row."""
    chosen = (v.condition for v in walk(store.value) if isinstance(v, Select))
    asked = [c for condition in chosen for c in conditions(condition) or ()]
    first, last = ((Iter(loop.variable), 1),), ((Iter(loop.variable), -1),)
    ends = {-c.constant for c in asked if c.terms == first} | {c.constant + 1 for c in asked if c.terms == last}
    return sorted(border for border in ends if 0 < border < loop.extent)


def _piece(loop: For, store: Store, start: Index, lanes: int) -> Stmt:
    at = start if lanes == 1 else start + iterator(loop.variable)
    body = with_indices_in(store, lambda i: i.substitute({loop.variable: at}))
    return body if lanes == 1 else replace(loop, extent=lanes, kind=VECTOR, body=body, limits=())


def _divides(value: Value) -> bool:
    """An integer division by zero would end the program."""
    return isinstance(value, Binary) and value.op == "div" and dtype(value.dtype).integer


def _depends(value: Value, variable: str) -> bool:
    if isinstance(value, Place):
        return variable in value.index.iterators
    if isinstance(value, Read):
        return any(variable in i.iterators for i in value.indices)
    return any(_depends(child, variable) for child in children(value))


def _bytes(store: Store, variable: str) -> Iterator[int]:
    """The sizes of the numbers in vectors."""
    yield _size(store.value.dtype)
    for value in walk(store.value):
        # Indices are compared, and converted to numbers, in 32 bits.
        if value.dtype != BOOL and not isinstance(value, (Const, Place)) and _depends(value, variable):
            yield _size(value.dtype)


def _size(name: str) -> int:
    of = dtype(name)
    return of.bytes if of.integer else max(of.bytes, _ARITHMETIC_BYTES)


_MOST = 32  # elements of a vector


def vectorize_stores(body: Stmt, around: Around) -> Stmt:
    """For GPUs, whose compilers do not vectorize: loops that cannot become one store are unrolled."""
    return simplified(_with_vectors(body, held_in(body, HELD)), IndexBounds(around.ranges))


def _with_vectors(statement: Stmt, held: frozenset[str]) -> Stmt:
    statement = with_children(statement, lambda s: _with_vectors(s, held))
    if not isinstance(statement, For) or statement.kind != VECTOR:
        return statement
    parts = _apart(statement)
    if parts:
        return sequence(*(_vector(part, held) or replace(part, kind=UNROLL) for part in parts))
    return _vector(statement, held) or replace(statement, kind=UNROLL)


def _apart(loop: For) -> list[For]:
    """A loop for each store of the body, if none needs what a later one writes; otherwise an empty list."""
    asked, body = unguarded(loop.body)
    if not isinstance(body, Seq):
        return []
    stores = [s for s in body.body if isinstance(s, Store) and not s.joined and not s.reduce]
    written = [store.buffer for store in stores]
    for n, store in enumerate(stores):
        if {store.buffer, *(read.tensor for read in reads(store.value))} & set(written[n + 1 :]):
            return []
    if len(stores) < len(body.body):
        return []
    return [replace(loop, body=guarded(asked, store)) for store in stores]


def _vector(loop: For, held: frozenset[str]) -> Stmt | None:
    asked, body = unguarded(loop.body)
    if loop.limits or loop.extent > _MOST or loop.extent & (loop.extent - 1) or not isinstance(body, Store):
        return None
    if body.joined or (body.reduce and body.buffer not in held):
        return None
    if not body.reduce and body.indices[0].step(loop.variable) != 1:
        return None
    outside = [_for_all(c, loop) for c in asked]
    value = _with_one_choice(body.value, loop)
    if value is None or any(c is None for c in outside):
        return None
    vector = replace(loop, body=replace(body, value=value))
    return guarded([c for c in outside if c is not None], vector)


def _for_all(condition: Index, loop: For) -> Index | None:
    """A condition that is equivalent for all iterations of the loop; None if there may be iterations that differ."""
    times = condition.step(loop.variable)
    if not times:
        return condition if times == 0 else None
    rest = condition - iterator(loop.variable) * times
    whole = all(c % loop.extent == 0 for _, c in rest.terms)
    if times == 1 and whole and rest.constant % loop.extent == 0:
        return rest
    if times == -1 and whole and (rest.constant + 1) % loop.extent == 0:
        return rest - (loop.extent - 1)
    return None


def _with_one_choice(value: Value, loop: For) -> Value | None:
    """The value, with each select the same for the whole vector; None if one is not."""
    if isinstance(value, Select):
        asked = conditions(value.condition)
        if asked is None:
            varies = _depends(value.condition, loop.variable) or reads(value.condition)
            return None if varies else value
        same = [_for_all(c, loop) for c in asked]
        then, otherwise = (_with_one_choice(v, loop) for v in (value.then, value.otherwise))
        if then is None or otherwise is None or any(c is None for c in same):
            return None
        return Select(all_of([c for c in same if c is not None]), then, otherwise)
    parts = [part for child in children(value) if (part := _with_one_choice(child, loop)) is not None]
    return with_operands(value, parts) if len(parts) == len(children(value)) else None
