"""Small operators of every kind that rules support, as expressions."""

from __future__ import annotations

from typing import Any

import deepgen as dg
from deepgen.operators.expr.elements import Element, Operand
from deepgen.operators.expr.nodes import Expression


def gemm(m: int, n: int, k: int, dtype: str = "f32", *, transposed: bool = False, epilogue: bool = False) -> Expression:
    a, over = dg.tensor("A", (m, k), dtype), dg.reduce_axis("k", k)
    b = dg.tensor("B", (n, k) if transposed else (k, n), dtype)
    sums = {"i8": "i32", "bf16": "f32", "f16": "f32"}.get(dtype, dtype)

    def product(i: Element, j: Element) -> Element:
        other = b[j, over] if transposed else b[over, j]
        return dg.sum(a[i, over].cast(sums) * other.cast(sums), over)

    c = dg.compute("C", (m, n), product)
    if not epilogue:
        return dg.expression(c)
    bias = dg.tensor("bias", (n,), sums)
    return dg.expression(dg.compute("D", (m, n), lambda i, j: dg.maximum(c[i, j] + bias[j], 0)))


def bmm(batch: int, m: int, n: int, k: int) -> Expression:
    a, b, over = dg.tensor("A", (batch, m, k)), dg.tensor("B", (batch, k, n)), dg.reduce_axis("k", k)
    return dg.expression(dg.compute("C", (batch, m, n), lambda x, i, j: dg.sum(a[x, i, over] * b[x, over, j], over)))


def gemv(m: int, k: int) -> Expression:
    a, x, over = dg.tensor("A", (m, k)), dg.tensor("x", (k,)), dg.reduce_axis("k", k)
    return dg.expression(dg.compute("y", (m,), lambda i: dg.sum(a[i, over] * x[over], over)))


def conv(size: int, ci: int, co: int, k: int, stride: int = 1, pad: int = 1, *, nchw: bool = False) -> Expression:
    x = dg.tensor("x", (2, ci, size, size) if nchw else (2, size, size, ci))
    weight = dg.tensor("weight", (co, ci, k, k) if nchw else (k, k, ci, co))
    padded = _padded(x, size, ci, pad, nchw=nchw)
    out = (size + 2 * pad - k) // stride + 1
    rh, rw, rc = dg.reduce_axis("rh", k), dg.reduce_axis("rw", k), dg.reduce_axis("rc", ci)
    if nchw:
        return dg.expression(
            dg.compute(
                "y",
                (2, co, out, out),
                lambda n, c, h, w: dg.sum(
                    padded[n, rc, h * stride + rh, w * stride + rw] * weight[c, rc, rh, rw], rc, rh, rw
                ),
            )
        )
    return dg.expression(
        dg.compute(
            "y",
            (2, out, out, co),
            lambda n, h, w, c: dg.sum(
                padded[n, h * stride + rh, w * stride + rw, rc] * weight[rh, rw, rc, c], rh, rw, rc
            ),
        )
    )


def depthwise(size: int, channels: int, stride: int = 1, *, nchw: bool = False) -> Expression:
    x = dg.tensor("x", (2, channels, size, size) if nchw else (2, size, size, channels))
    weight = dg.tensor("weight", (channels, 3, 3) if nchw else (3, 3, channels))
    padded, rh, rw = _padded(x, size, channels, 1, nchw=nchw), dg.reduce_axis("rh", 3), dg.reduce_axis("rw", 3)
    out = (size - 1) // stride + 1
    if nchw:
        return dg.expression(
            dg.compute(
                "y",
                (2, channels, out, out),
                lambda n, c, h, w: dg.sum(padded[n, c, h * stride + rh, w * stride + rw] * weight[c, rh, rw], rh, rw),
            )
        )
    return dg.expression(
        dg.compute(
            "y",
            (2, out, out, channels),
            lambda n, h, w, c: dg.sum(padded[n, h * stride + rh, w * stride + rw, c] * weight[rh, rw, c], rh, rw),
        )
    )


