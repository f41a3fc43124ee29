"""The product of a mixture of experts: each slot's token times its expert's matrix, scaled by the slot's gate.

Slots are sorted by expert, 64 at a time; a slot that holds no token (its number is `tokens`) gives zeros.

deepgen tune examples/triton/fused_moe.py --target cuda:native
"""

import numpy as np
import triton
import triton.language as tl

import deepgen as dg

SLOTS = tl.constexpr(64)  # of one expert


@triton.jit
def fused_moe(
    y, x, weights, slots, experts, gates, tokens, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    token = tl.load(slots + row)
    held = token < tokens
    expert = tl.load(experts + tl.program_id(0) * BLOCK_M // SLOTS).to(tl.int64)
    left = x + token[:, None].to(tl.int64) * K + k[None, :]
    right = weights + expert * N * K + column[None, :] * K + k[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        inside = start + k < K
        a = tl.load(left + start, mask=held[:, None] & inside[None, :], other=0.0)
        b = tl.load(right + start, mask=inside[:, None] & (column[None, :] < N), other=0.0)
        total = tl.dot(a, b, total)
    total *= tl.load(gates + row)[:, None]
    tl.store(y + row[:, None] * N + column[None, :], total.to(y.dtype.element_ty), mask=column[None, :] < N)


def reference(x, weights, slots, experts, gates, tokens):
    y = np.zeros((len(slots), weights.shape[1]))
    for block, expert in enumerate(experts.astype(np.int64)):
        rows = np.arange(64 * block, 64 * block + 64)
        rows = rows[slots[rows] < tokens]
        y[rows] = x[slots[rows].astype(np.int64)] @ weights[expert].T * gates[rows, None]
    return y


kernel = dg.kernel(
    fused_moe,
    arguments=[
        dg.output("y", ("64 * blocks", "N"), "f16"),
        dg.input("x", ("tokens", "K"), "f16", fill="normal"),
        dg.input("weights", ("all_experts", "N", "K"), "f16", fill="normal"),
        dg.input("slots", "64 * blocks", "i32", fill=("integers", 0, "tokens")),
        dg.input("experts", "blocks", "i32", fill=("integers", 0, "all_experts - 1")),
        dg.input("gates", "64 * blocks", "f32", fill=("uniform", 0.0, 1.0)),
        dg.scalar("tokens", "i32"),
        dg.scalar("N", "i32"),
        dg.scalar("K", "i32"),
    ],
    sizes={"blocks": 64, "tokens": 2048, "all_experts": 8, "N": 1024, "K": 1024},
    knobs={
        "BLOCK_M": [16, 32, 64],
        "BLOCK_N": [32, 64, 128, 256],
        "BLOCK_K": [32, 64, 128],
        "num_warps": [4, 8],
        "num_stages": [2, 3, 4],
    },
    requires=["(BLOCK_M + BLOCK_N) * BLOCK_K * 2 * num_stages <= 200 * 1024", "BLOCK_M * BLOCK_N >= num_warps * 256"],
    grid=["64 * blocks // BLOCK_M", "ceil_div(N, BLOCK_N)"],
    default={"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 4, "num_stages": 3},
    reference=reference,
    tolerance=(1e-1, 4e-3),
    flops="128 * blocks * N * K",
)
