"""Error bounds: numbers together with the rounding errors that correct kernels may have.

Each operation adds its own error to those of its operands, to first order. Formats with more digits than the expression
asks for are equally correct, so errors are allowed, never required. A condition records where it is uncertain: there,
either choice is correct. Reductions run over many points, along a line, or as matrix products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from math import erf, prod, sqrt
from typing import Any, Protocol

import numpy as np

from deepgen.operators.base import Array
from deepgen.operators.compare import largest
from deepgen.operators.expr.nodes import PLACE_OF
from deepgen.operators.products import tiny_step
from deepgen.vocabulary.dtypes import DType, dtype

_ONE = 1.0  # of a step, for additions and the like, which are rounded to half a step
_SOME = 4.0  # for functions that libraries compute to within a few steps
NONE = np.zeros(())


@dataclass(frozen=True)
class Numbers:
    """Values in float64, int64 or bool, and their largest errors; for conditions, where they are uncertain."""

    values: Array
    error: Array = field(default_factory=lambda: NONE)

    @property
    def exact(self) -> bool:
        return self.error.ndim == 0 and not self.error


def of_format(name: str) -> DType | None:
    """A format whose numbers are rounded; None for integers and conditions."""
    if name == "bool":
        return None
    of = dtype(name)
    return None if of.integer else of


def rounded(values: Array, error: Array, name: str, steps: float = _ONE) -> Numbers:
    """The numbers after one operation in a format, which may also flush tiny numbers to zero. Numbers beyond the
    format's range have infinite errors, because a format with a larger range may be used."""
    of = of_format(name)
    if of is None:
        return Numbers(values)
    own = np.where(np.isfinite(values), np.abs(values), 0.0)  # an infinity is not rounded
    error = error + steps * of.epsilon * own + tiny_step(of, kept=False)
    over = own > largest(of)
    return Numbers(values, np.where(over, np.inf, error) if over.any() else error)


def unary(op: str, x: Numbers, name: str) -> Numbers:
    if op == PLACE_OF:
        return Numbers(x.values & 0xFFFFFFFF)
    if op in ("neg", "abs"):
        return Numbers(-x.values if op == "neg" else np.abs(x.values), x.error)
    if op == "floor":
        below, above = np.floor(x.values - x.error), np.floor(x.values + x.error)
        return Numbers(np.floor(x.values), above - below)
    values = FUNCTIONS[op](x.values)
    if x.exact:
        return rounded(values, NONE, name, _SOME)
    return rounded(values, _SLOPES[op](x.values, values, x.error), name, _SOME)


def binary(op: str, x: Numbers, y: Numbers, name: str) -> Numbers:
    a, b = x.values, y.values
    if of_format(name) is None:
        return Numbers(WHOLE[op](a, b))
    if op in ("max", "min"):
        values = np.maximum(a, b) if op == "max" else np.minimum(a, b)
        if x.exact and y.exact:
            return Numbers(values)
        chosen = np.where(values == a, x.error, y.error)
        apart = np.abs(a - b) > x.error + y.error
        return Numbers(values, np.where(apart, chosen, np.maximum(x.error, y.error)))
    if op in ("add", "sub"):
        return rounded(a + b if op == "add" else a - b, x.error + y.error, name)
    if op == "mul":
        error = NONE if x.exact and y.exact else np.abs(a) * y.error + np.abs(b) * x.error + x.error * y.error
        return rounded(a * b, error, name)
    if op == "div":
        values = a / b
        least = np.maximum(np.abs(b) - y.error, 0.0)
        error = NONE if x.exact and y.exact else (x.error + np.abs(values) * y.error) / least
        return rounded(values, error, name, _SOME)
    values = a**b
    grows = np.abs(b) * x.error / np.abs(a) + np.abs(np.log(np.abs(a))) * y.error
    return rounded(values, np.abs(values) * np.expm1(grows), name, _SOME * 4)


