"""What can be computed ahead of time: copies of constant tensors become a function of their own."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace

from deepgen.compiler.passes.ir import EMPTY, Alloc, Buffer, Call, Function, Seq, Stmt, Store, sequence, walk
from deepgen.operators.expr.nodes import reads


def split_ahead(function: Function, constant: Set[str]) -> tuple[Function | None, Function]:
    """What depends on constant tensors only, and the rest, which is given the results of that. Before `storage`."""
    made: list[Buffer] = []
    parts: list[Stmt] = []
    body = _rest(function.body, set(constant), made, parts)
    if not made:
        return None, function
    given = tuple(replace(buffer, scope="parameter") for buffer in made)
    read = {name for part in parts for name in _read(part)}
    inputs = tuple(buffer for buffer in function.inputs if buffer.name in read)
    before = Function(f"{function.name}_ahead", inputs, given, sequence(*parts))
    return before, replace(function, inputs=(*function.inputs, *given), body=body)


def _rest(statement: Stmt, constant: set[str], made: list[Buffer], parts: list[Stmt]) -> Stmt:
    """What is left to do; what is not is added to `parts`, and its buffers to `made`."""
    if not isinstance(statement, Alloc):
        return statement
    body = statement.body.body if isinstance(statement.body, Seq) else (statement.body,)
    own = [part for part in body if _written(part) == {statement.buffer.name}]
    rest = sequence(*body[len(own) :]) if len(own) < len(body) else EMPTY
    if statement.buffer.scope != "global" or not own or any(not set(_read(part)) <= constant for part in own):
        inner = _rest(rest, constant, made, parts)
        return replace(statement, body=sequence(*body[: len(own)], inner))
    made.append(statement.buffer)
    parts += own
    return _rest(rest, constant | {statement.buffer.name}, made, parts)


def _written(statement: Stmt) -> set[str]:
    stored = {s.buffer for s in walk(statement) if isinstance(s, Store)}
    return stored | {s.places[0].tensor for s in walk(statement) if isinstance(s, Call) and s.places}


def _read(statement: Stmt) -> Iterator[str]:
    for s in walk(statement):
        if isinstance(s, Store):
            yield from (read.tensor for read in reads(s.value))
        if isinstance(s, Call):
            yield from (place.tensor for place in s.places[1:])
