"""Dropout with a seed: which elements are kept depends on the seed and their index, so results are reproducible.

deepgen tune examples/triton/dropout.py --target cuda:native
"""

import numpy as np
import triton
import triton.language as tl

import deepgen as dg


@triton.jit(do_not_specialize=["seed"])
def dropout(y, x, n, share, seed, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + place, mask=place < n, other=0.0)
    kept = tl.rand(seed, place) > share
    tl.store(y + place, tl.where(kept, value / (1 - share), 0.0), mask=place < n)


def uniform(seed, places):
    """The numbers of `tl.rand`: Philox with ten rounds, taking the first of four words."""
    words = [places.astype(np.uint64), *(np.zeros(len(places), np.uint64) for _ in range(3))]
    low, high = np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)
    mask = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        a, b = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        half = np.uint64(32)
        words = [(b >> half) ^ words[1] ^ low, b & mask, (a >> half) ^ words[3] ^ high, a & mask]
        low, high = low + np.uint64(0x9E3779B9) & mask, high + np.uint64(0xBB67AE85) & mask
    signed = words[0].astype(np.uint32).view(np.int32)
    return np.where(signed < 0, -(signed + 1), signed).astype(np.float32) * np.float32(4.6566127342e-10)


def reference(x, share, seed):
    kept = uniform(int(seed), np.arange(len(x))) > np.float32(share)
    return np.where(kept, x / (1.0 - np.float32(share)), 0.0)


kernel = dg.kernel(
    dropout,
    arguments=[
        dg.output("y", "n", "f32"),
        dg.input("x", "n", "f32", fill="normal"),
        dg.scalar("n", "i32"),
        dg.scalar("share", "f32", 0.25),
        dg.scalar("seed", "i32", 1234),
    ],
    sizes={"n": 1 << 24},
    knobs={"BLOCK": [256, 512, 1024, 2048, 4096, 8192], "num_warps": [1, 2, 4, 8, 16]},
    requires=["BLOCK >= 32 * num_warps", "BLOCK <= 4096 * num_warps"],
    grid="ceil_div(n, BLOCK)",
    reference=reference,
    tolerance=(1e-7, 1e-6),
    flops="2 * n",
)
