"""A script for Kernel Tuner: restrictions in three forms, metrics, and a random sample of the space."""

import numpy as np
from kernel_tuner import tune_kernel

SOURCE = """
#include <time.h>

extern "C" float stencil(float* out, const float* in) {
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int top = 1; top < HEIGHT - 1; top += block_size_y)
        for (int left = 1; left < WIDTH - 1; left += block_size_x)
            for (int y = top; y < top + block_size_y && y < HEIGHT - 1; y += rows)
                for (int r = 0; r < rows && y + r < HEIGHT - 1; r++)
                    for (int x = left; x < left + block_size_x && x < WIDTH - 1; x++) {
                        const float* here = in + (y + r) * WIDTH + x;
                        out[(y + r) * WIDTH + x] = 0.25f * (here[-WIDTH] + here[WIDTH] + here[-1] + here[1]);
                    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (end.tv_sec - start.tv_sec) * 1e3f + (end.tv_nsec - start.tv_nsec) * 1e-6f;
}
"""

width, height = 300, 200
image = np.random.default_rng(2).random((height, width)).astype(np.float32)
smooth = np.zeros_like(image)
expected = np.zeros_like(image)
expected[1:-1, 1:-1] = 0.25 * (image[:-2, 1:-1] + image[2:, 1:-1] + image[1:-1, :-2] + image[1:-1, 2:])

results, env = tune_kernel(
    "stencil",
    SOURCE.replace("WIDTH", str(width)).replace("HEIGHT", str(height)),
    (width, height),
    [smooth, image],
    {"block_size_x": [16, 64, 256], "block_size_y": [1, 4, 16], "rows": [1, 2, 4]},
    restrictions=[
        "block_size_x * block_size_y <= 1024",
        lambda p: p["rows"] <= p["block_size_y"],
        lambda p: p["block_size_x"] != 16 or p["rows"] == 1,
    ],
    answer=[expected, None],
    atol=1e-5,
    lang="C",
    compiler_options=["-O3"],
    metrics={
        "GFLOP/s": lambda p: 4 * width * height / (p["time"] * 1e6),
        "GB/s": f"8 * {width * height} / (time * 1e6)",
    },
    strategy="random_sample",
    strategy_options={"max_fevals": 4},
    iterations=5,
    quiet=True,
)
best = env["best_config"]
