"""A GEMM in Triton, tuned by Triton's own autotuner: a rival for the GPU benchmarks. Needs Triton and a GPU.

One program a tile, by pointers or by tensor descriptors (Hopper's copy engine), tiles in groups that share L2. Triton
compiles on one core; run as a program this compiles for the disk's cache on many, and touches no GPU:

    python benchmarks/triton_gemm.py bf16 f16
"""

# Triton reads the annotations of its kernels: no `from __future__ import annotations` here.
# mypy: disable-error-code="import-not-found, untyped-decorator, no-untyped-def"
import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "src")]

from common import run_main  # noqa: E402

try:
    import triton
    import triton.language as tl
except ModuleNotFoundError as error:
    if __name__ == "__main__":
        raise SystemExit(f"{error}: pip install triton") from None
    raise

# BM, BN, BK in elements of two bytes, warps, stages
TILES = (
    (128, 256, 64, 8, 3),
    (256, 128, 64, 8, 3),
    (128, 128, 64, 8, 4),
    (128, 128, 64, 4, 4),
    (128, 64, 64, 4, 5),
    (64, 128, 64, 4, 5),
    (64, 64, 128, 4, 4),
    (64, 32, 128, 4, 6),
    (16, 64, 256, 4, 4),
)
EXACT_AFTER = 128


def _configs() -> list[Any]:
    return [
        triton.Config({"BM": bm, "BN": bn, "BK": bk, "GROUP": 8}, num_warps=warps, num_stages=stages)
        for bm, bn, bk, warps, stages in TILES
    ]


def _quick(call: Callable[[], Any], quantiles: Any) -> Any:
    """Triton's own timing, which empties the L2 between calls, for fewer milliseconds than usual."""
    return triton.testing.do_bench(call, warmup=3, rep=12, quantiles=quantiles)


