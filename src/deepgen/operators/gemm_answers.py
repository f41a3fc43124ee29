"""The reference of a GEMM, computed by numpy in float64 or int64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from deepgen.operators.base import Answer, Array
from deepgen.operators.products import distinct
from deepgen.vocabulary.dtypes import widen

if TYPE_CHECKING:
    from deepgen.operators.gemm import Gemm


def reference(gemm: Gemm, inputs: Mapping[str, Array]) -> dict[str, Answer]:
    c, shape = gemm.dtypes[2], (gemm.batch, gemm.m, gemm.n)
    product = np.empty(shape, np.int64 if _whole(gemm) else np.float64)
    size = np.ones((gemm.batch, 1, 1) if c.integer else shape, np.float32)
    with np.errstate(all="ignore"):
        every_a, every_b = _each(gemm, "A", inputs), _each(gemm, "B", inputs)
        for i in range(gemm.batch):
            _multiply(gemm, every_a[i], every_b[i], product[i], size[i])
        factors = _factors(gemm, inputs)
        if gemm.scales == "row":
            factors = factors[:, None]
        old = widen(inputs["C"], c).reshape(shape) if gemm.beta != 0.0 else None
        bias = widen(inputs["bias"], c) if gemm.bias else None
        answer = _finished(gemm, product, size, factors, old, bias)
    told = gemm.tensors()[-1].shape
    return {"C": Answer(answer.values.reshape(told), answer.scale.reshape(told if answer.scale.size > 1 else ()))}


def _each(gemm: Gemm, name: str, inputs: Mapping[str, Array]) -> Array:
    """The matrices of a batch, as M x K or K x N."""
    every = inputs[name].reshape(gemm.batch, *inputs[name].shape[-2:])
    return every if gemm.layout["AB".index(name)] == "n" else np.swapaxes(every, -1, -2)


def _multiply(gemm: Gemm, a: Array, b: Array, product: Array, size: Array) -> None:
    """Compute the product of two matrices and, for floats, the magnitude of its terms; equal rows are computed once."""
    kept, kind = distinct(a)
    left, right = widen(a[kept], gemm.dtypes[0]), widen(b, gemm.dtypes[1])
    if len(kept) == len(kind):
        _product(gemm, left, right, product)
    else:
        product[:] = _product(gemm, left, right, np.empty((len(kept), gemm.n), product.dtype))[kind]
    if not gemm.dtypes[2].integer:
        rows, columns = (_norms(x, axis).astype(np.float32) for x, axis in ((left, -1), (right, -2)))
        np.multiply(rows[kind][:, None], columns, out=size)


def reference_at(gemm: Gemm, inputs: Mapping[str, Array], places: Array) -> Answer:
    a, b, c, _ = gemm.dtypes
    batch, row, column = np.unravel_index(places, (gemm.batch, gemm.m, gemm.n))
    every_a, every_b = (inputs[name].reshape(gemm.batch, *inputs[name].shape[-2:]) for name in "AB")
    with np.errstate(all="ignore"):
        wide_a = widen(every_a[batch, row, :] if gemm.layout[0] == "n" else every_a[batch, :, row], a)
        wide_b = widen(every_b[batch, :, column] if gemm.layout[1] == "n" else every_b[batch, column, :], b)
        size = _norms(wide_a, -1) * _norms(wide_b, -1) if not c.integer else np.ones(len(places))
        factors = _factors(gemm, inputs)
        if gemm.scales != "none":
            factors = factors[{"row": row, "column": column}.get(gemm.scales, 0)]
        old = widen(inputs["C"].reshape(-1)[places], c) if gemm.beta != 0.0 else None
        bias = widen(inputs["bias"][column], c) if gemm.bias else None
        return _finished(gemm, (wide_a * wide_b).sum(-1), size, factors, old, bias)


def _factors(gemm: Gemm, inputs: Mapping[str, Array]) -> Array:
    factors: Array = inputs["scale"].astype(np.float64) if gemm.scales != "none" else np.ones(())
    return factors


def _finished(gemm: Gemm, product: Array, size: Array, factors: Array, old: Array | None, bias: Array | None) -> Answer:
    """The result after scaling, bias and activation, and the magnitude of its terms.

    `size`: the norms of its row and its column, multiplied. Over K that is 1 for numbers of size 1.
    """
    result, scale = product, size * np.float32(abs(gemm.alpha) / gemm.k)
    if gemm.alpha != 1.0:
        result = gemm.alpha * result
    if gemm.scales != "none":
        result, scale = result * factors, scale * np.abs(factors)
    if old is not None:
        result, scale = result + gemm.beta * old, scale + np.abs(gemm.beta / gemm.k * old)
    if bias is not None:
        result, scale = result + bias, scale + np.abs(bias / gemm.k)
    if gemm.dtypes[2].integer:
        scale = np.ones(())
    return Answer(_activate(result, gemm.activation), np.where(np.isfinite(scale), scale, 0.0).astype(np.float32))


def _whole(gemm: Gemm) -> bool:
    return gemm.dtypes[0].integer and gemm.dtypes[1].integer


def _product(gemm: Gemm, left: Array, right: Array, out: Array) -> Array:
    a, b = gemm.dtypes[:2]
    if _whole(gemm) and 8 * (a.bytes + b.bytes) + (gemm.k - 1).bit_length() <= 53:
        # Every sum of so few small integers is exact in float64, which numpy multiplies a hundred times faster.
        out[:] = np.matmul(left.astype(np.float64), right.astype(np.float64))
    else:
        np.matmul(left, right, out=out)
    return out


def _norms(x: Array, axis: int) -> Array:
    norms: Array = np.sqrt(np.square(x, dtype=np.float64).sum(axis))
    return norms


def _activate(x: Array, activation: str) -> Array:
    if activation == "relu":
        return np.maximum(x, 0.0)
    if activation == "gelu":
        inner: Array = np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3))
        return 0.5 * x * (1.0 + inner)
    if activation == "silu":
        return x / (1.0 + np.exp(-x))
    return x
