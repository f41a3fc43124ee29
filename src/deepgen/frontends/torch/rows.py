"""torch's elementwise operations, reductions and normalisations as expressions, below autograd."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf, prod
from typing import Any

import torch

from deepgen.frontends.torch.lazy import (
    Lazy,
    Places,
    along_one,
    constant,
    dims_of,
    mapped,
    only,
    reduced,
    scanned,
    stored,
    unsqueezed,
    viewed,
)
from deepgen.operators.expr import builder as dg
from deepgen.operators.expr.elements import Element, number
from deepgen.operators.named import ACTIVATIONS
from deepgen.vocabulary import BadInput


def _log1p(x: Element) -> Element:
    series = x * (1 - x * (0.5 - x * (1 / 3 - x * (0.25 - x * 0.2))))
    return dg.where(abs(x) < 1 / 32, series, dg.log(x + 1.0))


def _expm1(x: Element) -> Element:
    """Accurate for small x, for which exp(x) - 1 would be rounded to 0."""
    return dg.where(x < 0.5, _below(dg.minimum(x, 1.0)), dg.exp(x) - 1.0)


def _below(x: Element) -> Element:
    """exp(x) - 1 for x that is at most slightly above 0."""
    return dg.tanh(x * 0.5) * 2.0 / (1.0 - dg.tanh(x * 0.5))


def _gelu(x: Lazy, approximate: str = "none") -> Lazy:
    return _unary(ACTIVATIONS["gelu" if approximate == "none" else "gelu_tanh"], x)


# Without selecting between expensive values: threads would load their elements one by one.


def _elu(x: Lazy, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Lazy:
    def element(one: Element) -> Element:
        below = _below(dg.minimum(one, 0) * float(input_scale)) * float(alpha * scale)
        return dg.maximum(one, 0) * float(scale) + below

    return _unary(element, x)


def _softplus(x: Lazy, beta: float = 1, threshold: float = 20) -> Lazy:
    """Above the threshold, if it is at least 20, what is added to x is less than a rounding error."""

    def element(one: Element) -> Element:
        scaled = one * float(beta) if beta != 1 else one
        value = dg.maximum(scaled, 0) + dg.log(dg.exp(-abs(scaled)) + 1.0)
        value = value / float(beta) if beta != 1 else value
        return value if threshold >= 20 else dg.where(scaled > float(threshold), one, value)

    return _unary(element, x)


def _clamp(x: Any, low: Any = None, high: Any = None) -> Lazy:
    value = x
    if low is not None:
        value = binary(dg.maximum, value, low)
    return value if high is None else binary(dg.minimum, value, high)


def _unary(function: Callable[[Element], Element], x: Lazy, *_: Any) -> Lazy:
    kind = x.kind if x.kind.is_floating_point else torch.get_default_dtype()
    return mapped(function, kind, x.as_kind(kind))


def kept(function: Callable[[Element], Element], x: Lazy) -> Lazy:
    """Apply a function in the format of x, including integers."""
    return mapped(function, x.kind, x)


def _lazy(value: Any, kind: Any) -> Lazy:
    return value if isinstance(value, Lazy) else constant(value, kind)


def _common(*values: Any) -> Any:
    """torch's result type for tensors and numbers."""
    stand_ins = [
        torch.empty((1,) * len(v.dims), dtype=v.kind, device="meta") if isinstance(v, Lazy) else v for v in values
    ]
    return torch.result_type(*stand_ins)


def binary(function: Callable[[Any, Any], Element], a: Any, b: Any, *, alpha: Any = 1, to: Any = None) -> Lazy:
    kind = _common(a, b)
    if to == "float" and not kind.is_floating_point:
        kind = torch.get_default_dtype()
    left, right = (_lazy(one, kind).as_kind(kind) for one in (a, b))
    if alpha != 1:
        right = mapped(lambda one: one * alpha, kind, right)
    return mapped(function, torch.bool if to == "bool" else kind, left, right)


def _mul(a: Any, b: Any) -> Lazy:
    value, factor = (b, a) if isinstance(b, Lazy) else (a, b)
    out = binary(operator.mul, a, b)
    if isinstance(factor, Lazy) or not value.kind.is_floating_point:
        return out
    base, before = value.scaled or (value, 1.0)
    return replace(out, scaled=(base, before * float(factor)))


