"""The reference of GEMMs, computed by numpy in float64 or int64, and as a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from deepgen.operators.base import Answer, Array
from deepgen.operators.compare import scale_format
from deepgen.operators.epilogue_reference import After, terms_header
from deepgen.operators.products import BLOCK, distinct
from deepgen.vocabulary.dtypes import widen
from deepgen.vocabulary.kernel import Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg
from deepgen.vocabulary.parallel import in_parts, usual_threads

if TYPE_CHECKING:
    from deepgen.operators.gemm import Gemm


_BLOCK, _LARGE = 1 << 16, 1 << 20  # elements that stay in the cache; the number from which on threads share them
_DIGEST = 1 << 10  # number of products that takes as long as a row's digest


def gemm_reference(gemm: Gemm, inputs: Mapping[str, Array]) -> dict[str, Answer]:
    if gemm.pair != "none":
        first, second = (gemm_reference(of, own)["C"] for of, own in _pair(gemm, inputs))
        return {"C": After(gemm, inputs).rows(first, 0, gemm.m, second)}
    c, shape = gemm.dtypes[2], (gemm.batch, gemm.m, gemm.n)
    product = np.empty(shape, np.int64 if _whole(gemm) else np.float64)
    size = np.ones((gemm.batch, 1, 1) if c.integer else shape, scale_format(c).numpy())
    with np.errstate(all="ignore"):
        every_a, every_b = _each(gemm, "A", inputs), _each(gemm, "B", inputs)
        for i in range(gemm.batch):
            _multiply(gemm, every_a[i], every_b[i], product[i], size[i], _block_factors(gemm, inputs, i))
        answer = _finished_rows(gemm, inputs, product.reshape(-1, gemm.n), size)
    full = gemm.tensors()[-1].shape
    return {"C": Answer(answer.values.reshape(full), answer.scale.reshape(full if answer.scale.size > 1 else ()))}


def _pair(gemm: Gemm, inputs: Mapping[str, Array]) -> list[tuple[Gemm, dict[str, Array]]]:
    """Both products of a pair, with their inputs."""
    product, along = replace(gemm, epilogue="", pair="none"), int(gemm.layout[1] == "n")
    both = (inputs["B"], inputs["B2"]) if gemm.pair == "two" else np.split(inputs["B"], 2, along)
    return [(product, {"A": inputs["A"], "B": b}) for b in both]


def _finished_rows(gemm: Gemm, inputs: Mapping[str, Array], product: Array, size: Array) -> Answer:
    """The results of all rows of a batch; each thread computes some rows at a time."""
    c, factors = gemm.dtypes[2], _factors(gemm, inputs)
    after = After(gemm, inputs) if gemm.epilogue else None
    bias = widen(inputs["bias"], c) if gemm.bias else None
    stored = inputs["C"].reshape(-1, gemm.n) if gemm.beta != 0.0 else None
    sizes = size.reshape(-1, gemm.n) if not c.integer else size

    def block(first: int, last: int) -> Answer:
        rows = slice(first, last)
        own = factors[np.arange(first, last) % gemm.m][:, None] if gemm.scales == "row" else factors
        old = widen(stored[rows], c) if stored is not None else None
        answer = _finished(gemm, product[rows], sizes[rows] if not c.integer else sizes, own, old, bias)
        return answer if after is None else after.rows(answer, first, last)

    step = max(1, _BLOCK // gemm.n)
    kind = block(0, 1).values.dtype
    values = product if product.dtype == kind else np.empty(product.shape, kind)
    scale = sizes if not c.integer else np.ones(())

    def some(first: int, last: int) -> None:
        with np.errstate(all="ignore"):
            for start in range(first * step, min(last * step, len(product)), step):
                answer = block(start, min(start + step, len(product)))
                values[start : start + step] = answer.values
                if not c.integer:
                    scale[start : start + step] = answer.scale

    in_parts(-(-len(product) // step), usual_threads() if product.size > _LARGE else 1, some)
    return Answer(values, scale)


def _each(gemm: Gemm, name: str, inputs: Mapping[str, Array]) -> Array:
    """The matrices of a batch, as M x K or K x N."""
    every = inputs[name].reshape(gemm.batch, *inputs[name].shape[-2:])
    return every if gemm.layout["AB".index(name)] == "n" else np.swapaxes(every, -1, -2)


def _block_factors(gemm: Gemm, inputs: Mapping[str, Array], i: int) -> tuple[Array, Array] | None:
    """For the rows of a matrix of A and for the columns of one of B, the factor of each block of K."""
    if not gemm.blocks:
        return None
    every = (inputs[name].reshape(gemm.batch, *inputs[name].shape[-2:])[i] for name in ("scale_a", "scale_b"))
    a, b = (np.repeat(of, rows, 0) for of, rows in zip(every, gemm.blocks, strict=True))
    return a[: gemm.m], b[: gemm.n]


def _factors_at(gemm: Gemm, scales: Array, batch: Array, block: Array) -> Array:
    """For some rows of A or columns of B, the factors of all of K."""
    factors: Array = scales.reshape(gemm.batch, *scales.shape[-2:])[batch, block]
    return factors[:, np.arange(gemm.k) // BLOCK]


def _times_blocks(rows: Array, factors: Array) -> None:
    """Multiplies each row's blocks of K by their factors, in place."""
    for block in range(factors.shape[1]):
        rows[:, block * BLOCK : (block + 1) * BLOCK] *= factors[:, block, None]


