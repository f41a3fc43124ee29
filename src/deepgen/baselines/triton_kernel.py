"""A matrix product in Triton, for its autotuner. Imported in the worker only, by the baseline."""

# Triton reads the annotations of its kernels: no `from __future__ import annotations` here.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"
from typing import Any

import triton
import triton.language as tl

_TILES = ((128, 256, 64, 8, 3), (256, 128, 64, 8, 3), (128, 128, 64, 8, 4), (128, 128, 64, 4, 4), (128, 64, 64, 4, 4),
          (64, 128, 64, 4, 4), (64, 256, 64, 8, 4), (64, 64, 64, 4, 5), (32, 128, 64, 4, 5), (16, 128, 128, 4, 4),
          (16, 64, 128, 4, 5), (128, 128, 32, 4, 4), (64, 64, 32, 4, 4))  # fmt: skip


def configs() -> Any:
    """Tiles of C, steps along K, warps and stages, for large products to narrow ones."""
    return [
        triton.Config({"ROWS": rows, "COLUMNS": columns, "DEPTH": depth, "BAND": 8}, num_warps=warps, num_stages=stages)
        for rows, columns, depth, warps, stages in _TILES
    ]


@triton.jit
def product(
    a, b, c, M, N, K, a_row, a_column, b_row, b_column, c_row,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """One tile of C. Tiles are grouped into bands of rows, so that concurrent programs read the same parts of B."""
    number, down, across = tl.program_id(0), tl.cdiv(M, ROWS), tl.cdiv(N, COLUMNS)
    band = number // (BAND * across)
    height = tl.minimum(down - band * BAND, BAND)
    within = number % (BAND * across)
    rows = (band * BAND + within % height) * ROWS + tl.arange(0, ROWS)
    columns = (within // height) * COLUMNS + tl.arange(0, COLUMNS)
    steps = tl.arange(0, DEPTH)
    left = a + rows[:, None] * a_row + steps[None, :] * a_column
    right = b + steps[:, None] * b_row + columns[None, :] * b_column
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for done in range(0, K, DEPTH):
        some = steps < K - done
        x = tl.load(left, mask=(rows < M)[:, None] & some[None, :], other=0.0)
        y = tl.load(right, mask=some[:, None] & (columns < N)[None, :], other=0.0)
        total = tl.dot(x, y, total, input_precision="ieee")
        left += DEPTH * a_column
        right += DEPTH * b_row
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    tl.store(c + rows[:, None] * c_row + columns[None, :], total.to(c.dtype.element_ty), mask=inside)


def tuned() -> Any:
    """The kernel with Triton's autotuner, which times all configs at each new shape."""
    return triton.autotune(configs=configs(), key=["M", "N", "K"])(product)


def launch(kernel: Any, a: Any, b: Any, c: Any) -> None:
    (m, k), n = a.shape, b.shape[1]

    def grid(meta: Any) -> Any:
        return (triton.cdiv(m, meta["ROWS"]) * triton.cdiv(n, meta["COLUMNS"]),)

    kernel[grid](a, b, c, m, n, k, *a.stride(), *b.stride(), c.stride(0))
