"""An expression as calls of torch or numpy, as a user with only that library would write it.

Each stage becomes a few calls on whole tensors, with one dimension for each axis of the stage. Formats are those of the
expression, except where torch converts internally: a single operation on 16-bit numbers is one call, and so is a sum of
them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from deepgen.baselines.base import NewResult
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
# Python operators, which accept numbers on either side.
_INFIX: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "pow": operator.pow,
    "lt": operator.lt, "le": operator.le, "eq": operator.eq, "ne": operator.ne, "and": operator.and_,
    "or": operator.or_,
}  # fmt: skip


class ArrayCalls:
    """Calls of numpy."""

    name = "numpy"
    lacks = frozenset({"bf16", "erf"})  # formats and functions
    array: Any = np.ndarray

    def function(self, op: str) -> Callable[[Any], Any]:
        called: dict[str, Callable[[Any], Any]] = {
            "neg": np.negative,
            "rsqrt": lambda x: 1 / np.sqrt(x),
            "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        }
        chosen: Callable[[Any], Any] = called.get(op) or getattr(np, op)
        return chosen

    def cast(self, x: Any, kind: str) -> Any:
        return x.astype(dtype(kind).numpy())

    def full(self, shape: Sequence[int], value: Any, kind: str) -> Any:
        return np.full(shape, value, dtype(kind).numpy())

    def places(self, extent: int) -> Any:
        return np.arange(extent)

    def expand(self, x: Any, shape: Sequence[int]) -> Any:
        return np.broadcast_to(x, shape)

    def permute(self, x: Any, order: Sequence[int]) -> Any:
        return x.transpose(order)

    def where(self, condition: Any, then: Any, otherwise: Any) -> Any:
        return np.where(condition, then, otherwise)

    def bounded(self, op: str, left: Any, right: Any) -> Any:
        return (np.maximum if op == "max" else np.minimum)(left, right)

    def sum(self, x: Any, along: tuple[int, ...], kind: str) -> Any:
        return np.sum(x, along, dtype=dtype(kind).numpy())

    def reduced(self, op: str, x: Any, along: tuple[int, ...]) -> Any:
        return np.prod(x, along[0]) if op == "prod" else getattr(np, f"a{op}")(x, along)

    def scanned(self, op: str, x: Any, at: int, kind: str) -> Any:
        if op in ("sum", "prod"):
            return getattr(np, f"cum{op}")(x, at, dtype=dtype(kind).numpy())
        return (np.maximum if op == "max" else np.minimum).accumulate(x, at)

    def product(self, left: Any, right: Any) -> Any:
        return np.matmul(left, right)

    def copy(self, to: Any, result: Any) -> None:
        np.copyto(to, result)


class TorchCalls(ArrayCalls):
    """Calls of torch, on the device of the tensors."""

    name = "torch"
    lacks = frozenset()

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch, self._device, self.array = torch, device, torch.Tensor

    def _kind(self, kind: str) -> Any:
        return getattr(self._torch, _FORMATS[kind])

    def function(self, op: str) -> Callable[[Any], Any]:
        chosen: Callable[[Any], Any] = getattr(self._torch, op)
        return chosen

    def cast(self, x: Any, kind: str) -> Any:
        return x.to(self._kind(kind))

    def full(self, shape: Sequence[int], value: Any, kind: str) -> Any:
        return self._torch.full(shape, value, dtype=self._kind(kind), device=self._device)

    def places(self, extent: int) -> Any:
        return self._torch.arange(extent, device=self._device)

    def expand(self, x: Any, shape: Sequence[int]) -> Any:
        return x.expand(shape)

    def permute(self, x: Any, order: Sequence[int]) -> Any:
        return x.permute(order)

    def where(self, condition: Any, then: Any, otherwise: Any) -> Any:
        return self._torch.where(condition, then, otherwise)

    def bounded(self, op: str, left: Any, right: Any) -> Any:
        torch, tensor = self._torch, self.array
        if isinstance(left, tensor) and isinstance(right, tensor):
            return torch.maximum(left, right) if op == "max" else torch.minimum(left, right)
        value, bound = (left, right) if isinstance(left, tensor) else (right, left)
        return torch.clamp(value, min=bound) if op == "max" else torch.clamp(value, max=bound)

    def sum(self, x: Any, along: tuple[int, ...], kind: str) -> Any:
        return self._torch.sum(x, along, dtype=self._kind(kind))

    def reduced(self, op: str, x: Any, along: tuple[int, ...]) -> Any:
        return self._torch.prod(x, along[0]) if op == "prod" else getattr(self._torch, f"a{op}")(x, along)

    def scanned(self, op: str, x: Any, at: int, kind: str) -> Any:
        run = getattr(self._torch, f"cum{op}")
        return run(x, at, dtype=self._kind(kind)) if op in ("sum", "prod") else run(x, at).values

    def product(self, left: Any, right: Any) -> Any:
        return self._torch.matmul(left, right)

    def copy(self, to: Any, result: Any) -> None:
        to.copy_(result)


def unfit(expression: Expression, calls: type[ArrayCalls] = TorchCalls) -> str | None:
    """Why the expression is not a few calls of that library; None if it is."""
    formats = {*(tensor.dtype for tensor in expression.tensors), *(stage.dtype for stage in expression.stages)}
    if not formats <= {*_FORMATS} - calls.lacks:
        return f"{calls.name} does not support all formats of {expression.name}"
    used = {one.op for stage in expression.stages for one in walk(stage.value) if isinstance(one, Unary)}
    if lacking := sorted(used & calls.lacks):
        return f"{calls.name} has no {lacking[0]}"
    return next((why for stage in expression.stages if (why := _unfit(stage, calls.name))), None)


def _unfit(stage: Stage, name: str) -> str | None:
    places = [tuple(index.plain for index in read.indices) for read in reads(stage.value)]
    places += [(one.index.plain,) for one in walk(stage.value) if isinstance(one, Place)]
    if any(None in at or len({*at}) < len(at) for at in places):
        return f"{name} cannot express the indices of {stage.name} in a few calls"
    axes = {axis.name for axis in (*stage.axes, *stage.reduced)}
    if stage.reduce and not stage.scan and axes not in [{*at} for at in places] and _product(stage) is None:
        # A library would store all of these products in memory.
        return f"{stage.name} sums products of elements that are read more than once"
    if stage.reduce == "prod" and len(stage.reduced) > 1:
        return f"{name} multiplies along one axis at a time, not as {stage.name} does"
    return None


def _product(stage: Stage) -> tuple[Read, Read] | None:
    """The factors of a stage that is a matrix product or a batch of them. Only in formats that BLAS supports: in others
    libraries have kernels with their own accumulation and result formats.
    """
    value = stage.value
    if stage.reduce != "sum" or stage.scan or not isinstance(value, Binary) or value.op != "mul":
        return None
    left, right = value.left, value.right
    if not (isinstance(left, Read) and isinstance(right, Read)) or stage.dtype not in ("f32", "f64"):
        return None
    of_left, of_right = ({index.plain for index in read.indices} for read in (left, right))
    reduced, kept = {axis.name for axis in stage.reduced}, {axis.name for axis in stage.axes}
    whole = reduced <= of_left & of_right and kept <= of_left | of_right
    return (left, right) if whole and not kept <= of_left & of_right else None


def call_of(calls: ArrayCalls, expression: Expression, tensors: Mapping[str, Any]) -> NewResult:
    """A call that computes all outputs; `keep` copies them into their tensors."""

    def run() -> list[Any]:
        values = {one.name: tensors[one.name] for one in expression.tensors}
        for stage in expression.stages:
            values[stage.name] = _Evaluated(calls, stage, values).result()
        return [values[name] for name in expression.outputs]

    def keep(results: Sequence[Any]) -> None:
        for name, result in zip(expression.outputs, results, strict=True):
            calls.copy(tensors[name], result)

    return NewResult(run, keep)


def of_torch(torch: Any, expression: Expression, tensors: Mapping[str, Any]) -> NewResult:
    return call_of(TorchCalls(torch, next(iter(tensors.values())).device), expression, tensors)


class _Evaluated:
    """Evaluates one stage from the given tensors and earlier stages."""

    def __init__(self, calls: ArrayCalls, stage: Stage, values: Mapping[str, Any]) -> None:
        self._calls, self._stage, self._values = calls, stage, values
        self._extents = {axis.name: axis.extent for axis in (*stage.axes, *stage.reduced)}
        self._axes = list(self._extents)

    def result(self) -> Any:
        calls, stage = self._calls, self._stage
        if stage.reduce is None:
            return self._whole(_native(stage.value) if calls.name == "torch" else stage.value)
        if stage.scan:
            value, at = self._whole(stage.value), self._axes.index(stage.scan)
            return calls.scanned(stage.reduce, value, at, stage.dtype)
        if (factors := _product(stage)) is not None:
            return self._multiplied(*factors)
        along = tuple(range(len(stage.axes), len(self._axes)))
        if stage.reduce == "sum":
            inner = stage.value.value if isinstance(stage.value, Cast) else stage.value
            return calls.sum(self._whole(inner), along, stage.dtype)
        return calls.reduced(stage.reduce, self._whole(stage.value), along)

    def _multiplied(self, left: Read, right: Read) -> Any:
        """The stage as a batched matrix product: axes of both factors, of the left one, of the right one."""
        calls, kept = self._calls, [axis.name for axis in self._stage.axes]
        of_left, of_right = ([index.plain for index in read.indices] for read in (left, right))
        batch = [name for name in kept if name in of_left and name in of_right]
        rows, columns = ([name for name in kept if name in of and name not in batch] for of in (of_left, of_right))
        sums = [axis.name for axis in self._stage.reduced]

        def matrix(read: Read, of: Sequence[str | None], order: Sequence[Sequence[str]]) -> Any:
            places = [of.index(name) for names in order for name in names]
            shape = [prod(self._extents[name] for name in names) for names in order]
            return calls.permute(self._values[read.tensor], places).reshape(shape)

        factors = matrix(left, of_left, [batch, rows, sums]), matrix(right, of_right, [batch, sums, columns])
        product = calls.product(*factors)
        order = [*batch, *rows, *columns]
        apart = product.reshape([self._extents[name] for name in order])
        return calls.permute(apart, [order.index(name) for name in kept])

    def _whole(self, value: Value) -> Any:
        """The value with all of its elements: a constant by itself has no axes and no tensor."""
        result = self._of(value)
        if not isinstance(result, self._calls.array):
            result = self._calls.full([1] * len(self._axes), result, value.dtype)
        return self._calls.expand(result, list(self._extents.values()))

    def _of(self, value: Value) -> Any:
        """The value, with size 1 along axes that it does not depend on; a constant is a number."""
        if isinstance(value, Const):
            return value.value
        if isinstance(value, Read):
            return self._spread(self._values[value.tensor], [index.plain for index in value.indices])
        if isinstance(value, Place):
            name = value.index.plain
            return self._spread(self._calls.places(self._extents[name or ""]), [name])
        if isinstance(value, Cast):
            inner = self._of(value.value)
            return self._calls.cast(inner, value.dtype) if isinstance(inner, self._calls.array) else inner
        return self._applied(value, [self._of(child) for child in children(value)])

    def _applied(self, value: Value, parts: Sequence[Any]) -> Any:
        if isinstance(value, Select):
            return self._calls.where(*parts)
        if isinstance(value, Unary):
            return self._calls.function(value.op)(parts[0])
        assert isinstance(value, (Binary, Compare, Logic))
        if value.op in ("max", "min"):
            return self._calls.bounded(value.op, *parts)
        if value.op == "div" and dtype(value.dtype).integer:
            return parts[0] // parts[1]
        return _INFIX[value.op](*parts)

    def _spread(self, tensor: Any, names: Sequence[str | None]) -> Any:
        order = sorted(range(len(names)), key=lambda n: self._axes.index(names[n] or ""))
        shape = [e if name in names else 1 for name, e in self._extents.items()]
        return self._calls.permute(tensor, order).reshape(shape)


def _native(value: Value) -> Value:
    """A single operation on numbers of the result's format, without the casts that torch performs internally."""
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
