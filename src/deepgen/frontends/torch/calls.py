"""Calls of torch's functions as operators: which product, softmax or normalisation a call computes, by its tensors.

Only shapes, strides and formats are looked at, so tensors without memory, as compilers trace with, serve as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from deepgen.frontends.torch import elements, products
from deepgen.frontends.torch.asked import FLOATS, Asked, Reads, asked, format_of, rows_of
from deepgen.operators import Operator, softmax
from deepgen.operators.expr.operator import ExpressionOperator
from deepgen.operators.named.base import operator as named


def softmax_of(x: Any, dim: int | None = None, *_: Any, dtype: Any = None, **__: Any) -> Asked | None:
    """Along the last dimension, in the format of x."""
    if dim is None or dim % max(1, x.dim()) != x.dim() - 1 or dtype not in (None, x.dtype):
        return None
    rows = rows_of(x)
    if rows is None or not rows.is_contiguous() or x.dtype not in FLOATS:
        return None
    return asked(lambda: softmax(*rows.shape, dtype=format_of(x)), (rows,), (0,), x.shape, x.dtype)


def layer_norm(
    x: Any, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Asked | None:
    """Of the last dimension, with weight and bias."""
    return None if bias is None else _normal("layer_norm", x, normalized_shape, (weight, bias), (0, 2, 3), eps)


def rms_norm(x: Any, normalized_shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Asked | None:
    """Of the last dimension, with a weight."""
    if eps is None and x.dtype in FLOATS:
        eps = torch.finfo(x.dtype).eps
    return _normal("rms_norm", x, normalized_shape, (weight,), (0, 2), eps)


# The functions that are looked at, by the names of deepgen's own operators.
KINDS: Mapping[str, Reads] = {
    **products.KINDS,
    "softmax": softmax_of,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    **elements.KINDS,
}


def kinds_of(operator: Operator) -> tuple[str, ...]:
    """The functions that an operator may serve."""
    if computed := products.kinds_of(operator):
        return computed
    if isinstance(operator, ExpressionOperator):
        return (operator.definition.name,) if elements.size_of(operator) else ()
    return (operator.name,) if operator.name in KINDS else ()


# The same as torch's dispatcher names them, which is what runs below autograd and what compilers see.
_ATEN = torch.ops.aten
ATEN: Mapping[Any, Reads] = {
    **products.ATEN,
    _ATEN._softmax.default: lambda x, dim, half: None if half else softmax_of(x, dim),
    _ATEN.softmax.int: softmax_of,
    _ATEN.native_layer_norm.default: layer_norm,
    _ATEN.layer_norm.default: lambda x, shape, weight=None, bias=None, eps=1e-5, *_: layer_norm(
        x, shape, weight, bias, eps
    ),
    **{
        op.default: rms_norm
        for op in (getattr(_ATEN, name, None) for name in ("rms_norm", "_fused_rms_norm"))
        if op is not None
    },
    **elements.ATEN,
}


def _normal(
    name: str, x: Any, shape: Sequence[int], vectors: tuple[Any, ...], places: tuple[int, ...], eps: float | None
) -> Asked | None:
    rows = rows_of(x)
    cols = x.shape[-1] if x.dim() else 0
    if rows is None or not rows.is_contiguous() or x.dtype not in FLOATS or [*shape] != [cols] or eps is None:
        return None
    if any(v is None or v.shape != (cols,) or v.stride(0) != 1 or v.dtype != x.dtype for v in vectors):
        return None
    make = partial(named, name, rows=rows.shape[0], cols=cols, dtype=format_of(x), eps=float(eps))
    return asked(make, (rows, *vectors), places, x.shape, x.dtype)