def _div(a: Any, b: Any, rounding_mode: str | None = None) -> Lazy:
    if rounding_mode == "floor" and not _common(a, b).is_floating_point:
        return binary(operator.floordiv, a, b)
    if rounding_mode is not None:
        quotient = binary(operator.truediv, a, b, to="float")
        if rounding_mode != "floor":
            raise BadInput(f"a division with rounding_mode={rounding_mode!r}", allowed="'floor', or None")
        return kept(dg.floor, quotient)
    return binary(operator.truediv, a, b, to="float")


def _pow(x: Any, exponent: Any) -> Lazy:
    whole = int(exponent) if not isinstance(exponent, Lazy) and exponent in (2, 3) else exponent
    if isinstance(x, Lazy) and type(whole) is int:
        return mapped(lambda one: one**whole, x.kind, x)
    if exponent == 0.5:
        return _unary(dg.sqrt, x)
    return binary(operator.pow, x, exponent, to="float")


def _where(condition: Lazy, a: Any, b: Any) -> Lazy:
    kind = _common(a, b)
    chosen = (_lazy(one, kind).as_kind(kind) for one in (a, b))
    return mapped(dg.where, kind, condition, *chosen)


def _logic(op: str, a: Lazy, b: Lazy) -> Lazy:
    sides = (one.as_kind(torch.bool) for one in (a, b))
    return mapped(operator.and_ if op == "and" else operator.or_, torch.bool, *sides)


def _not(x: Lazy) -> Lazy:
    return mapped(lambda one: dg.where(one, number(1, "i32"), 0) == 0, torch.bool, x.as_kind(torch.bool))


def _xlogy(x: Any, y: Any) -> Lazy:
    return binary(lambda a, b: dg.where(a == 0, 0.0, a * dg.log(b)), x, y, to="float")


# Reductions. Dimensions are given as a number, a list, or None for all.


def _count(x: Lazy, over: Sequence[int]) -> int:
    return prod(x.shape[dim] for dim in over)