@triton.jit
def _place(tile, M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    group = tile // (GROUP * tiles_n)
    first = group * GROUP
    height = min(tiles_m - first, GROUP)
    inside = tile % (GROUP * tiles_n)
    return first + inside % height, inside // height


@triton.autotune(configs=_configs(), key=["M", "N", "K", "batch"], do_bench=_quick)
@triton.jit
def _by_pointers(
    a, b, c, M, N, K, batch, stride_a, stride_b, stride_c, am, ak, bk, bn,
    SUMS: tl.constexpr, EXACT: tl.constexpr, BYTES: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    m, n = _place(tl.program_id(0), M, N, BM, BN, GROUP)
    matrix = tl.program_id(1).to(tl.int64)
    STEP: tl.constexpr = BK * 2 // BYTES
    rows = m * BM + tl.arange(0, BM)
    columns = n * BN + tl.arange(0, BN)
    steps = tl.arange(0, STEP)
    # Rows past the edge read others: their sums are not stored.
    left = a + matrix * stride_a + (rows % M)[:, None].to(tl.int64) * am + steps[None, :] * ak
    right = b + matrix * stride_b + steps[:, None] * bk + (columns % N)[None, :].to(tl.int64) * bn
    sums = tl.zeros((BM, BN), dtype=SUMS)
    for k in range(0, tl.cdiv(K, STEP)):
        x = tl.load(left, mask=steps[None, :] < K - k * STEP, other=0.0)
        y = tl.load(right, mask=steps[:, None] < K - k * STEP, other=0.0)
        sums = tl.dot(x, y, sums, max_num_imprecise_acc=EXACT, out_dtype=SUMS)
        left += STEP * ak
        right += STEP * bk
    out = c + matrix * stride_c + rows[:, None].to(tl.int64) * N + columns[None, :]
    tl.store(out, sums.to(c.dtype.element_ty), mask=(rows[:, None] < M) & (columns[None, :] < N))


@triton.autotune(configs=_configs(), key=["M", "N", "K"], do_bench=_quick)
@triton.jit
def _by_descriptors(
    a, b, c, M, N, K,
    SUMS: tl.constexpr, EXACT: tl.constexpr, BYTES: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    STEP: tl.constexpr = BK * 2 // BYTES  # layout nt, one matrix
    m, n = _place(tl.program_id(0), M, N, BM, BN, GROUP)
    left = tl.make_tensor_descriptor(a, shape=[M, K], strides=[K, 1], block_shape=[BM, STEP])
    right = tl.make_tensor_descriptor(b, shape=[N, K], strides=[K, 1], block_shape=[BN, STEP])
    result = tl.make_tensor_descriptor(c, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    sums = tl.zeros((BM, BN), dtype=SUMS)
    for k in range(0, tl.cdiv(K, STEP)):
        x = left.load([m * BM, k * STEP])
        y = right.load([n * BN, k * STEP])
        sums = tl.dot(x, y.T, sums, max_num_imprecise_acc=EXACT, out_dtype=SUMS)
    result.store([m * BM, n * BN], sums.to(c.dtype.element_ty))


def _fixed(problem: Any) -> dict[str, Any]:
    """What is constant in a kernel beside its config."""
    eight = problem.a.startswith("f8")
    return {
        "SUMS": tl.int32 if problem.acc == "i32" else tl.float32,
        # So many products of 8-bit floats are added up on the tensor cores before they are added in f32.
        "EXACT": EXACT_AFTER if eight and not problem.fast_sums else None,
        "BYTES": {"bf16": 2, "f16": 2, "tf32": 4}.get(problem.a, 1),
    }


def calls(bench: Any) -> dict[str, Callable[[], None]]:
    """The ways of calling that serve a problem; the first call of each tunes it."""
    torch, p = bench.torch, bench.problem
    fixed = _fixed(p)
    am, ak = bench.left.stride()[1:]
    bk, bn = bench.right_side.stride()[1:]

    def memory(size: int, alignment: int, stream: int | None) -> Any:
        return torch.empty(size, device="cuda", dtype=torch.int8)

    def tiles(meta: Any) -> int:
        return int(triton.cdiv(p.m, meta["BM"]) * triton.cdiv(p.n, meta["BN"]))

    def by_pointers() -> None:
        strides = (p.m * p.k, p.n * p.k, p.m * p.n, am, ak, bk, bn)
        _by_pointers[lambda meta: (tiles(meta), p.batch)](
            bench.a, bench.b, bench.c, p.m, p.n, p.k, p.batch, *strides, **fixed
        )

    def by_descriptors() -> None:
        _by_descriptors[lambda meta: (tiles(meta),)](bench.a, bench.b, bench.c, p.m, p.n, p.k, **fixed)

    found = {"pointers": by_pointers}
    if p.batch == 1 and p.layout == "nt":
        triton.set_allocator(memory)
        found["descriptors"] = by_descriptors
    return found


def _compile(job: tuple[str, str, int]) -> str:
    """One kernel into the cache, as the calls on the suite's shapes will ask for it."""
    import torch

    from gpu_bench import DTYPES, operator

    dtype, kind, number = job
    problem = operator((8 if kind == "batch" else 1, 1024, 1024, 1024), dtype)
    config = _configs()[number]
    given = getattr(torch, DTYPES[problem.a][0])
    out = torch.int32 if problem.c == "i32" else getattr(torch, DTYPES[problem.c][0])
    wide = 1024 * 1024
    sizes: tuple[int, ...] = (1024, 1024, 1024)
    if kind != "descriptors":
        sizes = (*sizes, problem.batch, wide, wide, wide, 1024, 1, 1, 1024)
    kernel = _by_descriptors if kind == "descriptors" else _by_pointers
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    try:
        kernel.fn.warmup(given, given, out, *sizes, grid=(1, 1), **config.kwargs, **_fixed(problem), **options)
    except Exception as error:  # whatever the compiler says: the autotuner will meet it again
        return f"{job}: {type(error).__name__} {str(error)[:200]}"
    return ""


def main() -> None:
    import torch  # noqa: F401 (once, and not in each process)

    jobs = [
        (dtype, kind, number)
        for dtype in sys.argv[1:]
        for kind in ("descriptors", "pointers", "batch")
        for number in range(len(TILES))
    ]
    with multiprocessing.get_context("fork").Pool(16) as pool:
        for told in pool.imap_unordered(_compile, jobs):
            if told:
                print(told, flush=True)


if __name__ == "__main__":
    run_main(main)
