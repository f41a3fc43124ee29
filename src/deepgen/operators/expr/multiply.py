"""Sums of products of two arrays over some of their dimensions, by matrix multiplication."""

from __future__ import annotations

from math import prod

import numpy as np

from deepgen.operators.base import Array

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
    found = times * _product(a, b)
    sizes = [left.shape[d] for d in both] + [left.shape[d] for d in rows] + [right.shape[d] for d in columns]
    order = [*both, *rows, *columns]
    laid = found.reshape(sizes).transpose([order.index(d) for d in range(kept)])
    return np.broadcast_to(laid, shape[:kept])


def norms(of: Array, shape: tuple[int, ...], kept: int) -> Array:
    """The root of the sum of squares over the dimensions from `kept` on."""
    places = list(range(of.ndim))
    squares = np.einsum(of, places, of, places, places[:kept])
    times = prod([n for d, n in enumerate(shape) if d >= kept and of.shape[d] == 1])
    found: Array = np.sqrt(squares * times)
    return found


def _matrix(of: Array, batch: list[int], first: list[int], second: list[int], absent: list[int]) -> Array:
    sizes = [prod([of.shape[d] for d in group]) for group in (batch, first, second)]
    laid: Array = of.transpose([*batch, *first, *second, *absent]).reshape(sizes)
    return laid


def _product(a: Array, b: Array) -> Array:
    found: Array
    largest = [float(np.abs(x).max(initial=0)) for x in (a, b)] if a.dtype.kind != "f" else []
    if largest and largest[0] * largest[1] * a.shape[-1] < _EXACT:
        found = np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(np.int64)
    else:
        found = np.matmul(a, b)
    return found
