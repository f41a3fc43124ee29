"""Attention without storing the scores: a block of queries goes through all keys and values once.

deepgen tune examples/triton/attention.py --target cuda:native
"""

import numpy as np
import triton
import triton.language as tl

import deepgen as dg

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def attention(
    out, q, k, v, length, scale, DEPTH: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    head = tl.program_id(1).to(tl.int64) * length * DEPTH
    row = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    depth = tl.arange(0, DEPTH)
    column = tl.arange(0, BLOCK_K)
    mine = head + row[:, None] * DEPTH + depth[None, :]
    query = tl.load(q + mine, mask=row[:, None] < length, other=0.0)
    largest = tl.full((BLOCK_Q,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_Q,), dtype=tl.float32)
    answer = tl.zeros((BLOCK_Q, DEPTH), dtype=tl.float32)
    for start in range(0, length, BLOCK_K):
        inside = start + column < length
        across = head + (start + column)[None, :] * DEPTH + depth[:, None]
        keys = tl.load(k + across, mask=inside[None, :], other=0.0)
        # Powers of two: the exponential of e would be one multiplication more for each score.
        score = tl.dot(query, keys) * (scale * LOG2_E)
        score = tl.where(inside[None, :], score, -float("inf"))
        larger = tl.maximum(largest, tl.max(score, axis=1))
        weight = tl.exp2(score - larger[:, None])
        shrink = tl.exp2(largest - larger)
        values = tl.load(v + head + (start + column)[:, None] * DEPTH + depth[None, :], mask=inside[:, None], other=0.0)
        answer = tl.dot(weight.to(values.dtype), values, answer * shrink[:, None])
        total = total * shrink + tl.sum(weight, axis=1)
        largest = larger
    tl.store(out + mine, (answer / total[:, None]).to(out.dtype.element_ty), mask=row[:, None] < length)


def reference(q, k, v, scale):
    scores = q @ k.transpose(0, 2, 1) * scale
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    return weights / weights.sum(axis=2, keepdims=True) @ v


kernel = dg.kernel(
    attention,
    arguments=[
        dg.output("out", ("heads", "length", "depth"), "f16"),
        dg.input("q", ("heads", "length", "depth"), "f16", fill="normal"),
        dg.input("k", ("heads", "length", "depth"), "f16", fill="normal"),
        dg.input("v", ("heads", "length", "depth"), "f16", fill="normal"),
        dg.scalar("length", "i32"),
        dg.scalar("scale", "f32", 0.125),
    ],
    sizes={"heads": 32, "length": 1024, "depth": 64},
    knobs={
        "BLOCK_Q": [32, 64, 128, 256],
        "BLOCK_K": [32, 64, 128],
        "num_warps": [4, 8],
        "num_stages": [1, 2, 3, 4],
    },
    requires=["BLOCK_Q * BLOCK_K <= 16384", "BLOCK_Q >= 8 * num_warps"],
    defines={"DEPTH": "depth"},
    grid=["ceil_div(length, BLOCK_Q)", "heads"],
    default={"BLOCK_Q": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 2},
    reference=reference,
    tolerance=(4e-3, 4e-3),
    flops="4 * heads * length * length * depth",
)
