"""Widen-in-Steps: bytes whose products are summed up in 32 bits are kept in 16 bits before they are multiplied.

Processors multiply numbers of 16 bits into 32 in one step; numbers of 32 bits take twice as long, and twice the memory.
"""

from __future__ import annotations

from dataclasses import replace

from deepgen.operators.expr.nodes import Binary, Cast, Expression, Stage, Value

_SMALL, _BETWEEN, _WIDE = ("i8", "u8"), "i16", "i32"


def with_steps(expression: Expression) -> Expression:
    """The expression with another cast in between, where no instruction adds up products of bytes."""
    return replace(expression, stages=tuple(map(_stage, expression.stages)))


def _stage(stage: Stage) -> Stage:
    value = stage.value
    if stage.reduce != "sum" or not isinstance(value, Binary) or value.op != "mul":
        return stage
    left, right = _in_between(value.left), _in_between(value.right)
    return stage if left is None or right is None else replace(stage, value=replace(value, left=left, right=right))


def _in_between(value: Value) -> Value | None:
    if not isinstance(value, Cast) or value.dtype != _WIDE or value.value.dtype not in _SMALL:
        return None
    return Cast(Cast(value.value, _BETWEEN), _WIDE)
