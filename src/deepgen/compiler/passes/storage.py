"""Gives buffers their memory: variables, the stack of a thread, or a place in the workspace.

Buffers that are not there at the same time share their place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from deepgen.compiler.passes.ir import Alloc, For, Function, Stmt, with_children
from deepgen.compiler.schedule.steps import PARALLEL
from deepgen.vocabulary.dtypes import dtype

ALIGN = 64  # bytes
_MOST_ON_STACK = 16 << 10  # bytes of one buffer


def storage(function: Function) -> Function:
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
