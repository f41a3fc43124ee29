"""What keeps threads from each other: parallel loops are not nested, and write only what each turn has for itself."""

from __future__ import annotations

from deepgen.compiler.passes.ir import Alloc, For, Function, Stmt, Store, children, walk
from deepgen.compiler.schedule.steps import BOUND, PARALLEL
from deepgen.vocabulary import BadInput


def check(function: Function) -> None:
    _check(function.body, None, frozenset())


def _check(statement: Stmt, parallel: str | None, bound: frozenset[str]) -> None:
    if isinstance(statement, For) and statement.kind == PARALLEL:
        if parallel is not None:
            raise BadInput(f"loop {statement.variable} is parallel, and so is loop {parallel} around it")
        parallel = statement.variable
        _check_writes(statement)
    if isinstance(statement, For) and statement.kind in BOUND:
        if statement.kind in bound:
            raise BadInput(f"loop {statement.variable} is bound to {statement.kind}, and so is a loop around it")
        bound |= {statement.kind}
    for child in children(statement):
        _check(child, parallel, bound)


def _check_writes(loop: For) -> None:
    """Every store in it is to a buffer of its own turn, or to elements that its variable chooses."""
    own = {s.buffer.name for s in walk(loop.body) if isinstance(s, Alloc)}
    shared = (s for s in walk(loop.body) if isinstance(s, Store) and s.buffer not in own)
    for store in shared:
        if not any(loop.variable in i.iterators for i in store.indices):
            raise BadInput(f"threads of loop {loop.variable} would all write to {store.buffer}")
