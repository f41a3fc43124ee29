"""Layer normalisation of rows, with weights and a bias for each column.

deepgen tune examples/triton/layer_norm.py --target cuda:native
"""

import numpy as np
import triton
import triton.language as tl

import deepgen as dg


@triton.jit
def layer_norm(y, x, weight, bias, columns, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    place = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        total += tl.load(x + row + start + place, mask=start + place < columns, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / columns
    squares = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        value = tl.load(x + row + start + place, mask=start + place < columns, other=0.0).to(tl.float32)
        away = tl.where(start + place < columns, value - mean, 0.0)
        squares += away * away
    scale = tl.rsqrt(tl.sum(squares, axis=0) / columns + epsilon)
    for start in range(0, columns, BLOCK):
        inside = start + place < columns
        value = tl.load(x + row + start + place, mask=inside, other=0.0).to(tl.float32)
        by = tl.load(weight + start + place, mask=inside, other=0.0).to(tl.float32)
        plus = tl.load(bias + start + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(y + row + start + place, ((value - mean) * scale * by + plus).to(y.dtype.element_ty), mask=inside)


def reference(x, weight, bias, epsilon):
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + epsilon) * weight + bias


kernel = dg.kernel(
    layer_norm,
    arguments=[
        dg.output("y", ("rows", "columns"), "f16"),
        dg.input("x", ("rows", "columns"), "f16", fill="normal"),
        dg.input("weight", "columns", "f16", fill=("uniform", 0.5, 1.5)),
        dg.input("bias", "columns", "f16", fill=("uniform", -1.0, 1.0)),
        dg.scalar("columns", "i32"),
        dg.scalar("epsilon", "f32", 1e-5),
    ],
    sizes={"rows": 8192, "columns": 4096},
    knobs={"BLOCK": [256, 512, 1024, 2048, 4096, 8192], "num_warps": [1, 2, 4, 8, 16]},
    requires=["BLOCK >= 32 * num_warps", "BLOCK < 2 * columns or BLOCK == 256"],
    grid="rows",
    reference=reference,
    tolerance=(2e-3, 2e-3),
    flops="8 * rows * columns",
)
