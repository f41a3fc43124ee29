"""Lowering: the passes in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from deepgen.compiler.passes.build import build
from deepgen.compiler.passes.guards import pad, place_guards
from deepgen.compiler.passes.ir import (
    EMPTY,
    Alloc,
    Buffer,
    Call,
    For,
    Function,
    Seq,
    Stmt,
    Store,
    children,
    sequence,
    walk,
)
from deepgen.compiler.passes.memory import flatten, registers, storage
from deepgen.compiler.passes.partition import partition
from deepgen.compiler.passes.simplify import simplify
from deepgen.compiler.passes.squares import squares
from deepgen.compiler.passes.tensorize import store_tiles, tensorize
from deepgen.compiler.passes.unroll import unroll
from deepgen.compiler.passes.vectorize import vectorize
from deepgen.compiler.schedule.apply import apply
from deepgen.compiler.schedule.steps import BOUND, PARALLEL, Schedule
from deepgen.operators.expr.nodes import Expression, reads
from deepgen.vocabulary import BadInput

Pass: TypeAlias = Callable[[Function], Function]


def lower(expression: Expression, schedule: Schedule, *, vector_bytes: int = 16) -> Function:
    """The function that computes an expression by a concrete schedule."""
    *_, (_, last) = passes(expression, schedule, vector_bytes=vector_bytes)
    return last


def passes(expression: Expression, schedule: Schedule, *, vector_bytes: int = 16) -> Iterator[tuple[str, Function]]:
    """The function after each pass, with the pass's name."""
    function = build(apply(expression, schedule))
    check(function)
    yield "build", function
    order: tuple[tuple[str, Pass], ...] = (
        ("pads", pad),
        ("flatten", flatten),
        ("simplify", simplify),
        ("guards", place_guards),
        ("squares", squares),
        ("partition", partition),
        ("tensorize", tensorize),
        ("stores", store_tiles),
        ("vectorize", partial(vectorize, vector_bytes=vector_bytes)),
        ("unroll", unroll),
        ("registers", registers),
        ("storage", storage),
    )
    for name, one in order:
        function = one(function)
        yield name, function


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
    """Every store in it is to a buffer of its own iteration, or to elements that its variable chooses."""
    own = {s.buffer.name for s in walk(loop.body) if isinstance(s, Alloc)}
    shared = (s for s in walk(loop.body) if isinstance(s, Store) and s.buffer not in own)
    for store in shared:
        if not any(loop.variable in i.iterators for i in store.indices):
            raise BadInput(f"threads of loop {loop.variable} would all write to {store.buffer}")


def split_ahead(function: Function, constant: Set[str]) -> tuple[Function | None, Function]:
    """What depends on constant tensors only, and the rest, which is given the results of that. Before `storage`."""
    copies: list[Buffer] = []
    parts: list[Stmt] = []
    body = _rest(function.body, set(constant), copies, parts)
    if not copies:
        return None, function
    parameters = tuple(replace(buffer, scope="parameter") for buffer in copies)
    read = {name for part in parts for name in _read(part)}
    inputs = tuple(buffer for buffer in function.inputs if buffer.name in read)
    before = Function(f"{function.name}_ahead", inputs, parameters, sequence(*parts))
    return before, replace(function, inputs=(*function.inputs, *parameters), body=body)


def _rest(statement: Stmt, constant: set[str], copies: list[Buffer], parts: list[Stmt]) -> Stmt:
    """What is left to do; what is not is added to `parts`, and its buffers to `made`."""
    if not isinstance(statement, Alloc):
        return statement
    body = statement.body.body if isinstance(statement.body, Seq) else (statement.body,)
    own = [part for part in body if _written(part) == {statement.buffer.name}]
    rest = sequence(*body[len(own) :]) if len(own) < len(body) else EMPTY
    if statement.buffer.scope != "global" or not own or any(not set(_read(part)) <= constant for part in own):
        inner = _rest(rest, constant, copies, parts)
        return replace(statement, body=sequence(*body[: len(own)], inner))
    copies.append(statement.buffer)
    parts += own
    return _rest(rest, constant | {statement.buffer.name}, copies, parts)


def _written(statement: Stmt) -> set[str]:
    stored = {s.buffer for s in walk(statement) if isinstance(s, Store)}
    return stored | {s.places[0].tensor for s in walk(statement) if isinstance(s, Call) and s.places}


def _read(statement: Stmt) -> Iterator[str]:
    for s in walk(statement):
        if isinstance(s, Store):
            yield from (read.tensor for read in reads(s.value))
        if isinstance(s, Call):
            yield from (place.tensor for place in s.places[1:])
