"""Elementwise operators as expressions: sums, products, quotients, activations, and concatenation of two tensors.

torch is fast if all tensors are contiguous. For views (transposed, sliced, broadcast) it reaches a third of the memory
bandwidth; also for a scale of another dtype on the GPU. The expression of such a call has the axes of its result in
memory order, merged as far as possible. A view is read as one line of memory, from its first to its last element:
strides are part of the expression.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, TypeAlias

import torch

from deepgen.frontends.torch.products import FLOATS, Asked, Reads, asked, format_of
from deepgen.operators.expr.builder import compute, expression, tensor, where
from deepgen.operators.expr.elements import Element, Operand
from deepgen.operators.expr.operator import ExpressionOperator
from deepgen.operators.named import ACTIVATIONS

LEAST = 1 << 15  # elements: smaller calls are left to torch at once
LARGE = 1 << 20  # elements: smaller eager calls are limited by the CPU, not by the GPU

_ATEN = torch.ops.aten
_WIDE = {"f16": "f32", "bf16": "f32", "f32": "f32", "f64": "f64"}  # format of elements -> that of arithmetic
_BINARY: Mapping[str, Callable[[Element, Element], Element]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
}
_UNARY: Mapping[str, Callable[[Element], Element]] = {"neg": operator.neg, "silu": ACTIVATIONS["silu"]}
_NAMES = ("a", "b")

_Reads: TypeAlias = "Callable[[Sequence[Any]], Element]"  # reads an element at an index of the result


def _binary(kind: str, a: Any, b: Any, **named: Any) -> Asked | None:
    """A binary operator on two tensors of one format, or on a tensor and a scalar tensor, whose format may differ. The
    first one is as large as the result: calls are distinguished by its size.
    """
    if named.get("alpha", 1) != 1 or len(named) > ("alpha" in named) or not _large(a, b):
        return None
    operands = (a, b)
    result = _like(getattr(_ATEN, kind).Tensor, *operands)
    if result is None or result.numel() != a.numel() or result.dtype not in FLOATS:
        return None
    if any(one.dtype != result.dtype and not _is_number(one) for one in operands):
        return None
    narrow = format_of(result)

    def value(*elements: Element) -> Element:
        read = [
            element if _stays_wide(kind, place, one) else element.cast(narrow)
            for place, (element, one) in enumerate(zip(elements, operands, strict=True))
        ]
        left, right = (one.cast(_WIDE[narrow]) for one in read)
        return _BINARY[kind](left, right).cast(narrow)

    return _on_elements(kind, operands, result, value)


def _unary(kind: str, a: Any, *rest: Any, **named: Any) -> Asked | None:
    if rest or named or not _large(a) or a.dtype not in FLOATS:
        return None
    narrow = format_of(a)
    result = _like(getattr(_ATEN, kind).default, a)
    return _on_elements(kind, (a,), result, lambda one: _UNARY[kind](one.cast(_WIDE[narrow])).cast(narrow))


def cat(dim: int, a: Any, b: Any) -> Asked | None:
    """Concatenation of two tensors."""
    operands = (a, b)
    if not _large(a, b) or a.dtype != b.dtype or a.dtype not in FLOATS or a.dim() != b.dim() or not a.dim():
        return None
    result = _like(lambda *tensors: _ATEN.cat.default(tensors, dim), a, b)
    dim %= a.dim()
    first = a.shape[dim]
    if 0 in (first, b.shape[dim]):
        return None

    def value(at: Sequence[Any], read: Sequence[_Reads], along: int) -> Element:
        after = [place - first if n == along else place for n, place in enumerate(at)]
        return where(at[along] < first, read[0](at), read[1](after))

    expressed = _expressed("cat", operands, operands, result, value, dim)
    return expressed and replace(expressed, places=(1, 2))


KINDS: Mapping[str, Reads] = {
    **{kind: partial(_binary, kind) for kind in _BINARY},
    **{kind: partial(_unary, kind) for kind in _UNARY},
    "cat": cat,
}
TENSORS = {**dict.fromkeys(_UNARY, 1), **dict.fromkeys(_BINARY, 2), "cat": 2}  # number of tensors that each kind reads
ATEN: Mapping[Any, Reads] = {
    **{getattr(_ATEN, kind).Tensor: KINDS[kind] for kind in _BINARY},
    **{getattr(_ATEN, kind).default: KINDS[kind] for kind in _UNARY},
    _ATEN.cat.default: lambda tensors, dim=0: cat(dim, *tensors) if len(tensors) == 2 else None,
}


def size_of(operator: ExpressionOperator) -> int:
    """The number of elements in the result, for an operator of one of these kinds; otherwise 0."""
    spec = operator.definition
    return prod(spec.shape_of(spec.outputs[0])) if spec.name in KINDS else 0


def _on_elements(kind: str, operands: Sequence[Any], result: Any, value: Callable[..., Element]) -> Asked | None:
    """An elementwise operator: all tensors have the same axes, except those along which a tensor is broadcast."""
    if result is None:
        return None
    over = [one.expand(result.shape) for one in operands]
    return _expressed(kind, operands, over, result, lambda at, read, _: value(*(one(at) for one in read)))


def _expressed(
    kind: str,
    operands: Sequence[Any],
    over: Sequence[Any],
    result: Any,
    value: Callable[[Sequence[Any], Sequence[_Reads], int], Element],
    dim: int | None = None,
) -> Asked | None:
    """`over` are the tensors expanded to the dimensions of the result. `value` returns an element from its index, the
    readers of the tensors, and the axis of the dimension `dim`, which is never merged with others.
    """
    if result is None or not all(type(size) is int for size in result.shape):
        return None
    axes = _axes(result, over, dim)
    if axes is None:
        return None
    lines = tuple(one.as_strided((_span(one),), (1,)) for one in operands)

    def make() -> ExpressionOperator:
        read = [
            _reader(tensor(name, line.shape, format_of(line)), [along.strides[n] for along in axes])
            for n, (name, line) in enumerate(zip(_NAMES, lines, strict=False))
        ]
        alone = next((n for n, along in enumerate(axes) if along.dim == dim), -1)
        out = compute("out", [along.size for along in axes], lambda *at: value(at, read, alone))
        return ExpressionOperator(expression(out, name=kind))

    return asked(make, lines, tuple(range(len(lines))), result.shape, result.dtype, result.stride())


@dataclass(frozen=True)
class _Axis:
    """Dimensions that can be merged into one in all tensors; `dim` is the innermost of them."""

    size: int
    dim: int
    stride: int  # in the result
    strides: tuple[int, ...]  # in the others


def _axes(result: Any, over: Sequence[Any], alone: int | None) -> list[_Axis] | None:
    """The axes in the order of the result's memory; None if it has gaps."""
    dims = sorted((d for d in range(result.dim()) if result.shape[d] > 1), key=lambda d: -result.stride(d))
    axes: list[_Axis] = []
    for dim in dims:
        strides = tuple(one.stride(dim) if one.shape[dim] > 1 else 0 for one in over)
        axis = _Axis(result.shape[dim], dim, result.stride(dim), strides)
        last = axes[-1] if axes else None
        if last is not None and last.stride != axis.size * axis.stride:
            return None
        inner = tuple(axis.size * stride for stride in strides)
        if last is not None and alone not in (last.dim, dim) and last.strides == inner:
            axis = replace(axis, size=last.size * axis.size)
            axes.pop()
        axes.append(axis)
    return axes if axes and axes[-1].stride == 1 else None


def _reader(line: Operand, strides: Sequence[int]) -> _Reads:
    def read(at: Sequence[Any]) -> Element:
        place: Any = 0
        for one, stride in zip(at, strides, strict=True):
            place = one * stride + place if stride else place
        return line[place]

    return read


def _span(view: Any) -> int:
    """The number of elements in memory from the first one of a view to its last."""
    return int(1 + sum((size - 1) * stride for size, stride in zip(view.shape, view.stride(), strict=True)))


def _large(*tensors: Any) -> bool:
    return all(isinstance(one, torch.Tensor) for one in tensors) and max(one.numel() for one in tensors) >= LEAST


def _is_number(one: Any) -> bool:
    return one.dim() == 0 and one.dtype in FLOATS


def _stays_wide(kind: str, place: int, one: Any) -> bool:
    """Whether a scalar of another format is used without rounding it to the result's format first. torch rounds it,
    except for factors and divisors on CPUs.
    """
    return kind in ("mul", "div") and place == 1 and _is_number(one) and one.device.type == "cpu"


def _like(run: Callable[..., Any], *tensors: Any) -> Any:
    """A meta tensor like the result; None if torch rejects the call."""
    try:
        return run(*(torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="meta") for one in tensors))
    except RuntimeError:
        return None
