"""Softmax over rows that fit into one block.

deepgen tune examples/triton/softmax.py --target cuda:native
"""

import numpy as np
import triton
import triton.language as tl

import deepgen as dg


@triton.jit
def softmax(y, x, rows, columns, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (column < columns)
    place = row * columns + column
    value = tl.load(x + place, mask=inside, other=-float("inf"))
    # A row past the last one is all minus infinity: its exponentials are NaN, and nobody stores them.
    raised = tl.exp(value - tl.max(value, axis=1)[:, None])
    tl.store(y + place, raised / tl.sum(raised, axis=1)[:, None], mask=inside)


def reference(x):
    raised = np.exp(x - x.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


kernel = dg.kernel(
    softmax,
    arguments=[
        dg.output("y", ("rows", "columns"), "f32"),
        dg.input("x", ("rows", "columns"), "f32"),
        dg.scalar("rows", "i32"),
        dg.scalar("columns", "i32"),
    ],
    sizes={"rows": 8192, "columns": 1000},
    knobs={"COLUMNS": [1024, 2048, 4096, 8192], "ROWS": [1, 2, 4, 8], "num_warps": [1, 2, 4, 8]},
    # The smallest power of two that holds a row.
    requires=["COLUMNS >= columns", "COLUMNS < 2 * columns or COLUMNS == 1024", "COLUMNS * ROWS <= 16384"],
    grid="ceil_div(rows, ROWS)",
    reference=reference,
    tolerance=(1e-7, 1e-5),
    flops="5 * rows * columns",
)
