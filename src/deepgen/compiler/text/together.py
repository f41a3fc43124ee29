"""Stores of vectors whose elements lie between each other, as copies in groups make them: these are done together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deepgen.compiler.passes.ir import Buffer, For, Stmt, Store
from deepgen.compiler.passes.vectorize import INTERLEAVED
from deepgen.compiler.schedule.steps import VECTOR
from deepgen.operators.expr.index import Index, Iter, iterator
from deepgen.operators.expr.nodes import reads


@dataclass(frozen=True)
class Together:
    """Vector loops whose stores fill memory without a gap, in the order of their first elements."""

    loops: tuple[For, ...]
    stores: tuple[Store, ...]
    start: Index


@dataclass(frozen=True)
class _Apart:
    """A store of a vector, whose elements lie so far apart."""

    loop: For
    store: Store
    start: Index
    apart: int

    @property
    def kind(self) -> tuple[str, int, int]:
        return self.store.buffer, self.apart, self.loop.extent


def together(statements: Sequence[Stmt], buffers: Mapping[str, Buffer]) -> list[Together] | None:
    """Statements as groups of stores; None where some of them are anything else.

    All of them are stores to one tensor that they do not read, so that their order does not matter.
    """
    found = [_apart(statement, buffers) for statement in statements]
    stores = {one.start: one for one in found if one is not None}
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
    apart = dict(offset.terms).get(Iter(variable), 0)
    start = offset - iterator(variable) * apart
    if apart not in INTERLEAVED or variable in start.iterators or store.reduce is not None:
        return None
    if buffers[store.buffer].lanes or store.buffer in {read.tensor for read in reads(store.value)}:
        return None
    return _Apart(statement, store, start, apart)
