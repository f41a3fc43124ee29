"""Products of signed numbers by an instruction for unsigned ones: the excess is subtracted once, at the end.

The excess depends only on the second operand, so all rows of a tile share it: it is summed in one vector for each
column of vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from deepgen.compiler.intrinsics.dots import DOTS, Dot
from deepgen.compiler.passes.ir import Alloc, Buffer, For, Seq, Stmt, Store, children, walk
from deepgen.compiler.passes.tensorize import operands
from deepgen.compiler.passes.vectorize import INTERLEAVED
from deepgen.compiler.schedule.steps import VECTOR
from deepgen.operators.expr.index import Index
from deepgen.operators.expr.nodes import Read, reads


@dataclass(frozen=True)
class Excess:
    """The excess of the sums in a buffer, which are complete after the statement `summed`.

    `of_sums` maps each vector of sums to the vector of its excess. `counted` are the products beside which the excess
    is summed up, each with the index of that vector.
    """

    buffer: Buffer
    dot: Dot
    of_sums: Mapping[int, int]
    counted: Mapping[For, int]
    summed: Stmt


def excess(alloc: Alloc) -> Excess | None:
    """None if sums share no excess, or if their products are not adjacent in the code."""
    buffer, parts = alloc.buffer, alloc.body.body if isinstance(alloc.body, Seq) else ()
    places = [part for part in parts if any(_products(part, buffer.name))]
    if not buffer.lanes or len(places) != 1:
        return None
    products, blocks = list(_products(places[0], buffer.name)), list(_blocks(places[0], buffer.name))
    dot = DOTS[products[0].kind]
    alike = all(loop.kind == dot.name for loop in products)
    if not alike or not dot.excess or len(blocks) != 1 or _touching(places[0], buffer.name) != len(products):
        return None
    pairs = [(loop, operands(loop)) for loop in products if loop in children(blocks[0])]
    factors: dict[int, tuple[Read, ...]] = {}
    for _, of in pairs:
        place = of.sums.constant // buffer.lanes
        factors[place] = (*factors.get(place, ()), of.right)
    numbers = {of: n for n, of in enumerate(dict.fromkeys(factors.values()))}
    if len(pairs) != len(products) or len(numbers) == len(factors):
        return None
    of_sums = {place: numbers[of] for place, of in factors.items()}
    first: dict[tuple[int, Read], For] = {}
    for loop, of in pairs:
        first.setdefault((of_sums[of.sums.constant // buffer.lanes], of.right), loop)
    counted = {loop: number for (number, _), loop in first.items()}
    return Excess(buffer, dot, of_sums, counted, places[0])


def _products(statement: Stmt, buffer: str) -> Iterator[For]:
    """The loops in a statement that are replaced by an instruction and add to a buffer."""
    for s in walk(statement):
        store = s.body.body if isinstance(s, For) and isinstance(s.body, For) else None
        if isinstance(s, For) and s.kind in DOTS and isinstance(store, Store) and store.buffer == buffer:
            yield s


def _blocks(statement: Stmt, buffer: str) -> Iterator[Stmt]:
    """The statements in which products are adjacent."""
    inside = children(statement)
    if any(isinstance(s, For) and s in _products(s, buffer) for s in inside):
        yield statement
    else:
        for child in inside:
            yield from _blocks(child, buffer)


def _touching(statement: Stmt, buffer: str) -> int:
    """How many stores in a statement read or write a buffer."""
    stores = [s for s in walk(statement) if isinstance(s, Store)]
    return sum(s.buffer == buffer or any(read.tensor == buffer for read in reads(s.value)) for s in stores)


@dataclass(frozen=True)
class Together:
    """Vector loops whose stores together fill memory without gaps, in the order of their first elements."""

    loops: tuple[For, ...]
    stores: tuple[Store, ...]
    start: Index


@dataclass(frozen=True)
class _Apart:
    """A store of a vector with stride `apart`."""

    loop: For
    store: Store
    start: Index
    apart: int

    @property
    def kind(self) -> tuple[str, int, int]:
        return self.store.buffer, self.apart, self.loop.extent


def together(statements: Sequence[Stmt], buffers: Mapping[str, Buffer]) -> list[Together] | None:
    """Statements as groups of stores; None if some of them are anything else.

    All are stores to one tensor that they do not read, so their order does not matter.
    """
    apart = [_apart(statement, buffers) for statement in statements]
    stores = {one.start: one for one in apart if one is not None}
    if len(stores) < len(statements) or len({one.kind for one in stores.values()}) != 1:
        return None
    groups = []
    while stores:
        start, first = next(iter(stores.items()))
        places = [start + n for n in range(first.apart)]
        if not all(place in stores for place in places):
            return None
        group = [stores.pop(place) for place in places]
        groups.append(Together(tuple(one.loop for one in group), tuple(one.store for one in group), start))
    return groups


def _apart(statement: Stmt, buffers: Mapping[str, Buffer]) -> _Apart | None:
    if not isinstance(statement, For) or statement.kind != VECTOR or not isinstance(statement.body, Store):
        return None
    store, (offset,), variable = statement.body, statement.body.indices, statement.variable
    apart = offset.step(variable)
    if apart is None or apart not in INTERLEAVED or store.reduce is not None:
        return None
    if buffers[store.buffer].lanes or store.buffer in {read.tensor for read in reads(store.value)}:
        return None
    return _Apart(statement, store, offset.substitute({variable: 0}), apart)