def pool(rows: int, cols: int, dtype: str = "f32") -> Expression:
    """The maximum of three neighbours at every second index: the last of them is the end of the row."""
    x, r = dg.tensor("x", (rows, 2 * cols + 1), dtype), dg.reduce_axis("r", 3)
    return dg.expression(dg.compute("y", (rows, cols), lambda i, j: dg.max(x[i, 2 * j + r], r)))


def _padded(x: Operand, size: int, channels: int, pad: int, *, nchw: bool) -> Operand:
    if not pad:
        return x
    wide = size + 2 * pad

    def inside(h: Element, w: Element) -> Element:
        return (h >= pad) & (h < size + pad) & (w >= pad) & (w < size + pad)

    if nchw:
        shape = (2, channels, wide, wide)
        return dg.compute("p", shape, lambda n, c, h, w: dg.where(inside(h, w), x[n, c, h - pad, w - pad], 0))
    shape = (2, wide, wide, channels)
    return dg.compute("p", shape, lambda n, h, w, c: dg.where(inside(h, w), x[n, h - pad, w - pad, c], 0))


def softmax(rows: int, cols: int, axis: int = 1) -> Expression:
    x = dg.tensor("x", (rows, cols))
    r, kept = dg.reduce_axis("r", (rows, cols)[axis]), (cols, rows)[axis]

    def at(i: Element, j: Element) -> Element:
        return i if axis else j

    most = dg.compute("most", (kept,), lambda i: dg.max(x[i, r] if axis else x[r, i], r))
    e = dg.compute("e", (rows, cols), lambda i, j: dg.exp(x[i, j] - most[at(i, j)]))
    total = dg.compute("total", (kept,), lambda i: dg.sum(e[i, r] if axis else e[r, i], r))
    return dg.expression(dg.compute("y", (rows, cols), lambda i, j: e[i, j] / total[at(i, j)]))


def layer_norm(rows: int, cols: int) -> Expression:
    x, gain, r = dg.tensor("x", (rows, cols)), dg.tensor("gain", (cols,)), dg.reduce_axis("r", cols)
    mean = dg.compute("mean", (rows,), lambda i: dg.sum(x[i, r], r) / cols)
    spread = dg.compute("spread", (rows,), lambda i: dg.sum((x[i, r] - mean[i]) * (x[i, r] - mean[i]), r) / cols)
    return dg.expression(
        dg.compute("y", (rows, cols), lambda i, j: (x[i, j] - mean[i]) * dg.rsqrt(spread[i] + 1e-5) * gain[j])
    )


def batch_norm(shape: tuple[int, int, int, int], dtype: str = "f32") -> Expression:
    images, channels, height, width = shape
    x, gain = dg.tensor("x", shape, dtype), dg.tensor("gain", (channels,))
    over = [dg.reduce_axis(name, extent) for name, extent in zip("nhw", (images, height, width), strict=True)]
    n, h, w = over
    count = images * height * width
    mean = dg.compute("mean", (channels,), lambda c: dg.sum(x[n, c, h, w].cast("f32"), *over) / count)

    def away(c: Element) -> Element:
        return x[n, c, h, w].cast("f32") - mean[c]

    spread = dg.compute("spread", (channels,), lambda c: dg.sum(away(c) * away(c), *over) / count)

    def normal(image: Element, c: Element, row: Element, column: Element) -> Element:
        centered = x[image, c, row, column].cast("f32") - mean[c]
        return (centered * dg.rsqrt(spread[c] + 1e-5) * gain[c]).cast(dtype)

    return dg.expression(dg.compute("y", shape, normal))


def scan(shape: tuple[int, ...], axis: int, dtype: str = "f32", op: str = "sum") -> Expression:
    x = dg.tensor("x", shape, dtype)
    return dg.expression(dg.scan("y", shape, lambda *at: x[at], axis=axis, op=op))