def _multiply(gemm: Gemm, a: Array, b: Array, product: Array, size: Array, factors: tuple[Array, Array] | None) -> None:
    """Computes the product of two matrices and, for floats, the magnitude of its terms; equal rows are computed
    once."""
    rows = a if factors is None else np.hstack([np.ascontiguousarray(x).view(np.uint8) for x in (a, factors[0])])
    kept, kind = distinct(rows) if gemm.n * gemm.k >= _DIGEST else (np.arange(len(a)),) * 2
    left, right = widen(a[kept], gemm.dtypes[0]), widen(b, gemm.dtypes[1])
    if factors is not None:
        _times_blocks(left, factors[0][kept])
        _times_blocks(right.T, factors[1])
    if len(kept) == len(kind):
        _product(gemm, left, right, product)
    else:
        product[:] = _product(gemm, left, right, np.empty((len(kept), gemm.n), product.dtype))[kind]
    if not gemm.dtypes[2].integer:
        rows, columns = (_norms(x, axis).astype(size.dtype) for x, axis in ((left, -1), (right, -2)))
        np.multiply(rows[kind][:, None], columns, out=size)


def reference_at(gemm: Gemm, inputs: Mapping[str, Array], places: Array) -> Answer:
    a, b, c, _ = gemm.dtypes
    batch, row, column = np.unravel_index(places, (gemm.batch, gemm.m, gemm.n))
    if gemm.pair != "none":
        first, second = (reference_at(of, own, places) for of, own in _pair(gemm, inputs))
        return After(gemm, inputs).places(first, batch, row, column, second)
    every_a, every_b = (inputs[name].reshape(gemm.batch, *inputs[name].shape[-2:]) for name in "AB")
    with np.errstate(all="ignore"):
        wide_a = widen(every_a[batch, row, :] if gemm.layout[0] == "n" else every_a[batch, :, row], a)
        wide_b = widen(every_b[batch, :, column] if gemm.layout[1] == "n" else every_b[batch, column, :], b)
        if gemm.blocks:
            wide_a = wide_a * _factors_at(gemm, inputs["scale_a"], batch, row // gemm.blocks[0])
            wide_b = wide_b * _factors_at(gemm, inputs["scale_b"], batch, column // gemm.blocks[1])
        size = _norms(wide_a, -1) * _norms(wide_b, -1) if not c.integer else np.ones(len(places))
        factors = _factors(gemm, inputs)
        if gemm.scales != "none" and not gemm.blocks:
            factors = factors[{"row": row, "column": column}.get(gemm.scales, 0)]
        old = widen(inputs["C"].reshape(-1)[places], c) if gemm.beta != 0.0 else None
        bias = widen(inputs["bias"][column], c) if gemm.bias else None
        answer = _finished(gemm, (wide_a * wide_b).sum(-1), size, factors, old, bias)
        return After(gemm, inputs).places(answer, batch, row, column) if gemm.epilogue else answer


def _factors(gemm: Gemm, inputs: Mapping[str, Array]) -> Array:
    own = gemm.scales != "none" and not gemm.blocks
    factors: Array = inputs["scale"].astype(np.float64) if own else np.ones(())
    return factors


def _finished(gemm: Gemm, product: Array, size: Array, factors: Array, old: Array | None, bias: Array | None) -> Answer:
    """The result after scaling, bias and activation, and the magnitude of its terms.

    `size`: the product of the norms of its row and its column. Divided by K, it is 1 for numbers of magnitude 1.
    """
    result, scale = product, size * size.dtype.type(abs(gemm.alpha) / gemm.k)
    if gemm.alpha != 1.0:
        result = gemm.alpha * result
    if gemm.scales != "none" and not gemm.blocks:
        result, scale = result * factors, scale * np.abs(factors)
    if old is not None:
        result, scale = result + gemm.beta * old, scale + np.abs(gemm.beta / gemm.k * old)
    if bias is not None:
        result, scale = result + bias, scale + np.abs(bias / gemm.k)
    if gemm.dtypes[2].integer:
        scale = np.ones(())
    kept = np.where(np.isfinite(scale), scale, 0.0).astype(scale_format(gemm.dtypes[2]).numpy())
    return Answer(_activate(result, gemm.activation), kept)


def _whole(gemm: Gemm) -> bool:
    return gemm.dtypes[0].integer and gemm.dtypes[1].integer


def _product(gemm: Gemm, left: Array, right: Array, out: Array) -> Array:
    a, b = gemm.dtypes[:2]
    if _whole(gemm) and 8 * (a.bytes + b.bytes) + (gemm.k - 1).bit_length() <= 53:
        # With these sizes every sum of small integers is exact in float64, which numpy multiplies a hundred times
        # faster.
        out[:] = np.matmul(left.astype(np.float64), right.astype(np.float64))
    else:
        np.matmul(left, right, out=out)
    return out


def _norms(x: Array, axis: int) -> Array:
    # Without an array of all squares, which takes ten times as long.
    squares: Array = np.einsum("ij,ij->i" if axis == -1 else "ij,ij->j", x, x, dtype=np.float64)
    return np.sqrt(squares)


def _activate(x: Array, activation: str) -> Array:
    if activation == "relu":
        return np.maximum(x, 0.0)
    if activation == "gelu":
        inner: Array = np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3))
        return 0.5 * x * (1.0 + inner)
    if activation == "silu":
        return x / (1.0 + np.exp(-x))
    return x


