"""Gives each buffer in shared memory its place."""

from __future__ import annotations

from dataclasses import dataclass, replace

from deepgen.generators.rules.intrinsics.matrix import wide_product
from deepgen.generators.rules.lower.gpu.launches import Launch
from deepgen.generators.rules.lower.ir import Alloc, Call, Stmt, Store, walk, with_children
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
    bytes: int
    align: int

    def placed(self, statement: Stmt) -> Stmt:
        if isinstance(statement, Alloc) and statement.buffer.scope == "shared":
            start = -(-self.bytes // self.align) * self.align
            size = statement.buffer.elements * dtype(statement.buffer.dtype).bytes
            self.bytes = start + -(-size // _ALIGN) * _ALIGN
            statement = replace(statement, buffer=replace(statement.buffer, offset=start))
        return with_children(statement, self.placed)
