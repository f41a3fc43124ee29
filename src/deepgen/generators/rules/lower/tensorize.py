"""Checks that the loops which an instruction is to do compute what it does, and brings them into its order."""

from __future__ import annotations

from dataclasses import dataclass, replace

from deepgen.generators.rules.intrinsics.dots import DOTS, Dot
from deepgen.generators.rules.lower.ir import For, Function, Stmt, Store, with_children
from deepgen.generators.rules.schedule.steps import SERIAL
from deepgen.operators.expr.index import Index, Iter, iterator
from deepgen.operators.expr.nodes import Binary, Cast, Read, Value
from deepgen.vocabulary import BadInput


def tensorize(function: Function) -> Function:
    return replace(function, body=_tensorized(function.body))


@dataclass(frozen=True)
class Operands:
    """Where a dot product's operands begin."""

    sums: Index
    left: Read
    right: Read


def operands(loop: For) -> Operands:
    """Of the loops of a dot product."""
    assert isinstance(loop.body, For) and isinstance(loop.body.body, Store)
    found = _matched(DOTS[loop.kind], loop, loop.body, loop.body.body)
    assert found is not None
    return found


def _tensorized(statement: Stmt) -> Stmt:
    if not isinstance(statement, For) or statement.kind not in DOTS:
        return with_children(statement, _tensorized)
    inner = statement.body
    if not isinstance(inner, For) or inner.kind != statement.kind or not isinstance(inner.body, Store):
        # What is left of the pair at an edge.
        return replace(statement, kind=SERIAL, body=_tensorized(inner))
    dot, store = DOTS[statement.kind], inner.body
    for lanes, depth in ((statement, inner), (inner, statement)):
        if _matched(dot, lanes, depth, store) is not None:
            return replace(lanes, body=replace(depth, body=store))
    raise BadInput(
        f"{dot.name} cannot do the loops {statement.variable} and {inner.variable}",
        allowed=f"{dot.lanes} sums of {dot.depth} products of {dot.left} and {dot.right}, both side by side along the "
        f"{dot.depth}, and the second along the {dot.lanes}",
    )


def _matched(dot: Dot, lanes: For, depth: For, store: Store) -> Operands | None:
    value = store.value
    if store.reduce != "sum" or not isinstance(value, Binary) or value.op != "mul" or value.dtype != dot.result:
        return None
    if (lanes.extent, depth.extent) != (dot.lanes, dot.depth) or lanes.limits or depth.limits:
        return None
    sums = _start(store.indices[0], lanes, 1, depth, 0)
    for one, other in ((value.left, value.right), (value.right, value.left)):
        left, right = _read(one, dot.left, lanes, 0, depth), _read(other, dot.right, lanes, dot.depth, depth)
        if sums is not None and left is not None and right is not None:
            return Operands(sums, left, right)
    return None


def _read(value: Value, dtype: str, lanes: For, step: int, depth: For) -> Read | None:
    read = value.value if isinstance(value, Cast) else value
    if not isinstance(read, Read) or read.dtype != dtype:
        return None
    start = _start(read.indices[0], lanes, step, depth, 1)
    return None if start is None else replace(read, indices=(start,))


def _start(offset: Index, lanes: For, along_lanes: int, depth: For, along_depth: int) -> Index | None:
    """An offset without the two loops, if it grows with them by these steps."""
    steps = dict(offset.terms)
    for loop, step in ((lanes, along_lanes), (depth, along_depth)):
        if steps.get(Iter(loop.variable), 0) != step:
            return None
        offset = offset - iterator(loop.variable) * step
    return None if offset.iterators & {lanes.variable, depth.variable} else offset
