"""A CUDA kernel with two knobs:

deepgen tune vadd_cuda.py n=16777216 --target cuda:native
"""

import deepgen as dg

kernel = dg.kernel(
    "vadd.cu",
    entry="vadd",
    arguments=[
        dg.output("c", ("n",), "f32"),
        dg.input("a", ("n",), "f32"),
        dg.input("b", ("n",), "f32"),
        dg.scalar("n", "i32"),
    ],
    sizes={"n": 1 << 24},
    knobs={"BLOCK": [64, 128, 256, 512], "VEC": [1, 2, 4]},
    requires=["BLOCK * VEC <= 1024"],
    grid=["ceil_div(n, BLOCK * VEC)"],
    block=["BLOCK"],
    reference=lambda a, b: a + b,
    flops="n",
    bytes="12 * n",
)