def compare(op: str, x: Numbers, y: Numbers) -> Numbers:
    values = {"lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal}[op](x.values, y.values)
    if x.exact and y.exact:
        return Numbers(values, np.zeros((), bool))
    return Numbers(values, np.abs(x.values - y.values) <= x.error + y.error)


def logic(op: str, x: Numbers, y: Numbers) -> Numbers:
    both = x.values & y.values if op == "and" else x.values | y.values
    return Numbers(both, x.error | y.error)


def select(condition: Numbers, then: Numbers, otherwise: Numbers) -> Numbers:
    values = np.where(condition.values, then.values, otherwise.values)
    if then.exact and otherwise.exact and not condition.error.any():
        return Numbers(values)
    error = np.where(condition.values, then.error, otherwise.error)
    either = np.abs(then.values - otherwise.values) + then.error + otherwise.error
    return Numbers(values, np.where(condition.error, either, error))


def cast(x: Numbers, before: str, name: str) -> Numbers:
    to, of = of_format(name), of_format(before)
    if to is None:
        return Numbers(_wrapped(x.values, dtype(name)))
    values = x.values.astype(np.float64)
    if (of is not None and to.epsilon <= of.epsilon) or (of is None and dtype(before).bits <= 16 and to.bits >= 32):
        return Numbers(values, x.error)
    return rounded(values, x.error, name, 0.5)


def _wrapped(values: Array, to: DType) -> Array:
    return values.astype(to.numpy()).astype(np.int64)


def sum_share(products: int, sums: DType, factors: tuple[DType, ...] = ()) -> tuple[float, float]:
    """The error of a sum: as a share of its terms' magnitude times their count, and as a share of itself.

    operators/gemm.py derives both. 16-bit factors: tensor cores truncate bits.
    """
    cut = sums.epsilon * products / 16 if factors and factors[0].bits == 16 and sums.name == "f32" else 0.0
    absolute = 2.0 * sums.epsilon * products + cut * sqrt(products) + 4.0 * sums.epsilon
    return absolute, sums.epsilon * sqrt(products) + cut


@lru_cache(maxsize=None)  # noqa: UP033  bundles run on Python 3.8
def _erf() -> Callable[[Any], Any]:
    return np.frompyfunc(erf, 1, 1)


def _sigmoid(x: Array) -> Array:
    # Avoids overflow, and differences of nearly equal numbers.
    e = np.exp(-np.abs(x))
    return np.where(x < 0.0, e, 1.0) / (1.0 + e)


_NEAR = 2.0**-7  # up to this, errors are computed from the slope


def _ending(op: str, near: Callable[[Array, Array, Array], Array]) -> Callable[[Array, Array, Array], Array]:
    """The error of a function that approaches a limit: unless the operand's error is small, the function is evaluated
    at both ends."""

    def error(x: Array, v: Array, e: Array) -> Array:
        by_slope, small = near(x, v, e), (e < _NEAR) & np.isfinite(v)
        if small.all():
            return by_slope
        ends = np.maximum(_apart(FUNCTIONS[op](x + e), v), _apart(v, FUNCTIONS[op](x - e)))
        return np.where(small, by_slope, ends)

    return error


def _inverse_root_of_less(share: Array) -> Array:
    """1 / sqrt(1 - share) - 1, without a difference of nearly equal numbers, whose rounding error in f64 would
    dominate."""
    root = np.sqrt(1.0 - share)
    return share / (root * (1.0 + root))


def _apart(a: Array, b: Array) -> Array:
    return np.where(a == b, 0.0, a - b)  # also for infinities


def placed(place: Array, number: Array) -> Array:
    """A number and its place as one integer: the least is that of the least number, and of its first place. The bits of
    floats are in order if those of negative numbers are exchanged; both zeros are one number."""
    bits = (np.asarray(number).astype(np.float32) + np.float32(0)).view(np.int32)
    return np.asarray((bits ^ (bits >> 31 & 0x7FFFFFFF)).astype(np.int64) << 32 | place)


WHOLE: dict[str, Callable[..., Array]] = {
    "first_least": placed, "first_most": lambda place, number: placed(place, number) ^ ~0xFFFFFFFF,
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
    "div": lambda a, b: np.floor_divide(a, np.where(b == 0, 1, b)),
}  # fmt: skip
FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "tanh": np.tanh,
    "erf": lambda x: np.asarray(_erf()(x), np.float64),
    "sigmoid": _sigmoid,
    "sin": np.sin,
    "cos": np.cos,
}
# The error that results from the operand's error: from the slope, and a bound on its change.
_SLOPES: dict[str, Callable[[Array, Array, Array], Array]] = {
    "exp": _ending("exp", lambda x, v, e: v * np.expm1(e)),
    "log": lambda x, v, e: -np.log1p(-np.minimum(e / np.abs(x), 1.0)),
    "sqrt": lambda x, v, e: np.minimum(np.where(v > 0, e / v, np.inf), np.sqrt(e)),
    "rsqrt": lambda x, v, e: np.where(e < x, v * _inverse_root_of_less(np.minimum(e / x, 1.0)), np.inf),
    "tanh": _ending("tanh", lambda x, v, e: (1.0 - v * v) * e + 0.4 * e * e),
    "erf": _ending("erf", lambda x, v, e: 1.13 * np.exp(-x * x) * e + e * e),
    "sigmoid": _ending("sigmoid", lambda x, v, e: v * (1.0 - v) * e + 0.05 * e * e),
    "sin": lambda x, v, e: np.minimum(np.abs(np.cos(x)) * e + 0.5 * e * e, 1.0 + np.abs(v)),
    "cos": lambda x, v, e: np.minimum(np.abs(np.sin(x)) * e + 0.5 * e * e, 1.0 + np.abs(v)),
}


