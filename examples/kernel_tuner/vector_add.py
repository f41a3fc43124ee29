"""A script for Kernel Tuner. For deepgen, change only the import: `from deepgen_formats.kernel_tuner import
tune_kernel`.
"""

import numpy as np
from kernel_tuner import tune_kernel

SOURCE = """
#include <time.h>

extern "C" float vector_add(float* c, const float* a, const float* b, int n) {
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int block = 0; block < n; block += block_size_x)
        for (int i = block; i < block + block_size_x && i < n; i += vector)
            for (int j = 0; j < vector; j++) c[i + j] = a[i + j] + b[i + j];
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (end.tv_sec - start.tv_sec) * 1e3f + (end.tv_nsec - start.tv_nsec) * 1e-6f;
}
"""

size = 1 << 16
rng = np.random.default_rng(1)
a, b = (rng.standard_normal(size).astype(np.float32) for _ in range(2))
c = np.zeros_like(a)

results, env = tune_kernel(
    "vector_add",
    SOURCE,
    size,
    [c, a, b, np.int32(size)],
    {"block_size_x": [64, 1024], "vector": [1, 4]},
    answer=[a + b, None, None, None],
    lang="C",
    compiler_options=["-O3"],
    quiet=True,
)
