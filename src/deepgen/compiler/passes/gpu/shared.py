"""Gives each buffer in shared memory its place: buffers that are used after each other may have the same."""

from __future__ import annotations

from dataclasses import dataclass, replace

from deepgen.compiler.intrinsics.matrix import wide_product
from deepgen.compiler.passes.gpu.launches import Launch
from deepgen.compiler.passes.ir import (
    Alloc,
    Barrier,
    Buffer,
    Call,
    For,
    Seq,
    Stmt,
    Store,
    sequence,
    walk,
    with_children,
)
from deepgen.operators.expr.nodes import reads
from deepgen.vocabulary.dtypes import dtype

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
            # A loop that uses it keeps numbers in it from one turn to the next.
            kept = outer is not None and isinstance(statement, For) and outer.name in _used(statement)
            return with_children(statement, lambda s: self.placed(s, None if kept else outer))
        taken, before = self.bytes, outer is not None and _leaves_alone(statement, outer.name)
        start = outer.offset if before and outer is not None and outer.offset is not None else taken
        start = -(-start // self.align) * self.align
        size = statement.buffer.elements * dtype(statement.buffer.dtype).bytes
        self.bytes = start + -(-size // _ALIGN) * _ALIGN
        buffer = replace(statement.buffer, offset=start)
        made: Stmt = Alloc(buffer, self.placed(statement.body, buffer))
        self.bytes = max(taken, self.bytes)
        return sequence(Barrier(), made, Barrier()) if before else made


def _leaves_alone(statement: Alloc, name: str) -> bool:
    """Whether all threads meet in it, and nobody uses that buffer meanwhile."""
    return name not in _used(statement) and any(isinstance(s, Barrier) for s in walk(statement))


def _used(statement: Stmt) -> set[str]:
    """The buffers that it reads or writes."""
    inside = list(walk(statement))
    used = {s.buffer for s in inside if isinstance(s, Store)}
    used |= {read.tensor for s in inside if isinstance(s, Store) for read in reads(s.value)}
    return used | {read.tensor for s in inside if isinstance(s, Call) for read in s.places}