class Reducer(Protocol):
    def add(self, terms: Numbers, dimensions: tuple[int, ...]) -> None:
        """Adds some of the terms, along the last dimensions."""

    def finished(self, terms: int) -> Numbers:
        """The result for this number of terms."""


class _Sum:
    """Errors of terms add up, in the worst case; the sum's own error grows as operators/gemm.py describes."""

    def __init__(self, name: str) -> None:
        self.name, self.total, self.error, self.squares = name, np.zeros((), np.int64), NONE, NONE

    def add(self, terms: Numbers, dimensions: tuple[int, ...]) -> None:
        self.total = self.total + terms.values.sum(axis=dimensions)
        if of_format(self.name) is not None:
            self.squares = self.squares + np.square(terms.values).sum(axis=dimensions)
            if not terms.exact:
                self.error = self.error + terms.error.sum(axis=dimensions)

    def finished(self, terms: int) -> Numbers:
        return _sum(self.name, self.total, self.error, self.squares, np.array(terms))


class _Product:
    """The product, and its largest value if all factors were as large as their errors allow."""

    def __init__(self, name: str) -> None:
        self.name, self.total, self.most = name, np.ones((), np.int64), np.ones(())

    def add(self, terms: Numbers, dimensions: tuple[int, ...]) -> None:
        self.total = self.total * terms.values.prod(axis=dimensions)
        if of_format(self.name) is not None:
            self.most = self.most * (np.abs(terms.values) + terms.error).prod(axis=dimensions)

    def finished(self, terms: int) -> Numbers:
        return _product(self.name, self.total, self.most, np.array(terms))


class _Extreme:
    def __init__(self, name: str, choose: Any) -> None:
        self.name, self.choose, self.total, self.error = name, choose, None, NONE

    def add(self, terms: Numbers, dimensions: tuple[int, ...]) -> None:
        chosen = self.choose.reduce(terms.values, axis=dimensions)
        self.total = chosen if self.total is None else self.choose(self.total, chosen)
        if not terms.exact:
            self.error = np.maximum(self.error, terms.error.max(axis=dimensions))

    def finished(self, terms: int) -> Numbers:
        assert self.total is not None
        return Numbers(self.total, self.error)


REDUCTIONS: dict[str, Any] = {
    "sum": _Sum,
    "prod": _Product,
    "max": lambda name: _Extreme(name, np.maximum),
    "min": lambda name: _Extreme(name, np.minimum),
}


def scanned(op: str, terms: Numbers, along: int, name: str) -> Numbers:
    """The running reduction along a dimension."""
    values, error = terms.values, np.broadcast_to(terms.error, terms.values.shape)
    floats = of_format(name) is not None
    if op in ("max", "min"):
        choose = np.maximum if op == "max" else np.minimum
        return Numbers(choose.accumulate(values, axis=along), np.maximum.accumulate(error, axis=along))
    count = np.arange(1, values.shape[along] + 1).reshape([-1 if d == along else 1 for d in range(values.ndim)])
    if op == "prod":
        total = values.cumprod(axis=along)
        return _product(name, total, (np.abs(values) + error).cumprod(axis=along) if floats else NONE, count)
    total = values.cumsum(axis=along)
    if not floats:
        return Numbers(total)
    running = _sum(name, total, NONE, np.square(values).cumsum(axis=along), count)
    own = np.fmax(running.error, _sequential(values, total, along) * (0.5 * dtype(name).epsilon))
    return Numbers(total, error.cumsum(axis=along) + own)