def _sum(x: Lazy, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Lazy:
    kind = dtype or (x.kind if x.kind.is_floating_point else torch.int64)
    return reduced(dg.sum, x.as_kind(kind), dims_of(x, dim), keep=keepdim)


def _mean(x: Lazy, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Lazy:
    over = dims_of(x, dim)
    return kept(lambda one: one / float(_count(x, over)), _sum(x, dim, keepdim, dtype=dtype))


def _extreme(function: Any, x: Lazy, dim: Any = None, keepdim: bool = False) -> Lazy:
    return reduced(function, x, dims_of(x, dim), keep=keepdim)


def _place_of(function: Any, x: Lazy, dim: Any = None, keepdim: bool = False) -> Lazy:
    """The index of the first occurrence of the extreme."""
    if dim is None:
        return _place_of(function, viewed(x, (prod(x.shape),)), 0)
    along = dims_of(x, dim)[0]
    size = x.shape[along]
    whole = along_one(x, along)
    best = reduced(function, whole, [along], keep=True)

    def index(at: Places) -> Element:
        here = only(at[along])
        return dg.where(whole.read(at) == best.at(whole.dims, at), here.cast("i64"), size - 1)

    return reduced(dg.min, Lazy(whole.dims, torch.int64, index), [along], keep=keepdim)


def _extreme_along(function: Any, x: Lazy, dim: int, keepdim: bool = False) -> tuple[Lazy, Lazy]:
    return _extreme(function, x, dim, keepdim), _place_of(function, x, dim, keepdim)


def _norm(x: Lazy, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Lazy:
    x = x.as_kind(dtype) if dtype is not None else x
    if ord == 2:
        return kept(dg.sqrt, _sum(kept(lambda one: one * one, x), dim, keepdim))
    size = kept(abs, x)
    if ord == 1:
        return _sum(size, dim, keepdim)
    if ord in (inf, -inf):
        return _extreme(dg.max if ord > 0 else dg.min, size, dim, keepdim)
    powers = _sum(kept(lambda one: one ** float(ord), size), dim, keepdim)
    return kept(lambda one: one ** (1 / float(ord)), powers)


def _any(x: Lazy, dim: Any = None, keepdim: bool = False) -> Lazy:
    return _extreme(dg.max, x.as_kind(torch.bool).as_kind(torch.int32), dim, keepdim).as_kind(torch.bool)


def _moments(x: Lazy, over: Sequence[int]) -> tuple[Lazy, Lazy]:
    """The mean, and the mean squared deviation, along dimensions that are kept."""
    mean = stored(_mean(x, [*over], True))
    away = binary(operator.sub, x, mean)
    return mean, _mean(kept(lambda one: one * one, away), [*over], True)


def _var(x: Lazy, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Lazy:
    return _var_mean(x, dim, correction=correction, keepdim=keepdim)[0]


def _var_mean(x: Lazy, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> tuple[Lazy, Lazy]:
    over = dims_of(x, dim)
    mean, variance = _moments(x, over)
    count = _count(x, over)
    if correction:
        variance = kept(lambda one: one * (count / (count - float(correction))), variance)
    if keepdim:
        return variance, mean
    rest = tuple(size for n, size in enumerate(x.shape) if n not in over)
    return viewed(variance, rest), viewed(mean, rest)


def _normalized(
    x: Lazy, over: Sequence[int], eps: float, weight: Lazy | None, bias: Lazy | None
) -> tuple[Lazy, Lazy, Lazy]:
    """Normalisation with weight and bias that are broadcast to x."""
    mean, variance = _moments(x, over)
    scale = stored(kept(lambda one: dg.rsqrt(one + float(eps)), variance))
    out = binary(operator.mul, binary(operator.sub, x, mean), scale)
    return affine(out, weight, bias), mean, scale


def affine(x: Lazy, weight: Lazy | None, bias: Lazy | None) -> Lazy:
    scaled = x if weight is None else binary(operator.mul, x, weight)
    return scaled if bias is None else binary(operator.add, scaled, bias)


def per_channel(vector: Lazy | None, rank: int) -> Lazy | None:
    return None if vector is None else unsqueezed(vector, range(1, rank - 1))


def _layer_norm(x: Lazy, shape: Sequence[int], weight: Lazy | None, bias: Lazy | None, eps: float) -> tuple[Lazy, ...]:
    rank = len(x.dims)
    return _normalized(x, range(rank - len(shape), rank), eps, weight, bias)


def _rms_norm(x: Lazy, shape: Sequence[int], weight: Lazy | None = None, eps: float | None = None) -> Lazy:
    over = [*range(len(x.dims) - len(shape), len(x.dims))]
    small = torch.finfo(x.kind).eps if eps is None else eps
    squares = _mean(kept(lambda one: one * one, x), over, True)
    scale = stored(kept(lambda one: dg.rsqrt(one + float(small)), squares))
    return affine(binary(operator.mul, x, scale), weight, None)


def _batch_norm(
    x: Lazy, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, _: float, eps: float
) -> tuple[Lazy, ...]:
    """Batch norm without updating the running statistics that the module keeps."""
    rank = len(x.dims)
    weight, bias = per_channel(weight, rank), per_channel(bias, rank)
    if training:
        return _normalized(x, [0, *range(2, rank)], eps, weight, bias)
    center, spread = per_channel(mean, rank), per_channel(variance, rank)
    assert center is not None and spread is not None
    scale = kept(lambda one: dg.rsqrt(one + float(eps)), spread)
    out = affine(binary(operator.mul, binary(operator.sub, x, center), scale), weight, bias)
    return out, mean, variance


def _group_norm(x: Lazy, weight: Any, bias: Any, n: int, c: int, _: int, groups: int, eps: float) -> tuple[Lazy, ...]:
    rank = len(x.dims)
    split = viewed(x, (n, groups, c // groups, *x.shape[2:]))
    out, mean, scale = _normalized(split, range(2, rank + 1), eps, None, None)
    whole = affine(viewed(out, x.shape), per_channel(weight, rank), per_channel(bias, rank))
    return whole, viewed(mean, (n, groups)), viewed(scale, (n, groups))


def _softmax(x: Lazy, dim: int, *_: Any, safe: bool = False, log: bool = False, **__: Any) -> Lazy:
    over = dims_of(x, dim)
    largest = reduced(dg.max, x, over, keep=True)
    away = binary(operator.sub, x, largest)
    powers = kept(dg.exp, away)
    total = _sum(powers, over, True)
    if log:
        return binary(operator.sub, away, stored(kept(dg.log, total)))
    # The total is between 1 and the number of elements: its inverse is as accurate, and saves divisions.
    share = binary(operator.mul, powers, kept(lambda one: 1 / one, total))
    if not safe:
        return share
    return _where(binary(operator.lt, constant(-inf, x.kind), largest, to="bool"), share, 0.0)


_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")
}
_ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "maximum": dg.maximum, "minimum": dg.minimum,
}  # fmt: skip
_FUNCTIONS: Mapping[str, Callable[[Element], Element]] = {
    **{name: getattr(dg, name) for name in ("exp", "log", "sqrt", "rsqrt", "tanh", "erf", "sigmoid", "sin", "cos")},
    "silu": ACTIVATIONS["silu"],
    "log1p": _log1p,
    "expm1": _expm1,
    "reciprocal": lambda x: 1.0 / x,
    "floor": dg.floor,
}
# By torch's names.
OPERATIONS: Mapping[str, Callable[..., Any]] = {
    **{name: partial(_unary, function) for name, function in _FUNCTIONS.items()},
    **{name: partial(binary, function) for name, function in _ARITHMETIC.items()},
    **{name: partial(binary, function, to="bool") for name, function in _COMPARE.items()},
    "isnan": lambda x: binary(operator.ne, x, x, to="bool"),
    "rsub": lambda a, b, alpha=1: binary(operator.sub, b, a, alpha=alpha),
    "neg": partial(kept, operator.neg),
    "abs": partial(kept, abs),
    "square": partial(kept, lambda x: x * x),
    "relu": partial(kept, lambda x: dg.maximum(x, 0)),
    "leaky_relu": lambda x, slope=0.01: kept(lambda one: dg.where(one > 0, one, one * float(slope)), x),
    "hardtanh": lambda x, low=-1.0, high=1.0: _clamp(x, low, high),
    "clamp_min": _clamp,
    "clamp_max": lambda x, high: _clamp(x, None, high),
    "gelu": _gelu,
    "elu": _elu,
    "softplus": _softplus,
    "clamp": _clamp,
    "mul": _mul,
    "div": _div,
    "true_divide": _div,
    "pow": _pow,
    "where": _where,
    "logical_and": partial(_logic, "and"),
    "logical_or": partial(_logic, "or"),
    "bitwise_and": partial(_logic, "and"),
    "bitwise_or": partial(_logic, "or"),
    "logical_not": _not,
    "bitwise_not": _not,
    "xlogy": _xlogy,
    "sum": _sum,
    "mean": _mean,
    "prod": lambda x, dim=None, keepdim=False, **_: _extreme(dg.prod, x, dim, keepdim),
    "amax": partial(_extreme, dg.max),
    "amin": partial(_extreme, dg.min),
    "max": lambda x, *dim: _extreme_along(dg.max, x, *dim) if dim else _extreme(dg.max, x),
    "min": lambda x, *dim: _extreme_along(dg.min, x, *dim) if dim else _extreme(dg.min, x),
    "argmax": partial(_place_of, dg.max),
    "argmin": partial(_place_of, dg.min),
    "any": _any,
    "linalg_vector_norm": _norm,
    "var": _var,
    "var_mean": _var_mean,
    "native_layer_norm": _layer_norm,
    "_fused_rms_norm": lambda *args: (_rms_norm(*args), None),
    "rms_norm": _rms_norm,
    "native_batch_norm": _batch_norm,
    "_native_batch_norm_legit": _batch_norm,
    "_native_batch_norm_legit_no_training": lambda x, w, b, m, v, rate, eps: _batch_norm(
        x, w, b, m, v, False, rate, eps
    ),
    "native_group_norm": _group_norm,
    "_softmax": _softmax,
    "_safe_softmax": partial(_softmax, safe=True),
    "_log_softmax": partial(_softmax, log=True),
    "cumsum": lambda x, dim, dtype=None: scanned("sum", x.as_kind(dtype or x.kind), dims_of(x, dim)[0]),
    "cumprod": lambda x, dim, dtype=None: scanned("prod", x.as_kind(dtype or x.kind), dims_of(x, dim)[0]),
    "cummax": lambda x, dim: (scanned("max", x, dims_of(x, dim)[0]), None),
    "cummin": lambda x, dim: (scanned("min", x, dims_of(x, dim)[0]), None),
}
