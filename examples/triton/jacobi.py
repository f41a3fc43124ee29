"""One sweep of Jacobi's method on a grid: each inner point becomes the mean of its four neighbours.

deepgen tune examples/triton/jacobi.py --target cuda:native
"""

import triton
import triton.language as tl

import deepgen as dg


@triton.jit
def jacobi(new, old, rows, columns, BLOCK_Y: tl.constexpr, BLOCK_X: tl.constexpr):
    y = tl.program_id(1) * BLOCK_Y + tl.arange(0, BLOCK_Y)[:, None]
    x = tl.program_id(0) * BLOCK_X + tl.arange(0, BLOCK_X)[None, :]
    inside = (y < rows) & (x < columns)
    inner = (y > 0) & (y < rows - 1) & (x > 0) & (x < columns - 1)
    place = y * columns + x
    edge = tl.load(old + place, mask=inside & (inner == 0), other=0.0)
    above = tl.load(old + place - columns, mask=inner, other=0.0)
    below = tl.load(old + place + columns, mask=inner, other=0.0)
    left = tl.load(old + place - 1, mask=inner, other=0.0)
    right = tl.load(old + place + 1, mask=inner, other=0.0)
    tl.store(new + place, tl.where(inner, 0.25 * (above + below + left + right), edge), mask=inside)


def reference(old):
    new = old.copy()
    new[1:-1, 1:-1] = 0.25 * (old[:-2, 1:-1] + old[2:, 1:-1] + old[1:-1, :-2] + old[1:-1, 2:])
    return new


kernel = dg.kernel(
    jacobi,
    arguments=[
        dg.output("new", ("rows", "columns"), "f32"),
        dg.input("old", ("rows", "columns"), "f32"),
        dg.scalar("rows", "i32"),
        dg.scalar("columns", "i32"),
    ],
    sizes={"rows": 4096, "columns": 4096},
    knobs={"BLOCK_Y": [1, 2, 4, 8, 16, 32], "BLOCK_X": [64, 128, 256, 512, 1024], "num_warps": [1, 2, 4, 8]},
    requires=["BLOCK_Y * BLOCK_X >= 32 * num_warps", "BLOCK_Y * BLOCK_X <= 1024 * num_warps"],
    grid=["ceil_div(columns, BLOCK_X)", "ceil_div(rows, BLOCK_Y)"],
    default={"BLOCK_Y": 4, "BLOCK_X": 256, "num_warps": 4},
    reference=reference,
    flops="4 * rows * columns",
)
