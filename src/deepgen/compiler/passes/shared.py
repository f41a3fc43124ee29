"""Gives each buffer in shared memory its place: buffers that are used after each other may have the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from deepgen.compiler.intrinsics.matrix import wide_product
from deepgen.compiler.passes.ir import (
    Alloc,
    Barrier,
    Buffer,
    Call,
    For,
    If,
    Seq,
    Stmt,
    Store,
    children,
    sequence,
    walk,
    with_children,
)
from deepgen.compiler.passes.launches import Launch
from deepgen.operators.expr.nodes import reads
from deepgen.vocabulary import dtype

_ALIGN = 128  # bytes: a row of all banks
_ALIGN_WIDE = 1024  # what matrix units read themselves: eight such rows
_WIDEST = 8  # bytes of a number


def in_shared_memory(launch: Launch, warp: int) -> Launch:
    """Threads that join what they reduced over more than a warp have the first bytes for that."""
    joins = any(isinstance(s, Store) and s.joined for s in walk(launch.body))
    x, y, z = launch.threads
    wide = any(isinstance(s, Call) and wide_product(s.name) for s in walk(launch.body))
    memory = _Memory(x * y * z // warp * _WIDEST if joins and x > warp else 0, _ALIGN_WIDE if wide else _ALIGN)
    body = memory.placed(launch.body)
    if not wide:
        return replace(launch, body=body, shared_bytes=memory.bytes)
    return replace(launch, body=body, shared_bytes=memory.bytes + _ALIGN_WIDE, align=_ALIGN_WIDE)


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
                outer = None if outer is not None and outer.name in _used(part) else outer
            return sequence(*parts)
        if not isinstance(statement, Alloc) or statement.buffer.scope != "shared":
            # A loop that uses it keeps numbers in it from one iteration to the next.
            kept = outer is not None and isinstance(statement, For) and outer.name in _used(statement)
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
    return name not in _used(statement) and any(isinstance(s, Barrier) for s in walk(statement))


def _used(statement: Stmt) -> set[str]:
    """The buffers that it reads or writes."""
    inside = list(walk(statement))
    used = {s.buffer for s in inside if isinstance(s, Store)}
    used |= {read.tensor for s in inside if isinstance(s, Store) for read in reads(s.value)}
    return used | {read.tensor for s in inside if isinstance(s, Call) for read in s.places}


def with_barriers(body: Stmt) -> Stmt:
    shared = frozenset(s.buffer.name for s in walk(body) if isinstance(s, Alloc) and s.buffer.scope == "shared")
    return _placed(body, _Since(), shared)[0]


@dataclass(frozen=True)
class _Since:
    """What was done to shared memory since the last barrier."""

    written: frozenset[str] = frozenset()
    read: frozenset[str] = frozenset()

    def __or__(self, other: _Since) -> _Since:
        return _Since(self.written | other.written, self.read | other.read)


def _placed(statement: Stmt, since: _Since, shared: frozenset[str]) -> tuple[Stmt, _Since]:
    if isinstance(statement, Barrier):
        return statement, _Since()
    if isinstance(statement, If) or not _composite(statement):
        done = _done(statement, shared)
        clash = done.read - done.written & since.written or done.written & since.read
        return (sequence(Barrier(), statement), done) if clash else (statement, since | done)
    if isinstance(statement, Seq):
        parts = []
        for one in statement.body:
            placed, since = _placed(one, since, shared)
            parts.append(placed)
        return sequence(*parts), since
    if isinstance(statement, For):
        # What an iteration leaves behind is there when the next one begins.
        _, after = _placed(statement.body, since, shared)
        body, after = _placed(statement.body, since | after, shared)
        return For(statement.variable, statement.extent, statement.kind, body, statement.limits), since | after
    assert isinstance(statement, Alloc)
    body, since = _placed(statement.body, since, shared)
    return Alloc(statement.buffer, body), since


def _composite(statement: Stmt) -> bool:
    """Whether threads meet in it, so that barriers may stand inside."""
    inside = list(walk(statement))
    return (
        any(isinstance(s, Barrier) or (isinstance(s, Alloc) and s.buffer.scope == "shared") for s in inside)
        or (isinstance(statement, (Seq, Alloc, For)) and any(isinstance(s, Store) and s.joined for s in inside))
        or isinstance(statement, Seq)
    )


def _done(statement: Stmt, shared: frozenset[str]) -> _Since:
    written = {s.buffer for s in walk(statement) if isinstance(s, Store) and not s.ahead}
    return _Since(frozenset(written) & shared, frozenset(_read(statement)) & shared)


def _read(statement: Stmt) -> Iterator[str]:
    if isinstance(statement, Store):
        yield from (read.tensor for read in reads(statement.value))
    if isinstance(statement, Call):
        yield from (read.tensor for read in statement.places)
    for child in children(statement):
        yield from _read(child)
