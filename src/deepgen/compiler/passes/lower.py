"""Lowering: the sequence of passes, for CPUs and for GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import replace
from typing import TypeAlias, overload

from deepgen.compiler.passes.guards import edges, guards, pads, rounds, windows
from deepgen.compiler.passes.ir import (
    EMPTY,
    Alloc,
    Around,
    Buffer,
    Function,
    Lowered,
    Machine,
    Program,
    Seq,
    Stmt,
    read_in,
    sequence,
    written_in,
)
from deepgen.compiler.passes.launches import bind, build, together
from deepgen.compiler.passes.matrices import matrices
from deepgen.compiler.passes.memory import flatten, lanes, registers, storage
from deepgen.compiler.passes.partition import partition
from deepgen.compiler.passes.pipeline import barriers, pipeline, streams
from deepgen.compiler.passes.simplify import simplify, unroll, unroll_registers
from deepgen.compiler.passes.squares import squares
from deepgen.compiler.passes.tensorize import stores, tensorize
from deepgen.compiler.passes.vectorize import vectorize, vectorize_stores
from deepgen.compiler.schedule.apply import apply
from deepgen.compiler.schedule.steps import Schedule
from deepgen.operators.expr.nodes import Expression

Work: TypeAlias = "Callable[[Lowered, Machine], Lowered]"


def each(work: Callable[[Stmt, Around], Stmt]) -> Work:
    """A pass that changes bodies: the one of a function, or those of launches."""

    def on_all(lowered: Lowered, machine: Machine) -> Lowered:
        if isinstance(lowered, Function):
            return replace(lowered, body=work(lowered.body, Around(lowered, {}, machine)))
        launches = (replace(p, body=work(p.body, Around(lowered, p.ranges, machine))) for p in lowered.launches)
        return replace(lowered, launches=tuple(launches))

    return on_all


def _processor(machine: Machine) -> bool:
    return not machine.warp


def _gpu(machine: Machine) -> bool:
    return bool(machine.warp)


def _any(_: Machine) -> bool:
    return True


# All passes in order, each with the machines that it applies to. A pass is described in the file that it is imported
# from.
PASSES: tuple[tuple[str, Work, Callable[[Machine], bool]], ...] = (
    ("pads", each(pads), _processor),
    ("windows", each(windows), _gpu),
    ("matrices", each(matrices), _gpu),
    ("pipeline", each(pipeline), _gpu),
    ("bind", each(bind), _gpu),
    ("barriers", each(barriers), _gpu),
    ("simplify", each(simplify), _gpu),
    ("lanes", each(lanes), _gpu),
    ("flatten", each(flatten), _any),
    ("simplify", each(simplify), _any),
    ("streams", each(streams), _gpu),
    ("unroll", each(unroll_registers), _gpu),
    ("guards", each(guards), _any),
    ("squares", each(squares), _processor),
    ("partition", each(partition), _processor),
    ("tensorize", each(tensorize), _processor),
    ("stores", each(stores), _processor),
    ("vectorize", each(vectorize), _processor),
    ("edges", each(edges), _gpu),
    ("rounds", each(rounds), _gpu),
    ("vectorize", each(vectorize_stores), _gpu),
    ("unroll", each(unroll), _processor),
    ("registers", each(registers), _processor),
    ("storage", storage, _any),
    ("together", together, _gpu),
)


@overload
def lower(expression: Expression, schedule: Schedule, *, vector_bytes: int = 16) -> Function: ...
@overload
def lower(expression: Expression, schedule: Schedule, *, warp: int) -> Program: ...
def lower(expression: Expression, schedule: Schedule, *, vector_bytes: int = 16, warp: int = 0) -> Lowered:
    """The lowered form of an expression under a concrete schedule: for a CPU, or for a GPU with warps of this many
    lanes."""
    *_, (_, last) = passes(expression, schedule, Machine(vector_bytes, warp))
    return last


def passes(expression: Expression, schedule: Schedule, machine: Machine | None = None) -> Iterator[tuple[str, Lowered]]:
    """The lowered form after each pass, with the pass's name."""
    machine = machine or Machine()
    lowered = build(apply(expression, schedule), machine)
    yield "build", lowered
    for name, work, on in PASSES:
        if on(machine):
            lowered = work(lowered, machine)
            yield name, lowered


def split_ahead(function: Function, constant: Set[str]) -> tuple[Function | None, Function]:
    """The part that depends on constant tensors only, and the rest, which takes its results as inputs. Runs before
    `storage`."""
    copies: list[Buffer] = []
    parts: list[Stmt] = []
    body = _rest(function.body, set(constant), copies, parts)
    if not copies:
        return None, function
    parameters = tuple(replace(buffer, scope="parameter") for buffer in copies)
    read = {name for part in parts for name in read_in(part)}
    inputs = tuple(buffer for buffer in function.inputs if buffer.name in read)
    before = Function(f"{function.name}_ahead", inputs, parameters, sequence(*parts))
    return before, replace(function, inputs=(*function.inputs, *parameters), body=body)


def _rest(statement: Stmt, constant: set[str], copies: list[Buffer], parts: list[Stmt]) -> Stmt:
    """The remaining work; removed parts are added to `parts`, and their buffers to `copies`."""
    if not isinstance(statement, Alloc):
        return statement
    body = statement.body.body if isinstance(statement.body, Seq) else (statement.body,)
    own = [part for part in body if written_in(part) == {statement.buffer.name}]
    rest = sequence(*body[len(own) :]) if len(own) < len(body) else EMPTY
    if statement.buffer.scope != "global" or not own or any(not read_in(part) <= constant for part in own):
        inner = _rest(rest, constant, copies, parts)
        return replace(statement, body=sequence(*body[: len(own)], inner))
    copies.append(statement.buffer)
    parts += own
    return _rest(rest, constant | {statement.buffer.name}, copies, parts)
