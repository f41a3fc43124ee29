"""The problems for tests of operators and generators: deepgen's own, and the examples of installed plug-ins."""

from __future__ import annotations

import deepgen as dg
from deepgen.operators import (
    OPERATORS,
    Operator,
    attention,
    attention_backward,
    conv2d,
    gemm,
    gemm_w4,
    grouped_gemm,
    softmax,
)
from deepgen.operators.expr.operator import as_operator


def matrix_product(dtype: str, wide: str) -> Operator:
    """A product with the weights' usual layout, as an expression."""
    a, b, k = dg.tensor("A", (33, 70), dtype), dg.tensor("B", (20, 70), dtype), dg.reduce_axis("k", 70)
    operator: Operator = as_operator(
        dg.compute("C", (33, 20), lambda i, j: dg.sum(a[i, k].cast(wide) * b[j, k].cast(wide), k))
    )
    return operator


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
    gemm(70, 150, 272, dtype="f8e4m3", layout="nt", scales="1x128,128x128"),
    gemm_w4(9, 37, 130, group=32, zeros=True),
    gemm_w4(17, 52, 200, group=64, dtype="f16", zeros=True, weight_layout="packed"),
    softmax(9, 37),
    softmax(512, 4096, dtype="bf16"),
    attention(1, 4, 9, 13, 16, kv_heads=2, causal=True, dtype="f32"),
    attention(2, 8, 256, 300, 64, causal=True, window=100, layout="bshd"),
    attention(2, 8, 1, 300, 64, kv_heads=2),
    attention(3, 4, 2, 50, 16, kv_heads=2, dtype="f32", lengths=True, page=16),
    attention(2, 4, 70, 150, 64, kv_heads=2, dtype="f8e4m3", scales=True, causal=True),
    grouped_gemm(5, 71, 33, 40, dtype="f32"),
    grouped_gemm(3, 24, 40, 131, layout="tn"),
    attention_backward(1, 4, 9, 13, 16, kv_heads=2, causal=True, dtype="f32"),
    attention_backward(1, 2, 70, 100, 64, kv_heads=1, causal=True),
    conv2d(2, 13, 17, 5, 19, 3, stride=2, pad=1),
    conv2d(1, 28, 28, 32, 64, 1, dtype="i8", layout="nchw"),
    conv2d(2, 20, 23, 3, 24, 5, stride=2, pad=2, dtype="f16"),
    conv2d(1, 14, 14, 64, 32, 3, pad=1, dtype="bf16"),
    conv2d(2, 15, 13, 40, 24, 1, dtype="f16", layout="nchw"),
    conv2d(2, 9, 11, 6, 16, 3, pad=1, layout="nchw"),
    matrix_product("f16", "f32"),
    matrix_product("i8", "i32"),
    dg.operator("depthwise_conv2d", N=2, H=9, W=8, C=7, k=3, pad=1, epilogue="bias,residual,silu"),
]
PLUGGED = [example for kind in OPERATORS.working() if kind.name not in OPERATORS.own for example in kind.examples()]
PROBLEMS = [*OWN, *PLUGGED]
# The other operators defined by expressions: one family serves them all, and needs no more examples than above.
EXPRESSED: list[Operator] = [
    dg.operator("bmm", B=3, M=20, N=17, K=33, dtype="f16", epilogue="bias,relu"),
    dg.operator("gemv", M=50, K=333),
    dg.operator("conv1d", N=2, L=30, CI=5, CO=7, k=3, pad=4, layout="ncl"),
    dg.operator("conv3d", N=1, D=4, H=6, W=7, CI=3, CO=5, k=3, stride=2, pad=1),
    dg.operator("dilated_conv2d", N=1, H=9, W=8, CI=4, CO=6, k=3, pad=2, groups=2, dtype="i8"),
    dg.operator("conv_transpose2d", N=1, H=5, W=6, CI=3, CO=4, k=3, stride=2, pad=1, out_pad=1, dtype="f64"),
    dg.operator("conv_transpose1d", N=2, L=9, CI=4, CO=6, k=3, stride=2, groups=2, layout="ncl"),
    dg.operator("conv_transpose3d", N=1, D=3, H=4, W=5, CI=2, CO=3, k=2, stride=2, dtype="f64"),
    dg.operator("scan", M=4, N=9, K=30, axis="1", dtype="bf16"),
    dg.operator("mean", rows=9, cols=300, dtype="f16"),
    dg.operator("var", rows=9, cols=300),
    dg.operator("layer_norm", rows=9, cols=70, dtype="bf16"),
    dg.operator("rms_norm", rows=9, cols=70, dtype="f64"),
    dg.operator("elementwise", rows=9, cols=70, epilogue="bias,gelu,residual"),
]
