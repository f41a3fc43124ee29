"""A product of two matrices, with blocks in an order that keeps rows of A and columns of B in the cache.

deepgen tune examples/triton/matmul.py --target cuda:native
"""

import triton
import triton.language as tl

import deepgen as dg


@triton.jit
def matmul(
    a, b, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    # Bands of GROUP blocks of rows, each walked through column by column.
    block = tl.program_id(0)
    down, across = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    band = block // (GROUP * across)
    height = min(down - band * GROUP, GROUP)
    block_m = band * GROUP + block % (GROUP * across) % height
    block_n = block % (GROUP * across) // height

    m = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    # Rows and columns past the end are read from the start instead; they are not stored.
    left = a + (m % M)[:, None] * stride_am + k[None, :] * stride_ak
    right = b + k[:, None] * stride_bk + (n % N)[None, :] * stride_bn
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        x = tl.load(left, mask=k[None, :] < K - start, other=0.0)
        y = tl.load(right, mask=k[:, None] < K - start, other=0.0)
        total = tl.dot(x, y, total)
        left += BLOCK_K * stride_ak
        right += BLOCK_K * stride_bk
    place = c + m[:, None] * N + n[None, :]
    tl.store(place, total.to(c.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))


kernel = dg.kernel(
    matmul,
    arguments=[
        dg.input("a", ("M", "K"), "f16"),
        dg.input("b", ("K", "N"), "f16"),
        dg.output("c", ("M", "N"), "f16"),
        dg.scalar("M", "i32"),
        dg.scalar("N", "i32"),
        dg.scalar("K", "i32"),
        dg.scalar("stride_am", "i32", "stride_a_0"),
        dg.scalar("stride_ak", "i32", "stride_a_1"),
        dg.scalar("stride_bk", "i32", "stride_b_0"),
        dg.scalar("stride_bn", "i32", "stride_b_1"),
    ],
    sizes={"M": 2048, "N": 2048, "K": 2048},
    knobs={
        "BLOCK_M": [64, 128, 256],
        "BLOCK_N": [64, 128, 256],
        "BLOCK_K": [32, 64],
        "GROUP": [1, 8],
        "num_warps": [4, 8],
        "num_stages": [2, 3, 4],
    },
    requires=[
        "BLOCK_M * BLOCK_N <= 32768",
        "(BLOCK_M + BLOCK_N) * BLOCK_K * 2 * num_stages <= 200 * 1024",  # shared memory
        "BLOCK_M * BLOCK_N >= num_warps * 1024",
    ],
    grid="ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N)",
    default={"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP": 8, "num_warps": 8, "num_stages": 3},
    reference=lambda a, b: a @ b,
    flops="2 * M * N * K",
)