_FILE = "gemm_reference.cu"
_DEVICE_HEADER = "reference_device.h"  # included by references on devices
_FORMATS = ("f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i8", "u8", "i16", "i32", "i64")
_ACTIVATIONS = ("none", "relu", "gelu", "silu")
_SCALES = ("none", "tensor", "row", "column")
_READ = ("A", "B", "C", "bias", "scale", "scale_a", "scale_b")
_TILE, _DEPTH, _THREADS = 64, 16, 256


def reference_kernel(gemm: Gemm, language: str) -> Kernel | None:
    """None for other languages, and for GEMMs that its arithmetic does not cover."""
    from importlib import resources  # imported here: code that only reads studies does not wait for it

    a, b, c, _ = gemm.dtypes
    plain = (gemm.alpha, gemm.beta, gemm.bias, gemm.activation, gemm.scales) == (1.0, 0.0, False, "none", "none")
    whole = (2 if c.integer else 1) if a.integer and b.integer else 0
    if language not in ("cuda", "hip") or (c.integer and not (plain and whole)):
        return None
    if gemm.pair != "none":
        from deepgen.operators.expr import reference_kernels

        return None if gemm.b.startswith("f8") else reference_kernels.reference_kernel(gemm.expression(), language)
    if language == "hip" and gemm.activation in ("gelu", "silu"):
        return None  # in HIP the exponential in f64 needs a vendor's library
    formats = (("A", a), ("B", b), ("C", c))
    flags = {
        **{f"FORMAT_{name}": _FORMATS.index(of.name.replace("tf32", "f32")) for name, of in formats},
        **{f"TRANSPOSED_{name}": int(letter == "t") for name, letter in zip("AB", gemm.layout, strict=True)},
        "ACTIVATION": _ACTIVATIONS.index(gemm.activation),
        "SCALES": 0 if gemm.blocks else _SCALES.index(gemm.scales),
        **{f"BLOCK_{name}": rows for name, rows in zip("AB", gemm.blocks or (0, 0), strict=True)},
        "BETA": int(gemm.beta != 0.0),
        "BIAS": int(gemm.bias),
        "WHOLE": whole,
    }
    names, more = {t.name for t in gemm.tensors()}, tuple(TensorArg(one.name) for one in gemm.operands)
    absent = ScalarArg("i64", 0)  # a null pointer
    step = Step(
        "gemm_reference",
        (
            *(TensorArg(name) if name in names else absent for name in _READ),
            TensorArg("want_C"),
            absent if whole == 2 else TensorArg("scale_C"),
            *(ScalarArg("i32", size) for size in ("M", "N", "K")),
            *(ScalarArg("f64", factor) for factor in ("alpha", "beta")),
            absent,  # offsets of experts, and how many there are
            ScalarArg("i32", 0),
            *more,
        ),
        grid=(f"ceil_div(M, {_TILE}) * ceil_div(N, {_TILE}) * batch", 1, 1),
        block=(_THREADS, 1, 1),
        shared_bytes=2 * _DEPTH * (_TILE + 1) * 8,
    )
    room = resources.files("deepgen.operators")
    sources = tuple(Source(name, (room / name).read_text()) for name in (_FILE, _DEVICE_HEADER))
    if gemm.epilogue:
        shared = resources.files("deepgen.operators.expr") / "reference.h"
        sources += (Source("reference.h", shared.read_text()), Source("epilogue_terms.h", terms_header(gemm)))
        flags["EPILOGUE"] = 1
    defined = tuple(f"-D{name}={value}" for name, value in flags.items())
    return Kernel("gemm_reference", language, sources, defined, LaunchPlan((step,)))