def _sequential(terms: Array, total: Array, along: int) -> Array:
    """The magnitude of the numbers that are rounded if terms are added one by one. Where equal terms follow each other,
    all may be rounded in one direction, so these add up; errors of different terms are those of a random walk."""
    terms, size = np.moveaxis(terms, along, -1), np.abs(np.moveaxis(total, along, -1))
    other = np.ones(terms.shape, bool)
    other[..., 1:] = terms[..., 1:] != terms[..., :-1]
    sums = size.cumsum(axis=-1)
    run = sums - np.maximum.accumulate(np.where(other, sums - size, 0.0), axis=-1)
    ended = np.zeros(terms.shape)
    ended[..., 1:] = np.where(other[..., 1:], np.square(run[..., :-1]), 0.0)
    return np.moveaxis(np.sqrt(ended.cumsum(axis=-1) + np.square(run)), -1, along)


def _sum(name: str, total: Array, error: Array, squares: Array, count: Array) -> Numbers:
    of = of_format(name)
    if of is None:
        return Numbers(total)
    most = int(count.max())
    absolute, relative = sum_share(most, of)
    # The terms' magnitude times their count, as for products, where it is the product of both factors' norms.
    size = np.sqrt(squares * count)
    tiny = sqrt(most) * tiny_step(of, kept=False)
    return Numbers(total, error + size * (absolute / most) + np.abs(total) * relative + tiny)


def _product(name: str, total: Array, most: Array, count: Array) -> Numbers:
    of = of_format(name)
    if of is None:
        return Numbers(total)
    return Numbers(total, (most - np.abs(total)) + most * of.epsilon * count + tiny_step(of, kept=False))


_EXACT = 2.0**53  # integers up to this are exact in float64, which numpy multiplies far faster than integers


def multiplied(left: Array, right: Array, shape: tuple[int, ...], kept: int) -> Array:
    """The sum of left * right over the dimensions from `kept` on.

    Both have a dimension for each of `shape`, of length 1 if they do not depend on it. The result has the first `kept`
    of them.
    """
    times, rest = 1, range(kept, len(shape))
    for dimension in rest:
        here = (left.shape[dimension] > 1, right.shape[dimension] > 1)
        if here == (False, False):
            times *= shape[dimension]
        elif here == (True, False):
            left = left.sum(axis=dimension, keepdims=True)
        elif here == (False, True):
            right = right.sum(axis=dimension, keepdims=True)
    both = [d for d in range(kept) if left.shape[d] > 1 and right.shape[d] > 1]
    rows = [d for d in range(kept) if left.shape[d] > 1 and d not in both]
    columns = [d for d in range(kept) if d not in both and d not in rows]
    summed = list(rest)
    a = _matrix(left, both, rows, summed, columns)
    b = _matrix(right, both, summed, columns, rows)
    products = times * _matrix_product(a, b)
    sizes = [left.shape[d] for d in both] + [left.shape[d] for d in rows] + [right.shape[d] for d in columns]
    order = [*both, *rows, *columns]
    laid = products.reshape(sizes).transpose([order.index(d) for d in range(kept)])
    return np.broadcast_to(laid, shape[:kept])


def norms(of: Array, shape: tuple[int, ...], kept: int) -> Array:
    """The root of the sum of squares over the dimensions from `kept` on."""
    places = list(range(of.ndim))
    squares = np.einsum(of, places, of, places, places[:kept])
    times = prod([n for d, n in enumerate(shape) if d >= kept and of.shape[d] == 1])
    result: Array = np.sqrt(squares * times)
    return result


def _matrix(of: Array, batch: list[int], first: list[int], second: list[int], absent: list[int]) -> Array:
    sizes = [prod([of.shape[d] for d in group]) for group in (batch, first, second)]
    laid: Array = of.transpose([*batch, *first, *second, *absent]).reshape(sizes)
    return laid


def _matrix_product(a: Array, b: Array) -> Array:
    result: Array
    largest = [float(np.abs(x).max(initial=0)) for x in (a, b)] if a.dtype.kind != "f" else []
    if largest and largest[0] * largest[1] * a.shape[-1] < _EXACT:
        result = np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(np.int64)
    else:
        result = np.matmul(a, b)
    return result
