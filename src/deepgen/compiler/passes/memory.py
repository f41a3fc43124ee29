"""Decides which buffers become variables: those in registers whose every access is at a place known in the text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from deepgen.compiler.intrinsics.dots import DOTS
from deepgen.compiler.intrinsics.matrix import WARPGROUP, WideProduct
from deepgen.compiler.passes.ir import (
    Alloc,
    Around,
    Barrier,
    Buffer,
    Call,
    For,
    Function,
    Launch,
    Lowered,
    Machine,
    Seq,
    Stmt,
    Store,
    calls,
    children,
    offset,
    sequence,
    used,
    walk,
    with_accesses,
    with_children,
)
from deepgen.compiler.schedule.steps import PARALLEL, VECTOR
from deepgen.operators.expr.index import Index, iterator
from deepgen.operators.expr.nodes import reads
from deepgen.vocabulary import dtype

_MOST_VARIABLES = 256


def registers(body: Stmt, _: Around) -> Stmt:
    return _held(body)


def _held(statement: Stmt) -> Stmt:
    statement = with_children(statement, _held)
    if not isinstance(statement, Alloc) or statement.buffer.scope != "register":
        return statement
    lanes = _lanes(statement)
    return replace(statement, buffer=replace(statement.buffer, lanes=lanes))


def _lanes(alloc: Alloc) -> int:
    """Of the vectors that a buffer is accessed by; 0 where it cannot be held in variables."""
    if any(isinstance(s, For) and s.kind == PARALLEL for s in walk(alloc.body)):
        return 0
    accesses = set(_accesses(alloc.body, alloc.buffer.name, None))
    if any(at is None for at, _ in accesses):
        return 0
    widths = {lanes for _, lanes in accesses if lanes > 1}
    if len(widths) > 1:
        return 0
    lanes = widths.pop() if widths else 1
    whole = all(at is not None and at % lanes == 0 for at, width in accesses if width > 1)
    return lanes if whole and alloc.buffer.elements <= lanes * _MOST_VARIABLES else 0


def _accesses(statement: Stmt, name: str, vector: For | None) -> Iterator[tuple[int | None, int]]:
    """Where a buffer is accessed, and by how many lanes."""
    if isinstance(statement, Call) and any(place.tensor == name for place in statement.places):
        yield None, 1
    if isinstance(statement, For) and vector is None and statement.kind in (VECTOR, *DOTS):
        vector = statement
    if isinstance(statement, Store):
        offsets = [read.indices[0] for read in reads(statement.value) if read.tensor == name]
        for offset in (*offsets, *(statement.indices if statement.buffer == name else ())):
            yield _access(offset, vector)
    for child in children(statement):
        yield from _accesses(child, name, vector)


def _access(offset: Index, vector: For | None) -> tuple[int | None, int]:
    if vector is None or vector.variable not in offset.iterators:
        return (None, 1) if offset.terms else (offset.constant, 1)
    rest = offset - iterator(vector.variable)
    return None if rest.terms else rest.constant, vector.extent


ALIGN = 64  # bytes
_MOST_ON_STACK = 16 << 10  # bytes of one buffer


def storage(lowered: Lowered, machine: Machine) -> Lowered:
    if isinstance(lowered, Function):
        return in_workspace(lowered)
    return replace(lowered, launches=tuple(_in_shared_memory(launch, machine.warp) for launch in lowered.launches))


def in_workspace(function: Function) -> Function:
    layout = _Layout()
    body = layout.placed(function.body, 0, 0, in_thread=False)
    return replace(function, body=body, shared_bytes=layout.shared, thread_bytes=layout.thread)


@dataclass
class _Layout:
    shared: int = 0
    thread: int = 0

    def placed(self, statement: Stmt, shared: int, thread: int, in_thread: bool) -> Stmt:
        if isinstance(statement, For) and statement.kind == PARALLEL:
            in_thread = True
        if isinstance(statement, Alloc):
            buffer = statement.buffer
            size = -(-buffer.elements * dtype(buffer.dtype).bytes // ALIGN) * ALIGN
            if not buffer.lanes and not (buffer.scope == "register" and size <= _MOST_ON_STACK):
                statement = replace(statement, buffer=replace(buffer, offset=thread if in_thread else shared))
                shared, thread = (shared, thread + size) if in_thread else (shared + size, thread)
                self.shared, self.thread = max(self.shared, shared), max(self.thread, thread)
        return with_children(statement, lambda s: self.placed(s, shared, thread, in_thread))


def flatten(body: Stmt, around: Around) -> Stmt:
    return _flat(body, around.whole.buffers)


def _flat(statement: Stmt, buffers: Mapping[str, Buffer]) -> Stmt:
    if isinstance(statement, Alloc):
        buffers = {**buffers, statement.buffer.name: statement.buffer}
    inner = with_children(statement, lambda s: _flat(s, buffers))
    return with_accesses(inner, lambda name, indices: (offset(buffers[name], indices),))


_ALIGN = 128  # bytes: a row of all banks
_WIDEST = 8  # bytes of a number


def _in_shared_memory(launch: Launch, warp: int) -> Launch:
    """Threads that join what they reduced over more than a warp have the first bytes for that."""
    joins = any(isinstance(s, Store) and s.joined for s in walk(launch.body))
    x, y, z = launch.threads
    wide = any(calls(launch.body, WideProduct))
    memory = _Memory(x * y * z // warp * _WIDEST if joins and x > warp else 0, WARPGROUP.align if wide else _ALIGN)
    body = memory.placed(launch.body)
    if not wide:
        return replace(launch, body=body, shared_bytes=memory.bytes)
    return replace(launch, body=body, shared_bytes=memory.bytes + WARPGROUP.align, align=WARPGROUP.align)


@dataclass
class _Memory:
    bytes: int  # up to where memory is taken
    align: int

    def placed(self, statement: Stmt, outer: Buffer | None = None) -> Stmt:
        """`outer` is the buffer in whose life this is done, where nothing was written to it yet."""
        if isinstance(statement, Seq):
            parts: list[Stmt] = []
            for part in statement.body:
                parts.append(self.placed(part, outer))
                outer = None if outer is not None and outer.name in used(part) else outer
            return sequence(*parts)
        if not isinstance(statement, Alloc) or statement.buffer.scope != "shared":
            # A loop that uses it keeps numbers in it from one iteration to the next.
            kept = outer is not None and isinstance(statement, For) and outer.name in used(statement)
            return with_children(statement, lambda s: self.placed(s, None if kept else outer))
        taken, before = self.bytes, outer is not None and _leaves_alone(statement, outer.name)
        start = outer.offset if before and outer is not None and outer.offset is not None else taken
        start = -(-start // self.align) * self.align
        size = statement.buffer.elements * dtype(statement.buffer.dtype).bytes
        self.bytes = start + -(-size // _ALIGN) * _ALIGN
        buffer = replace(statement.buffer, offset=start)
        placed: Stmt = Alloc(buffer, self.placed(statement.body, buffer))
        self.bytes = max(taken, self.bytes)
        return sequence(Barrier(), placed, Barrier()) if before else placed


def _leaves_alone(statement: Alloc, name: str) -> bool:
    """Whether all threads meet in it, and nobody uses that buffer meanwhile."""
    return name not in used(statement) and any(isinstance(s, Barrier) for s in walk(statement))
