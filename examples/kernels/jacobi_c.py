"""A C kernel with OpenMP; the number of threads is a knob.

deepgen tune jacobi_c.py rows=2048 cols=2048
"""

import numpy as np

import deepgen as dg


def sweep(grid: np.ndarray) -> np.ndarray:
    following = grid.copy()
    following[1:-1, 1:-1] = (grid[1:-1, :-2] + grid[1:-1, 2:] + grid[:-2, 1:-1] + grid[2:, 1:-1]) / 4
    return following


kernel = dg.kernel(
    "jacobi.c",
    entry="jacobi",
    arguments=[
        dg.output("next", ("rows", "cols"), "f32"),
        dg.input("grid", ("rows", "cols"), "f32"),
        dg.scalar("rows", "i32"),
        dg.scalar("cols", "i32"),
    ],
    sizes={"rows": 1024, "cols": 1024},
    knobs={"ROWS": [1, 4, 16, 64], "COLS": [64, 256, 1024, 4096], "THREADS": [1, 2]},
    flags=["-fopenmp"],
    reference=sweep,
    flops="4 * (rows - 2) * (cols - 2)",
)
