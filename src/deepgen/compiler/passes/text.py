"""Functions as readable text: loops by indentation, one statement per line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from deepgen.compiler.passes.ir import (
    Alloc,
    Barrier,
    Buffer,
    Call,
    Fence,
    For,
    Function,
    If,
    Lowered,
    Stmt,
    Store,
    children,
)
from deepgen.compiler.schedule.steps import SERIAL
from deepgen.operators.expr.index import Index, iterator
from deepgen.operators.expr.nodes import Binary, Cast, Compare, Const, Logic, Place, Read, Select, Unary, Value

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "and": "and",
    "or": "or",
}  # fmt: skip
_ASSIGN = {None: "=", "sum": "+=", "prod": "*=", "max": "max=", "min": "min="}


def to_text(lowered: Lowered) -> str:
    """A function; or a program launch by launch, each with its grid."""
    inputs, outputs = (", ".join(_buffer(b) for b in bs) for bs in (lowered.inputs, lowered.outputs))
    lines = [f"{lowered.name}({inputs}) -> {outputs}:"]
    if isinstance(lowered, Function):
        return "\n".join([*lines, *_lines(lowered.body, 1)]) + "\n"
    for number, launch in ((n, part) for whole in lowered.launches for n, part in enumerate(whole.parts)):
        grid, block = (" x ".join(map(str, extents)) for extents in (launch.blocks, launch.threads))
        beside = "beside it, " if number else "launch "
        lines += [f"  {beside}{launch.name}, {grid} blocks of {block} threads:", *_lines(launch.body, 2)]
    return "\n".join(lines) + "\n"


def _buffer(buffer: Buffer) -> str:
    return f"{buffer.name}: {buffer.dtype}[{', '.join(map(str, buffer.sizes))}]"


def _loop(variable: str) -> str:
    """Fused loops are named after all their parts: without parentheses the name would read as a sum."""
    return f"({variable})" if "+" in variable else variable


def _index(index: Index | int) -> str:
    if isinstance(index, int):
        return str(index)
    return str(index.substitute({name: iterator(_loop(name)) for name in index.iterators}))


def _indices(indices: Iterable[Index | int]) -> str:
    return ", ".join(map(_index, indices))


def _lines(statement: Stmt, depth: int) -> Iterator[str]:
    indent = "  " * depth
    if isinstance(statement, For):
        kind = "for" if statement.kind == SERIAL else statement.kind
        most = _indices((statement.extent, *statement.limits))
        yield f"{indent}{kind} {_loop(statement.variable)} < {f'min({most})' if statement.limits else most}:"
    elif isinstance(statement, If):
        yield f"{indent}if {' and '.join(f'{_index(c)} >= 0' for c in statement.conditions)}:"
        yield from _lines(statement.then, depth + 1)
        if statement.otherwise is not None:
            yield f"{indent}else:"
            yield from _lines(statement.otherwise, depth + 1)
        return
    elif isinstance(statement, Alloc):
        lanes = f", vectors of {statement.buffer.lanes}" if statement.buffer.lanes > 1 else ""
        ring = f", {statement.buffer.ahead} to be filled ahead" if statement.buffer.ahead > 1 else ""
        place = "" if statement.buffer.offset is None else f", at byte {statement.buffer.offset}"
        yield f"{indent}{statement.buffer.scope} {_buffer(statement.buffer)}{lanes}{ring}{place}"
        yield from _lines(statement.body, depth)
        return
    elif isinstance(statement, Store):
        place = f"{statement.buffer}[{_indices(statement.indices)}]"
        joined = f"{statement.joined} over thread.x of " if statement.joined else ""
        ahead = " ahead" if statement.ahead else ""
        yield f"{indent}{place} {_ASSIGN[statement.reduce]} {joined}{value_text(statement.value)}{ahead}"
    elif isinstance(statement, Barrier):
        yield f"{indent}barrier"
    elif isinstance(statement, Call):
        arguments = [*map(value_text, statement.places), *map(str, statement.numbers)]
        yield f"{indent}{statement.what.name}({', '.join(arguments)})"
    elif isinstance(statement, Fence):
        yield f"{indent}fence"
    deeper = depth + isinstance(statement, For)
    for child in children(statement):
        yield from _lines(child, deeper)


def value_text(value: Value) -> str:
    if isinstance(value, Const):
        return str(value.value)
    if isinstance(value, Place):
        return f"({_index(value.index)})"
    if isinstance(value, Read):
        return f"{value.tensor}[{_indices(value.indices)}]"
    if isinstance(value, Cast):
        return f"{value.dtype}({value_text(value.value)})"
    if isinstance(value, Unary):
        return f"{value.op}({value_text(value.value)})"
    if isinstance(value, Select):
        return f"({value_text(value.then)} if {value_text(value.condition)} else {value_text(value.otherwise)})"
    left, right = value_text(value.left), value_text(value.right)
    assert isinstance(value, (Binary, Compare, Logic))
    return f"({left} {_INFIX[value.op]} {right})" if value.op in _INFIX else f"{value.op}({left}, {right})"
