"""Rotary position embedding: the two halves of each head's vector are rotated by an angle that depends on the position.

deepgen tune examples/triton/rope.py --target cuda:native
"""

import numpy as np
import triton
import triton.language as tl

import deepgen as dg


@triton.jit
def rope(y, x, cosines, sines, heads, HALF: tl.constexpr, HEADS: tl.constexpr):
    position = tl.program_id(0)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    half = tl.arange(0, HALF)[None, :]
    cosine = tl.load(cosines + position * HALF + half)
    sine = tl.load(sines + position * HALF + half)
    place = (position * heads + head) * (2 * HALF) + half
    first = tl.load(x + place, mask=head < heads, other=0.0).to(tl.float32)
    second = tl.load(x + place + HALF, mask=head < heads, other=0.0).to(tl.float32)
    tl.store(y + place, (first * cosine - second * sine).to(y.dtype.element_ty), mask=head < heads)
    tl.store(y + place + HALF, (second * cosine + first * sine).to(y.dtype.element_ty), mask=head < heads)


def reference(x, cosines, sines):
    first, second = np.split(x, 2, axis=2)
    cosine, sine = cosines[:, None, :], sines[:, None, :]
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=2)


kernel = dg.kernel(
    rope,
    arguments=[
        dg.output("y", ("positions", "heads", "2 * half"), "f16"),
        dg.input("x", ("positions", "heads", "2 * half"), "f16", fill="normal"),
        dg.input("cosines", ("positions", "half"), "f32", fill=("uniform", -1.0, 1.0)),
        dg.input("sines", ("positions", "half"), "f32", fill=("uniform", -1.0, 1.0)),
        dg.scalar("heads", "i32"),
    ],
    sizes={"positions": 4096, "heads": 32, "half": 64},
    knobs={"HEADS": [1, 2, 4, 8, 16, 32], "num_warps": [1, 2, 4, 8]},
    requires=["HEADS < 2 * heads"],
    defines={"HALF": "half"},
    grid=["positions", "ceil_div(heads, HEADS)"],
    reference=reference,
    tolerance=(2e-3, 2e-3),
    flops="6 * positions * heads * half",
)
