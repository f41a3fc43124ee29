"""Expressions as text for people: one line for the tensors, one for each stage."""

from __future__ import annotations

from collections.abc import Iterable

from deepgen.operators.expr.nodes import (
    Axis,
    Binary,
    Cast,
    Compare,
    Const,
    Expression,
    Logic,
    Place,
    Read,
    Select,
    Stage,
    TensorSpec,
    Unary,
    Value,
)

# Signs and how tightly they bind; what has none is written as a call.
_SIGNS = {
    "or": ("or", 1), "and": ("and", 2), "lt": ("<", 3), "le": ("<=", 3), "eq": ("==", 3), "ne": ("!=", 3),
    "add": ("+", 5), "sub": ("-", 5), "mul": ("*", 6), "div": ("/", 6), "pow": ("**", 8),
}  # fmt: skip
_SUM, _ALONE = 5, 9


def text(expression: Expression) -> str:
    given = ", ".join(map(_tensor, expression.tensors))
    head = f"{expression.name}({given}) -> {', '.join(expression.outputs)}"
    return "\n".join([head, *(f"    {stage_text(stage)}" for stage in expression.stages)])


def stage_text(stage: Stage) -> str:
    over = f"{stage.reduce}[{_axes(stage.reduced)}] " if stage.reduced else ""
    along = f"scan {stage.reduce}[{stage.scan}] " if stage.scan is not None else ""
    return f"{stage.name}[{_axes(stage.axes)}]: {stage.dtype} = {over}{along}{value_text(stage.value)}"


def value_text(value: Value) -> str:
    return _written(value)[0]


def _tensor(tensor: TensorSpec) -> str:
    return f"{tensor.name}: {tensor.dtype}[{', '.join(map(str, tensor.shape))}]"


def _axes(axes: Iterable[Axis]) -> str:
    return ", ".join(f"{axis.name} < {axis.extent}" for axis in axes)


def _written(value: Value) -> tuple[str, int]:
    """The text, and how tightly its outermost sign binds."""
    if isinstance(value, Const):
        told = repr(value.value)
        return told, _SUM if told.startswith("-") else _ALONE
    if isinstance(value, Place):
        return str(value.index), _ALONE if len(value.index.terms) <= 1 and not value.index.constant else _SUM
    if isinstance(value, Read):
        return f"{value.tensor}[{', '.join(map(str, value.indices))}]", _ALONE
    if isinstance(value, Cast):
        return f"{value.dtype}({_written(value.value)[0]})", _ALONE
    if isinstance(value, Unary):
        return f"{value.op}({_written(value.value)[0]})", _ALONE
    if isinstance(value, Select):
        parts = (value.condition, value.then, value.otherwise)
        return f"where({', '.join(_written(part)[0] for part in parts)})", _ALONE
    assert isinstance(value, (Binary, Compare, Logic))
    if value.op not in _SIGNS:
        return f"{value.op}({_written(value.left)[0]}, {_written(value.right)[0]})", _ALONE
    sign, tight = _SIGNS[value.op]
    return f"{_within(value.left, tight)} {sign} {_within(value.right, tight + 1)}", tight


def _within(value: Value, tight: int) -> str:
    told, own = _written(value)
    return told if own >= tight else f"({told})"
