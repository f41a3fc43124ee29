"""Indices of buffers as one offset each, in elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from deepgen.compiler.passes.ir import Alloc, Buffer, Call, Function, Stmt, Store, with_children
from deepgen.operators.expr.index import Index
from deepgen.operators.expr.nodes import Read
from deepgen.operators.expr.rewrite import with_reads


def flatten(function: Function) -> Function:
    buffers = {buffer.name: buffer for buffer in function.parameters}
    return replace(function, body=flat(function.body, buffers))


def flat(statement: Stmt, buffers: Mapping[str, Buffer]) -> Stmt:
    if isinstance(statement, Alloc):
        buffers = {**buffers, statement.buffer.name: statement.buffer}
    if isinstance(statement, Store):
        value = with_reads(statement.value, lambda r: Read(r.tensor, _offset(buffers[r.tensor], r.indices), r.dtype))
        return replace(statement, indices=_offset(buffers[statement.buffer], statement.indices), value=value)
    if isinstance(statement, Call):
        places = (replace(r, indices=_offset(buffers[r.tensor], r.indices)) for r in statement.places)
        return replace(statement, places=tuple(places))
    return with_children(statement, lambda s: flat(s, buffers))


def _offset(buffer: Buffer, indices: Sequence[Index]) -> tuple[Index]:
    total = Index()
    for i, stride in zip(indices, buffer.strides, strict=True):
        total = total + i * stride
    return (total,)
