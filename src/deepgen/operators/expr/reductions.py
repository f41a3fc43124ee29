"""Reductions of numbers that carry errors: of many points, along a line, and sums of products by matrix products."""

from __future__ import annotations

from math import prod, sqrt
from typing import Any, Protocol

import numpy as np

from deepgen.operators.base import Array
from deepgen.operators.expr.rounding import NONE, Numbers, of_format, sum_share
from deepgen.operators.products import tiny_step


class Reducer(Protocol):
    def add(self, terms: Numbers, dimensions: tuple[int, ...]) -> None:
        """Take in some of the terms, which lie along the last dimensions."""

    def finished(self, terms: int) -> Numbers:
        """The result of that many."""


class _Sum:
    """Errors of terms add up, in the worst case; those of the sum itself grow as operators/gemm.py says."""

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
    """What the product is, and what it would be if all factors were as large as their errors allow."""

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
    squares = np.square(values).cumsum(axis=along) if floats else NONE
    return _sum(name, values.cumsum(axis=along), error.cumsum(axis=along), squares, count)


def _sum(name: str, total: Array, error: Array, squares: Array, count: Array) -> Numbers:
    of = of_format(name)
    if of is None:
        return Numbers(total)
    most = int(count.max())
    absolute, relative = sum_share(most, of)
    # The terms' size times their count, as for products: there it is the norms of both factors, multiplied.
    size = np.sqrt(squares * count)
    tiny = sqrt(most) * tiny_step(of, kept=False)
    return Numbers(total, error + size * (absolute / most) + np.abs(total) * relative + tiny)


def _product(name: str, total: Array, most: Array, count: Array) -> Numbers:
    of = of_format(name)
    if of is None:
        return Numbers(total)
    return Numbers(total, (most - np.abs(total)) + most * of.epsilon * count + tiny_step(of, kept=False))


_EXACT = 2.0**53  # whole numbers up to here are exact in float64, which numpy multiplies far faster than integers


def multiplied(left: Array, right: Array, shape: tuple[int, ...], kept: int) -> Array:
    """The sum of left * right over the dimensions from `kept` on.

    Both have a dimension for each of `shape`, of length 1 where they do not depend on it. The result has the first
    `kept` of them.
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
