"""Lowering: the passes in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from deepgen.compiler.intrinsics.matrix import wide_product
from deepgen.compiler.passes.barriers import with_barriers
from deepgen.compiler.passes.bounds import IndexBounds
from deepgen.compiler.passes.build import build
from deepgen.compiler.passes.guards import pad, place_guards, placed
from deepgen.compiler.passes.ir import (
    EMPTY,
    Alloc,
    Around,
    Barrier,
    Buffer,
    Call,
    For,
    Function,
    If,
    Launch,
    Program,
    Seq,
    Stmt,
    Store,
    children,
    sequence,
    walk,
)
from deepgen.compiler.passes.lanes import in_own_lane
from deepgen.compiler.passes.launches import bind
from deepgen.compiler.passes.launches import build as gpu_build
from deepgen.compiler.passes.matrices import matrices
from deepgen.compiler.passes.memory import flat, flatten, in_shared_memory, registers, storage
from deepgen.compiler.passes.partition import partition
from deepgen.compiler.passes.pipeline import pipeline
from deepgen.compiler.passes.simplify import simplified, simplify
from deepgen.compiler.passes.squares import squares
from deepgen.compiler.passes.tensorize import store_tiles, tensorize
from deepgen.compiler.passes.unroll import unroll, with_registers
from deepgen.compiler.passes.vectorize import vectorize, with_vectors
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


GpuPass: TypeAlias = Callable[[Launch, Mapping[str, Buffer]], Launch]


def gpu_lower(expression: Expression, schedule: Schedule, warp: int = 32) -> Program:
    """The launches that compute an expression by a concrete schedule."""
    *_, (_, last) = gpu_passes(expression, schedule, warp)
    return last


def gpu_passes(expression: Expression, schedule: Schedule, warp: int = 32) -> Iterator[tuple[str, Program]]:
    """The program after each pass, with the pass's name."""
    program = gpu_build(apply(expression, schedule), warp)
    yield "build", program
    order: tuple[tuple[str, GpuPass], ...] = (
        ("matrices", lambda launch, _: replace(launch, body=matrices(launch.body, Around(program, {}, 16, warp)))),
        ("pipeline", lambda launch, _: replace(launch, body=pipeline(launch.body, Around(program, {}, 16, warp)))),
        ("bind", lambda launch, _: replace(launch, body=bind(launch.body, Around(program, {}, 16, warp)))),
        ("barriers", lambda launch, _: replace(launch, body=with_barriers(launch.body))),
        ("lanes", lambda launch, _: in_own_lane(_simplified(launch))),
        ("flatten", lambda launch, buffers: _simplified(replace(launch, body=flat(launch.body, buffers)))),
        ("registers", lambda launch, _: replace(launch, body=with_registers(launch.body))),
        ("guards", lambda launch, _: replace(launch, body=placed(launch.body))),
        ("vectors", lambda launch, _: _simplified(replace(launch, body=with_vectors(launch.body)))),
        ("shared", lambda launch, _: in_shared_memory(launch, warp)),
    )
    for name, one in order:
        program = replace(program, launches=tuple(one(launch, program.buffers) for launch in program.launches))
        yield name, program
    yield "together", together(program)


def _simplified(launch: Launch) -> Launch:
    return replace(launch, body=simplified(launch.body, IndexBounds(launch.ranges)))


def together(program: Program) -> Program:
    """Neighbours with blocks of the same threads are done by one grid: the blocks of one, then those of the next."""
    joined: list[Launch] = []
    for launch in program.launches:
        if joined and all(_apart(one, launch) for one in joined[-1].parts):
            joined[-1] = replace(joined[-1], beside=(*joined[-1].beside, launch))
        else:
            joined.append(launch)
    return replace(program, launches=tuple(joined))


def _apart(one: Launch, other: Launch) -> bool:
    """Whether neither uses what the other writes, and both may be branches of one kernel."""
    (first, writes), (second, written) = _used(one), _used(other)
    plain = not any(
        isinstance(s, Call) or (isinstance(s, Store) and s.joined) for p in (one, other) for s in walk(p.body)
    )
    return one.threads == other.threads and plain and not (writes & second) and not (written & first)


def _used(launch: Launch) -> tuple[set[str], set[str]]:
    """The buffers that other launches know too: all that are used, and those that are written."""
    inside = list(walk(launch.body))
    own = {s.buffer.name for s in inside if isinstance(s, Alloc)}
    written = {s.buffer for s in inside if isinstance(s, Store)} - own
    return written | {r.tensor for s in inside if isinstance(s, Store) for r in reads(s.value)} - own, written


def overlaps(program: Program, n: int) -> bool:
    """Whether a launch may begin while the one before still runs: on chips with products of four warps, if it copies
    what the other one leaves for it."""
    launch = program.launches[n]
    inside = list(walk(launch.body)) if n and not launch.beside else []
    wide = any(isinstance(s, Call) and wide_product(s.name) for s in inside)
    return wide and any(copies_of_scratch(program, s) for s in inside)


def copies_of_scratch(program: Program, statement: Stmt) -> bool:
    """Whether these are loops that copy what another launch leaves, and nothing beside that."""
    scratch, inside = {buffer.name for buffer in program.scratch}, list(walk(statement))
    if not isinstance(statement, (For, If)) or any(isinstance(s, (Seq, Alloc, Barrier, Call)) for s in inside):
        return False
    return any(isinstance(s, Store) and scratch & {read.tensor for read in reads(s.value)} for s in inside)
