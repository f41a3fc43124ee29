"""Where the threads of a block wait for each other."""

from __future__ import annotations

from dataclasses import dataclass, replace

from deepgen.compiler.passes.ir import (
    Alloc,
    Around,
    Barrier,
    For,
    If,
    Seq,
    Stmt,
    Store,
    held_in,
    read_in,
    sequence,
    walk,
)


def barriers(body: Stmt, _: Around) -> Stmt:
    return _placed(body, _Since(), held_in(body, ("shared",)))[0]


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
        return replace(statement, body=body), since | after
    assert isinstance(statement, Alloc)
    body, since = _placed(statement.body, since, shared)
    return replace(statement, body=body), since


def _composite(statement: Stmt) -> bool:
    """Whether threads meet in it, so that barriers may stand inside."""
    inside = list(walk(statement))
    return (
        any(isinstance(s, Barrier) or (isinstance(s, Alloc) and s.buffer.scope == "shared") for s in inside)
        or (isinstance(statement, (Seq, Alloc, For)) and any(isinstance(s, Store) and s.joined for s in inside))
        or isinstance(statement, Seq)
    )


def _done(statement: Stmt, shared: frozenset[str]) -> _Since:
    stored = {s.buffer for s in walk(statement) if isinstance(s, Store) and not s.ahead}
    return _Since(shared & stored, shared & read_in(statement))
