"""Statements as code common to C, CUDA and HIP; what differs is in the emitter of each.

An emitter adds its own loops and stores, and the places of buffers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from deepgen.compiler.passes.ir import Alloc, Barrier, Call, Fence, For, If, Seq, Stmt, Store
from deepgen.compiler.schedule.stages import combined
from deepgen.compiler.text.values import Scope
from deepgen.operators.expr.nodes import Read, Value

S = TypeVar("S", bound=Scope)


class Statements(ABC, Generic[S]):
    @abstractmethod
    def own(self, statement: Stmt, scope: S, depth: int) -> list[str] | None:
        """Code specific to this language; None if a statement is emitted as in the others."""

    @abstractmethod
    def store(self, store: Store, scope: S) -> list[str]: ...

    @abstractmethod
    def declared(self, alloc: Alloc, scope: S) -> str:
        """The declaration of a buffer."""

    @abstractmethod
    def argument(self, read: Read, scope: S) -> str:
        """A place, as an argument of functions and instructions."""

    def head(self, loop: For, scope: S) -> str:
        """The beginning of a loop."""
        return scope.dialect.loop.format(scope.name(loop.variable), self.end(loop, scope))

    def end(self, loop: For, scope: S) -> str:
        end = str(loop.extent)
        for limit in loop.limits:
            end = f"least({end}, {scope.index(limit)})"
        return end

    def statement(self, statement: Stmt, scope: S, depth: int) -> list[str]:
        lines, indent = self.own(statement, scope, depth), "    " * depth
        if lines is not None:
            return lines
        if isinstance(statement, Seq):
            return [line for s in statement.body for line in self.statement(s, scope, depth)]
        if isinstance(statement, Store):
            return [indent + line for line in self.store(statement, scope)]
        if isinstance(statement, If):
            lines = [f"{indent}if ({scope.all_there(statement.conditions)}) {{"]
            lines += self.statement(statement.then, scope, depth + 1)
            if statement.otherwise is not None:
                lines += [f"{indent}}} else {{", *self.statement(statement.otherwise, scope, depth + 1)]
            return [*lines, f"{indent}}}"]
        if isinstance(statement, (For, Alloc)):
            if isinstance(statement, For):
                lines = [indent + self.head(statement, scope)]
            else:
                lines = [f"{indent}{{", f"{indent}    {self.declared(statement, scope)}"]
            return [*lines, *self.statement(statement.body, scope.inside(statement), depth + 1), f"{indent}}}"]
        if isinstance(statement, Call):
            arguments = [*(self.argument(read, scope) for read in statement.places), *map(str, statement.numbers)]
            return [f"{indent}{statement.what.name}({', '.join(arguments)});"]
        assert isinstance(statement, (Barrier, Fence))
        return [indent + (scope.dialect.barrier if isinstance(statement, Barrier) else scope.dialect.fence)]


def result(store: Store) -> Value:
    """The value of an element after a store."""
    if not store.reduce:
        return store.value
    return combined(store.reduce, Read(store.buffer, store.indices, store.value.dtype), store.value)
