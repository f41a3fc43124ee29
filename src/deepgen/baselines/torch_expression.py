"""An expression as calls of torch: what somebody would write who has torch alone.

Each stage is a few calls on whole tensors, with a dimension for every axis of the stage. Formats are those of the
expression, but where torch widens by itself: one operation on 16-bit numbers, and a sum of them, are one call each.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from deepgen.operators.expr.nodes import (
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
    Unary,
    Value,
    children,
    reads,
    walk,
)
from deepgen.vocabulary import dtype

_FORMATS = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i8": "int8", "u8": "uint8",
    "i32": "int32", "i64": "int64",
}  # fmt: skip
# Operators of Python, as they take numbers on either side.
_INFIX: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "pow": operator.pow,
    "lt": operator.lt, "le": operator.le, "eq": operator.eq, "ne": operator.ne, "and": operator.and_,
    "or": operator.or_,
}  # fmt: skip


def unfit(expression: Expression) -> str | None:
    """Why it is no few calls of torch; None where it is."""
    formats = {*(tensor.dtype for tensor in expression.tensors), *(stage.dtype for stage in expression.stages)}
    if not formats <= {*_FORMATS}:
        return f"torch has not all formats of {expression.name}"
    return next((why for stage in expression.stages if (why := _unfit(stage))), None)


def _unfit(stage: Stage) -> str | None:
    places = [tuple(index.plain for index in read.indices) for read in reads(stage.value)]
    places += [(one.index.plain,) for one in walk(stage.value) if isinstance(one, Place)]
    if any(None in at or len({*at}) < len(at) for at in places):
        return f"torch has no few calls for the places that {stage.name} is of"
    axes = {axis.name for axis in (*stage.axes, *stage.reduced)}
    if stage.reduce and not stage.scan and axes not in [{*at} for at in places]:
        return f"{stage.name} adds up products of what is read several times"  # torch would store all of these
    if stage.reduce == "prod" and len(stage.reduced) > 1:
        return f"torch multiplies along one axis at a time, not as {stage.name} does"
    return None


def call_of(torch: Any, expression: Expression, tensors: Mapping[str, Any]) -> Callable[[], None]:
    """Computes all outputs, each into its tensor."""

    def run() -> None:
        values = {one.name: tensors[one.name] for one in expression.tensors}
        for stage in expression.stages:
            values[stage.name] = _Evaluated(torch, stage, values).result()
        for name in expression.outputs:
            tensors[name].copy_(values[name])

    return run


class _Evaluated:
    """A stage of these tensors and stages."""

    def __init__(self, torch: Any, stage: Stage, values: Mapping[str, Any]) -> None:
        self._torch, self._stage, self._values = torch, stage, values
        self._extents = {axis.name: axis.extent for axis in (*stage.axes, *stage.reduced)}
        self._axes = list(self._extents)

    def result(self) -> Any:
        torch, stage = self._torch, self._stage
        kind = getattr(torch, _FORMATS[stage.dtype])
        if stage.reduce is None:
            return self._whole(_native(stage.value))
        if stage.scan:
            run, value, at = (
                getattr(torch, f"cum{stage.reduce}"),
                self._whole(stage.value),
                self._axes.index(stage.scan),
            )
            return run(value, at, dtype=kind) if stage.reduce in ("sum", "prod") else run(value, at).values
        along = tuple(range(len(stage.axes), len(self._axes)))
        if stage.reduce == "sum":
            inner = stage.value.value if isinstance(stage.value, Cast) else stage.value
            return torch.sum(self._whole(inner), along, dtype=kind)
        if stage.reduce == "prod":
            return torch.prod(self._whole(stage.value), along[0])
        return getattr(torch, f"a{stage.reduce}")(self._whole(stage.value), along)

    def _whole(self, value: Value) -> Any:
        """All of its elements: a constant alone depends on no axis, and has no tensor."""
        result = self._of(value)
        if not isinstance(result, self._torch.Tensor):
            kind, device = getattr(self._torch, _FORMATS[value.dtype]), next(iter(self._values.values())).device
            result = self._torch.full([1] * len(self._axes), result, dtype=kind, device=device)
        return result.expand(list(self._extents.values()))

    def _of(self, value: Value) -> Any:
        """With one element along axes that it does not depend on; a constant is a number."""
        torch = self._torch
        if isinstance(value, Const):
            return value.value
        if isinstance(value, Read):
            return self._spread(self._values[value.tensor], [index.plain for index in value.indices])
        if isinstance(value, Place):
            name = value.index.plain
            device = next(iter(self._values.values())).device
            return self._spread(torch.arange(self._extents[name or ""], device=device), [name])
        if isinstance(value, Cast):
            inner = self._of(value.value)
            return inner.to(getattr(torch, _FORMATS[value.dtype])) if isinstance(inner, torch.Tensor) else inner
        return self._applied(value, [self._of(child) for child in children(value)])

    def _applied(self, value: Value, parts: Sequence[Any]) -> Any:
        torch = self._torch
        if isinstance(value, Select):
            return torch.where(*parts)
        if isinstance(value, Unary):
            return getattr(torch, value.op)(parts[0])
        assert isinstance(value, (Binary, Compare, Logic))
        if value.op in ("max", "min"):
            return self._bounded(value.op, *parts)
        if value.op == "div" and dtype(value.dtype).integer:
            return parts[0] // parts[1]
        return _INFIX[value.op](*parts)

    def _bounded(self, op: str, left: Any, right: Any) -> Any:
        tensor = self._torch.Tensor
        if isinstance(left, tensor) and isinstance(right, tensor):
            return self._torch.maximum(left, right) if op == "max" else self._torch.minimum(left, right)
        value, bound = (left, right) if isinstance(left, tensor) else (right, left)
        return self._torch.clamp(value, min=bound) if op == "max" else self._torch.clamp(value, max=bound)

    def _spread(self, tensor: Any, names: Sequence[str | None]) -> Any:
        order = sorted(range(len(names)), key=lambda n: self._axes.index(names[n] or ""))
        return tensor.permute(order).reshape([e if name in names else 1 for name, e in self._extents.items()])


def _native(value: Value) -> Value:
    """One operation on numbers of the result's format, without the casts that torch does by itself."""
    if not (isinstance(value, Cast) and isinstance(value.value, (Unary, Binary))):
        return value
    operation = value.value
    parts = [part.value if isinstance(part, Cast) else part for part in children(operation)]
    if any(not isinstance(part, (Const, Read)) for part in parts):
        return value
    if any(isinstance(part, Read) and part.dtype != value.dtype for part in parts):
        return value
    if isinstance(operation, Unary):
        return replace(operation, value=parts[0])
    return replace(operation, left=parts[0], right=parts[1])
