"""A product of two matrices of i8, whose sums are i32: benchmarks/triton_cpu.py measures it."""

# Triton reads the annotations of its kernels: no `from __future__ import annotations` here.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"
import triton
import triton.language as tl


@triton.jit
def matmul(
    a, b, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    across = tl.cdiv(N, BLOCK_N)
    band = tl.program_id(0) // (GROUP * across)
    inside = tl.program_id(0) % (GROUP * across)
    height = min(tl.cdiv(M, BLOCK_M) - band * GROUP, GROUP)
    m = (band * GROUP + inside % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = inside // height * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    rows, columns = m[:, None] < M, n[None, :] < N
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32)
    for start in range(0, K, BLOCK_K):
        x = tl.load(a + m[:, None] * stride_am + (start + k)[None, :] * stride_ak, mask=rows)
        y = tl.load(b + (start + k)[:, None] * stride_bk + n[None, :] * stride_bn, mask=columns)
        total += tl.dot(x, y)
    tl.store(c + m[:, None] * N + n[None, :], total, mask=rows & columns)
