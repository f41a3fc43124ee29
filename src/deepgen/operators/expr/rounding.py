"""How far off the results of right kernels may be: numbers with the rounding errors that they may carry.

Each operation adds its own error to those of its operands, to first order. Formats with more digits than the expression
asks for are as right as those it names, so errors are allowed, never demanded. A condition carries where it is not
sure: there, either choice is right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from math import erf, sqrt
from typing import Any

import numpy as np

from deepgen.operators.base import Array
from deepgen.operators.compare import largest
from deepgen.operators.products import tiny_step
from deepgen.vocabulary.dtypes import DType, dtype

_ONE = 1.0  # of a step for additions and the like, which are rounded to half of one
_SOME = 4.0  # for functions that libraries round to a few steps
NONE = np.zeros(())


@dataclass(frozen=True)
class Numbers:
    """Values in float64, int64 or bool, and how far off they may be; for conditions, where they are not sure."""

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
    """After one operation in a format, which may also take tiny numbers for zero. Where the format has no such number,
    nothing is known of what becomes of it: another may have."""
    of = of_format(name)
    if of is None:
        return Numbers(values)
    own = np.where(np.isfinite(values), np.abs(values), 0.0)  # an infinity is not rounded
    error = error + steps * of.epsilon * own + tiny_step(of, kept=False)
    over = own > largest(of)
    return Numbers(values, np.where(over, np.inf, error) if over.any() else error)


def unary(op: str, x: Numbers, name: str) -> Numbers:
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
        return Numbers(_WHOLE[op](a, b))
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
    """How far off a sum may be: as a share of its terms' size times their count, and as a share of itself.

    operators/gemm.py derives both. 16-bit factors: tensor cores cut bits off.
    """
    cut = sums.epsilon * products / 16 if factors and factors[0].bits == 16 and sums.name == "f32" else 0.0
    absolute = 2.0 * sums.epsilon * products + cut * sqrt(products) + 4.0 * sums.epsilon
    return absolute, sums.epsilon * sqrt(products) + cut


@lru_cache(maxsize=None)  # noqa: UP033  bundles run on Python 3.8
def _erf() -> Callable[[Any], Any]:
    return np.frompyfunc(erf, 1, 1)


def _sigmoid(x: Array) -> Array:
    # Without overflow, and without a difference of nearly equal numbers.
    e = np.exp(-np.abs(x))
    return np.where(x < 0.0, e, 1.0) / (1.0 + e)


_NEAR = 2.0**-7  # errors up to here are taken by the slope


def _ending(op: str, near: Callable[[Array, Array, Array], Array]) -> Callable[[Array, Array, Array], Array]:
    """Of a function that grows towards a limit: where errors are not small it is what it is at both ends."""

    def error(x: Array, v: Array, e: Array) -> Array:
        by_slope, small = near(x, v, e), (e < _NEAR) & np.isfinite(v)
        if small.all():
            return by_slope
        ends = np.maximum(_apart(FUNCTIONS[op](x + e), v), _apart(v, FUNCTIONS[op](x - e)))
        return np.where(small, by_slope, ends)

    return error


def _inverse_root_of_less(share: Array) -> Array:
    """1 / sqrt(1 - share) - 1, without a difference of nearly equal numbers, which in f64 would be rounding alone."""
    root = np.sqrt(1.0 - share)
    return share / (root * (1.0 + root))


def _apart(a: Array, b: Array) -> Array:
    return np.where(a == b, 0.0, a - b)  # infinities too


_WHOLE: dict[str, Callable[..., Array]] = {
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
# The error that the operand's error makes: from the slope there, and how much that may change on the way.
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
