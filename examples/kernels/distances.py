"""A C kernel with tiles, compared with numpy: `make demo` tunes it.

deepgen tune examples/kernels/distances.py m=1000 n=1000
"""

import numpy as np

import deepgen as dg


def in_numpy(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """One dimension at a time: all at once would need more memory and time."""
    distances = np.zeros((x.shape[0], y.shape[1]), x.dtype)
    for k in range(x.shape[1]):
        distances += np.abs(x[:, k, None] - y[k])
    return distances


kernel = dg.kernel(
    "distances.c",
    entry="distances",
    arguments=[
        dg.output("d", ("m", "n"), "f32"),
        dg.input("x", ("m", "dims"), "f32"),
        dg.input("y", ("dims", "n"), "f32"),
        dg.scalar("m", "i32"),
        dg.scalar("n", "i32"),
        dg.scalar("dims", "i32"),
    ],
    sizes={"m": 256, "n": 256, "dims": 128},
    knobs={"ROWS": [1, 2, 4, 8], "COLS": [4, 8, 16, 32, 64, 128], "STEPS": [1, 2, 4]},
    default={"ROWS": 1, "COLS": 32, "STEPS": 1},  # one row at a time, like a version without tiles
    reference=in_numpy,
    baseline=in_numpy,
    flops="3 * m * n * dims",
)
