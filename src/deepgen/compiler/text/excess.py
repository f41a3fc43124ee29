"""Products of signed numbers by an instruction for unsigned ones: what it adds too much is taken off once, at the end.

That excess depends on the second operand only, so that all rows of a tile have the same: it is summed up beside them,
in a vector for each column of vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from deepgen.compiler.intrinsics.dots import DOTS, Dot
from deepgen.compiler.passes.ir import Alloc, Buffer, For, Seq, Stmt, Store, children, walk
from deepgen.compiler.passes.tensorize import operands
from deepgen.operators.expr.nodes import Read, reads


@dataclass(frozen=True)
class Excess:
    """Of the sums in a buffer, which are complete after the statement `summed`.

    `of_sums` says which vector of excess each vector of sums has in it. `counted` are the products beside which the
    excess is summed up, each with the number of the vector for that.
    """

    buffer: Buffer
    dot: Dot
    of_sums: Mapping[int, int]
    counted: Mapping[For, int]
    summed: Stmt


def excess(alloc: Alloc) -> Excess | None:
    """None where sums have none that they share, or where their products do not stand side by side in the text."""
    buffer, parts = alloc.buffer, alloc.body.body if isinstance(alloc.body, Seq) else ()
    places = [part for part in parts if any(_products(part, buffer.name))]
    if not buffer.lanes or len(places) != 1:
        return None
    products, blocks = list(_products(places[0], buffer.name)), list(_blocks(places[0], buffer.name))
    dot = DOTS[products[0].kind]
    alike = all(loop.kind == dot.name for loop in products)
    if not alike or not dot.excess or len(blocks) != 1 or _touching(places[0], buffer.name) != len(products):
        return None
    found = [(loop, operands(loop)) for loop in products if loop in children(blocks[0])]
    factors: dict[int, tuple[Read, ...]] = {}
    for _, of in found:
        place = of.sums.constant // buffer.lanes
        factors[place] = (*factors.get(place, ()), of.right)
    numbers = {of: n for n, of in enumerate(dict.fromkeys(factors.values()))}
    if len(found) != len(products) or len(numbers) == len(factors):
        return None
    of_sums = {place: numbers[of] for place, of in factors.items()}
    first: dict[tuple[int, Read], For] = {}
    for loop, of in found:
        first.setdefault((of_sums[of.sums.constant // buffer.lanes], of.right), loop)
    counted = {loop: number for (number, _), loop in first.items()}
    return Excess(buffer, dot, of_sums, counted, places[0])


def _products(statement: Stmt, buffer: str) -> Iterator[For]:
    """The loops in a statement that an instruction does, and that add to a buffer."""
    for s in walk(statement):
        store = s.body.body if isinstance(s, For) and isinstance(s.body, For) else None
        if isinstance(s, For) and s.kind in DOTS and isinstance(store, Store) and store.buffer == buffer:
            yield s


def _blocks(statement: Stmt, buffer: str) -> Iterator[Stmt]:
    """The statements in which products stand side by side."""
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
