"""Lowering for GPUs: the passes in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

from deepgen.compiler.intrinsics.matrix import wide_product
from deepgen.compiler.passes.bounds import IndexBounds
from deepgen.compiler.passes.guards import placed
from deepgen.compiler.passes.ir import Alloc, Barrier, Buffer, Call, For, If, Seq, Stmt, Store, walk
from deepgen.compiler.passes.launches import Launch, Program, build
from deepgen.compiler.passes.memory import flat
from deepgen.compiler.passes.shared import in_shared_memory, with_barriers
from deepgen.compiler.passes.simplify import simplified
from deepgen.compiler.passes.unroll import with_registers
from deepgen.compiler.passes.vectors import with_vectors
from deepgen.compiler.schedule.apply import apply
from deepgen.compiler.schedule.steps import LANES, Schedule
from deepgen.operators.expr.index import iterator
from deepgen.operators.expr.nodes import Expression, Read, reads
from deepgen.vocabulary import BadInput

Pass: TypeAlias = Callable[[Launch, Mapping[str, Buffer]], Launch]


def lower(expression: Expression, schedule: Schedule, warp: int = 32) -> Program:
    """The launches that compute an expression by a concrete schedule."""
    *_, (_, last) = passes(expression, schedule, warp)
    return last


def passes(expression: Expression, schedule: Schedule, warp: int = 32) -> Iterator[tuple[str, Program]]:
    """The program after each pass, with the pass's name."""
    program = build(apply(expression, schedule), warp)
    yield "build", program
    order: tuple[tuple[str, Pass], ...] = (
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


def in_own_lane(launch: Launch) -> Launch:
    buffers = [s.buffer for s in walk(launch.body) if isinstance(s, Alloc) and s.buffer.scope == "warp"]
    held = {buffer.name for buffer in buffers}
    alone = {buffer.name for buffer in buffers if buffer.sizes[1] == 1}
    for buffer in buffers:
        if launch.threads[0] != buffer.sizes[1]:
            allowed = f"{buffer.sizes[1]}: as many as have {buffer.name}"
            raise BadInput(f"{launch.threads[0]} threads along {LANES}", allowed=allowed)
    for statement in walk(launch.body):
        for read in _accesses(statement):
            if read.tensor in held - alone and isinstance(statement, Store):
                number, lane = read.indices
                if lane != iterator(LANES) or LANES in number.iterators:
                    what = f"a lane would read {read.tensor} of another one"
                    raise BadInput(what, where=str(lane), allowed="loops bound to lanes as the intrinsic has its sums")
    return launch


def _accesses(statement: Stmt) -> tuple[Read, ...]:
    if isinstance(statement, Store):
        return (*reads(statement.value), Read(statement.buffer, statement.indices, statement.value.dtype))
    return statement.places if isinstance(statement, Call) else ()


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