def elementwise(rows: int, cols: int) -> Expression:
    x, b = dg.tensor("x", (rows, cols)), dg.tensor("b", (cols,))
    return dg.expression(dg.compute("y", (rows, cols), lambda i, j: dg.tanh(x[i, j] + b[j])))


def total(count: int) -> Expression:
    x, r, c = dg.tensor("x", (count, 7)), dg.reduce_axis("r", count), dg.reduce_axis("c", 7)
    return dg.expression(dg.compute("y", (1,), lambda i: dg.sum(x[r, c], r, c)))


def projections(rows: int, depth: int, columns: tuple[int, int], dtype: str = "f32") -> Expression:
    """Two products of one matrix, like those at the start of attention."""
    sums = {"f32": "f32", "i8": "i32"}[dtype]
    x = dg.tensor("x", (rows, depth), dtype)

    def product(name: str, count: int) -> Operand:
        w, k = dg.tensor(f"W{name}", (depth, count), dtype), dg.reduce_axis("k", depth)
        return dg.compute(name, (rows, count), lambda i, j: dg.sum(x[i, k].cast(sums) * w[k, j].cast(sums), k))

    return dg.expression(*(product(name, count) for name, count in zip("QK", columns, strict=True)))


def layers(rows: int, first: int, hidden: int, last: int) -> Expression:
    """A product of a product."""
    x, v, w = dg.tensor("x", (rows, first)), dg.tensor("V", (first, hidden)), dg.tensor("W", (hidden, last))
    k, r = dg.reduce_axis("k", first), dg.reduce_axis("r", hidden)
    h = dg.compute("h", (rows, hidden), lambda i, j: dg.sum(x[i, k] * v[k, j], k))
    return dg.expression(dg.compute("y", (rows, last), lambda i, j: dg.sum(dg.maximum(h[i, r], 0) * w[r, j], r)))


def attention(queries: int, keys: int, depth: int, columns: int) -> Expression:
    """Products weighted by a softmax and multiplied again: each weight is read for all columns."""
    q, k, v = dg.tensor("q", (queries, depth)), dg.tensor("k", (keys, depth)), dg.tensor("v", (keys, columns))
    d, j = dg.reduce_axis("d", depth), dg.reduce_axis("j", keys)
    products = dg.compute("products", (queries, keys), lambda i, n: dg.sum(q[i, d] * k[n, d], d))
    largest = dg.compute("largest", (queries,), lambda i: dg.max(products[i, j], j))
    total = dg.compute("total", (queries,), lambda i: dg.sum(dg.exp(products[i, j] - largest[i]), j))
    shares = dg.compute("shares", (queries, keys), lambda i, n: dg.exp(products[i, n] - largest[i]) / total[i])
    return dg.expression(dg.compute("y", (queries, columns), lambda i, n: dg.sum(shares[i, j] * v[j, n], j)))


def transposed(rows: int, cols: int, dtype: str = "f32") -> Expression:
    """With an addition whose operand has the result's layout."""
    x, bias = dg.tensor("x", (rows, cols), dtype), dg.tensor("bias", (rows,), dtype)
    wide = "i32" if dtype == "i8" else "f32"
    sums = lambda j, i: (x[i, j].cast(wide) + bias[i].cast(wide)).cast(dtype)  # noqa: E731
    return dg.expression(dg.compute("y", (cols, rows), sums))


def columns(before: int, rows: int, cols: int, dtype: str = "f32", op: str = "mean") -> Expression:
    """Reduced along the middle axis."""
    x, r = dg.tensor("x", (before, rows, cols), dtype), dg.reduce_axis("r", rows)

    def element(i: Element, j: Element) -> Element:
        value = x[i, r, j].cast("f32")
        return (dg.max(value, r) if op == "max" else dg.sum(value, r) / rows).cast(dtype)

    return dg.expression(dg.compute("y", (before, cols), element))


