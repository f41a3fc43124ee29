"""The problems on which operators and generators are tried: deepgen's own, and the examples of installed plug-ins."""

from __future__ import annotations

import deepgen as dg
from deepgen.operators import OPERATORS, Operator, conv2d, gemm, softmax
from deepgen.operators.expr.operator import as_operator


def matrix_product(dtype: str, wide: str) -> Operator:
    """A product with the weights' usual layout, as an expression."""
    a, b, k = dg.tensor("A", (33, 70), dtype), dg.tensor("B", (20, 70), dtype), dg.reduce_axis("k", 70)
    made: Operator = as_operator(
        dg.compute("C", (33, 20), lambda i, j: dg.sum(a[i, k].cast(wide) * b[j, k].cast(wide), k))
    )
    return made


def variance(dtype: str) -> Operator:
    """Of each row: two reductions, one after the other."""
    x, k = dg.tensor("x", (9, 37), dtype), dg.reduce_axis("k", 37)
    mean = dg.compute("mean", (9,), lambda i: dg.sum(x[i, k].cast("f32"), k) / 37)
    made: Operator = as_operator(
        dg.compute("var", (9,), lambda i: (dg.sum((x[i, k].cast("f32") - mean[i]) ** 2.0, k) / 37).cast(dtype))
    )
    return made


OWN: list[Operator] = [
    gemm(64, 64, 64),
    gemm(33, 65, 17, layout="nt"),
    gemm(1, 512, 300, layout="tt"),
    gemm(128, 96, 64, layout="tn"),
    gemm(48, 80, 100, dtype="bf16", layout="nt"),
    gemm(48, 80, 100, dtype="f64"),
    gemm(48, 80, 100, dtype="i8"),
    gemm(16, 4096, 4096, dtype="bf16", layout="nt"),
    gemm(1024, 3, 512, dtype="bf16", layout="nt"),
    softmax(9, 37),
    softmax(512, 4096, dtype="bf16"),
    conv2d(2, 13, 17, 5, 19, 3, stride=2, pad=1),
    conv2d(1, 28, 28, 32, 64, 1, dtype="i8", layout="nchw"),
    matrix_product("f16", "f32"),
    matrix_product("i8", "i32"),
    variance("bf16"),
]
PLUGGED = [example for kind in OPERATORS.working() if kind.name not in OPERATORS.own for example in kind.examples()]
PROBLEMS = [*OWN, *PLUGGED]
