"""The correlation of each pair of columns: sums, squares and products in one pass over the rows.

deepgen tune examples/triton/correlation.py --target cuda:native
"""

import numpy as np
import triton
import triton.language as tl

import deepgen as dg


@triton.jit
def correlation(out, data, points, variables, BLOCK: tl.constexpr, BLOCK_N: tl.constexpr):
    first = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    second = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    n = tl.arange(0, BLOCK_N)
    products = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    sum_a = tl.zeros((BLOCK,), dtype=tl.float32)
    sum_b = tl.zeros((BLOCK,), dtype=tl.float32)
    square_a = tl.zeros((BLOCK,), dtype=tl.float32)
    square_b = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, points, BLOCK_N):
        point = start + n
        left = data + point[None, :] * variables + first[:, None]
        right = data + point[:, None] * variables + second[None, :]
        a = tl.load(left, mask=(point[None, :] < points) & (first[:, None] < variables), other=0.0)
        b = tl.load(right, mask=(point[:, None] < points) & (second[None, :] < variables), other=0.0)
        products = tl.dot(a, b, products, input_precision="ieee")
        sum_a += tl.sum(a, axis=1)
        sum_b += tl.sum(b, axis=0)
        square_a += tl.sum(a * a, axis=1)
        square_b += tl.sum(b * b, axis=0)
    mean_a, mean_b = sum_a / points, sum_b / points
    together = products - points * mean_a[:, None] * mean_b[None, :]
    apart_a = tl.sqrt(square_a - points * mean_a * mean_a)
    apart_b = tl.sqrt(square_b - points * mean_b * mean_b)
    inside = (first[:, None] < variables) & (second[None, :] < variables)
    place = first[:, None] * variables + second[None, :]
    tl.store(out + place, together / (apart_a[:, None] * apart_b[None, :]), mask=inside)


def draw(rng, shape):
    """Correlated columns."""
    return rng.standard_normal(shape) + rng.standard_normal((shape[0], 1))


kernel = dg.kernel(
    correlation,
    arguments=[
        dg.output("out", ("variables", "variables"), "f32"),
        dg.input("data", ("points", "variables"), "f32", fill=draw),
        dg.scalar("points", "i32"),
        dg.scalar("variables", "i32"),
    ],
    sizes={"points": 2048, "variables": 1024},
    knobs={"BLOCK": [16, 32, 64, 128], "BLOCK_N": [16, 32, 64], "num_warps": [2, 4, 8], "num_stages": [1, 2, 3]},
    requires=["BLOCK * BLOCK >= num_warps * 128"],
    grid=["ceil_div(variables, BLOCK)", "ceil_div(variables, BLOCK)"],
    default={"BLOCK": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2},
    reference=lambda data: np.corrcoef(data.T),
    tolerance=(2e-5, 2e-5),
    flops="2 * points * variables * variables",
)
