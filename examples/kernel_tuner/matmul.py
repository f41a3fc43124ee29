"""A script for Kernel Tuner: a source in a separate file, custom block size names, and no grid divisors."""

import tempfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
from kernel_tuner import tune_kernel

SOURCE = """
#include <time.h>

extern "C" float matmul(float* c, const float* a, const float* b, int n) {
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int i = 0; i < n * n; i++) c[i] = 0.0f;
    for (int from = 0; from < n; from += tile_k)
        for (int i = 0; i < n; i++)
            for (int k = from; k < from + tile_k; k += unroll)
                for (int u = 0; u < unroll; u++)
                    for (int j = 0; j < n; j++) c[i * n + j] += a[i * n + k + u] * b[(k + u) * n + j];
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (end.tv_sec - start.tv_sec) * 1e3f + (end.tv_nsec - start.tv_nsec) * 1e-6f;
}
"""

n = 64
rng = np.random.default_rng(3)
a, b = (rng.random((n, n)).astype(np.float32) for _ in range(2))
c = np.zeros_like(a)
tune_params = OrderedDict(threads=[1], tile_k=[8, 64], unroll=[1, 2])

with tempfile.TemporaryDirectory() as folder:
    source = Path(folder) / "matmul.cpp"
    source.write_text(SOURCE)
    results, env = tune_kernel(
        "matmul",
        str(source),
        (n, n),
        [c, a, b, np.int32(n)],
        tune_params,
        grid_div_x=["threads"],
        grid_div_y=[],
        block_size_names=["threads"],
        answer=[a @ b, None, None, None],
        atol=1e-3,
        lang="C",
        verbose=False,
        quiet=True,
    )