def pooled(shape: tuple[int, int, int], k: tuple[int, int], step: tuple[int, int], op: Any = dg.sum) -> Expression:
    """Windows of images, taken apart: first along columns, then along rows."""
    images, high, wide = shape
    x, (r, c) = dg.tensor("x", shape), (dg.reduce_axis(f"k{n}", size) for n, size in enumerate(k))
    rows, cols = (high - k[0]) // step[0] + 1, (wide - k[1]) // step[1] + 1
    sums = dg.compute("sums", (images, rows, wide), lambda n, i, j: op(x[n, i * step[0] + r, j], r))
    whole = dg.compute("whole", (images, rows, cols), lambda n, i, j: op(sums[n, i, j * step[1] + c], c))
    return dg.expression(dg.compute("y", (images, rows, cols), lambda n, i, j: whole[n, i, j] / 2.0))


def place(shape: tuple[int, ...], axis: int, op: Any = dg.max, dtype: str = "f32") -> Expression:
    """The first place of an extreme along an axis."""
    x, others = dg.tensor("x", shape, dtype), tuple(n for m, n in enumerate(shape) if m != axis)

    def at(i: Any, along: Any) -> Any:
        return x[(*i[:axis], along, *i[axis:])].cast("f32")

    def best_of(*i: Any) -> Any:
        r = dg.reduce_axis("r", shape[axis])
        return op(at(i, r), r)

    best = dg.compute("best", others, best_of)

    def first(*i: Any) -> Any:
        r = dg.reduce_axis("r", shape[axis])
        return dg.min(dg.where(at(i, r) == best[i], r.cast("i64"), shape[axis] - 1), r)

    return dg.expression(dg.compute("y", others, first))


def long_rows(rows: int, cols: int, dtype: str = "f32") -> Expression:
    x, c = dg.tensor("x", (rows, cols), dtype), dg.reduce_axis("c", cols)
    return dg.expression(dg.compute("y", (rows,), lambda i: dg.sum(x[i, c].cast("f32"), c).cast(dtype)))


CASES = {
    "gemm": gemm(20, 36, 17),
    "gemm with B transposed and an epilogue": gemm(9, 19, 24, transposed=True, epilogue=True),
    "gemm of bytes": gemm(13, 16, 20, "i8"),
    "gemm in bf16": gemm(7, 24, 16, "bf16"),
    "gemm in f64": gemm(6, 10, 8, "f64"),
    "bmm": bmm(3, 8, 12, 5),
    "gemv": gemv(11, 40),
    "conv nhwc": conv(7, 5, 12, 3),
    "conv nhwc, stride 2": conv(9, 4, 8, 3, 2),
    "conv nchw": conv(8, 3, 6, 3, nchw=True),
    "conv nchw, stride 2": conv(8, 3, 6, 3, 2, nchw=True),
    "conv 1x1": conv(6, 8, 12, 1, 1, 0),
    "depthwise nhwc": depthwise(7, 12),
    "depthwise nchw": depthwise(9, 5, nchw=True),
    "depthwise nchw, stride 2": depthwise(11, 3, 2, nchw=True),
    "pool": pool(3, 14),
    "pool in bf16": pool(2, 9, "bf16"),
    "pool of bytes": pool(2, 23, "i8"),
    "softmax": softmax(6, 37),
    "softmax along columns": softmax(9, 22, 0),
    "layer_norm": layer_norm(5, 33),
    "scan": scan((4, 5, 18), 2),
    "scan of rows": scan((4, 5, 18), 1),
    "scan of maxima": scan((3, 21), 1, "i32", "max"),
    "scan in bf16": scan((2, 19), 1, "bf16"),
    "elementwise": elementwise(5, 21),
    "one total": total(50),
    "two products of one matrix": projections(7, 12, (9, 6)),
    "two products of one matrix of bytes": projections(7, 12, (9, 6), "i8"),
    "a product of a product": layers(9, 7, 10, 6),
}
