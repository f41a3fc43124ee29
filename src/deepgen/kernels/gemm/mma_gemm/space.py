"""The space of the family on warp-wide products: its knobs, and what they require of each other and of the chip."""

from __future__ import annotations

from math import ceil

from deepgen.kernels.gemm.mma_gemm.formats import STEP_BYTES
from deepgen.kernels.gemm.mma_gemm.lower import along_k, spread
from deepgen.operators import Gemm
from deepgen.space import Expr, Space, divides, implies
from deepgen.targets import Gpu
from deepgen.vocabulary import dtype

RESERVED = 44  # registers for addresses, counters and copies under way
_LEAST_SLICE = 128  # elements of K; below it adding parts up costs more than it gains


def mma_space(name: str, gemm: Gemm, gpu: Gpu) -> Space:
    s, size = Space(name), dtype(gemm.a).bytes
    bm, bn = s.knob("BM", _tile_sizes(gemm.m)), s.knob("BN", _tile_sizes(gemm.n))
    bk = s.knob("BK", [64 // size, 128 // size, 256 // size])
    wm = s.knob("WM", [n for n in (16, 32, 48, 64) if n % _least(gemm, "A") == 0])
    wn = s.knob("WN", [n for n in (16, 32, 48, 64, 96, 128) if n % _least(gemm, "B") == 0])
    warps_k = s.knob("WARPS_K", [1, 2, 4])
    fragments = s.knob("FRAGMENTS", [1, 2])
    min_blocks = s.knob("MIN_BLOCKS", [1, 2, 3, 4, 6])
    s.require(divides(wm, bm), "warps cover the block's rows")
    s.require(divides(wn, bn), "warps cover the block's columns")
    steps = s.derive("steps", bk * size // STEP_BYTES)
    s.require(divides(warps_k * fragments, steps), "a tile has as many steps of K for each warp and set of fragments")
    _lines(s, gemm, bm, bn)

    threads = s.derive("threads", (bm // wm) * (bn // wn) * warps_k * gpu.warp)
    s.require(threads <= 512, "a block has no more than 16 warps")
    s.require(threads * min_blocks <= gpu.threads_per_sm, "so many blocks' threads fit in a multiprocessor")
    if gemm.m * gemm.n * gemm.batch > 1 << 20:
        s.require(bm * bn >= 2048, "tiles are not tiny where the result is large")
    registers = s.derive("registers", wm * wn // 32 + fragments * (wm + wn) // 4 + RESERVED)
    s.require(registers <= gpu.registers_per_thread, "sums and fragments fit in a thread's registers")
    s.require(registers * threads * min_blocks <= gpu.registers_per_sm, "so many blocks' registers fit")

    stages = s.knob("STAGES", [2, 3, 4, 5, 6, 8])
    s.require(implies(stages > 2, (stages - 1) * bk < max(gemm.k, 1)), "no stage stays empty")
    shared = s.derive("shared_bytes", (bm + bn) * bk * size * stages)
    s.require(shared <= gpu.shared_per_block, "tiles fit in shared memory")
    s.require((shared + gpu.shared_reserved) * min_blocks <= gpu.shared_per_sm, "so many blocks' tiles fit")
    s.require(implies(warps_k > 1, bm * bn * 4 <= shared), "sums of warps that share K fit where the tiles were")

    wide = s.knob("WIDE", [1, 2, 4] if along_k(gemm, "B") else [1])
    s.require(divides(wide * 8, wn), "columns are interleaved within a warp")
    _sharing(s, gemm, gpu, bk, min_blocks)
    return s


def _least(gemm: Gemm, side: str) -> int:
    return 32 if spread(gemm, side) else 16


def _lines(s: Space, gemm: Gemm, bm: Expr, bn: Expr) -> None:
    """Chunks are exchanged within a line: where lines are along rows, their length matters."""
    size = dtype(gemm.a).bytes
    for side, rows in (("A", bm), ("B", bn)):
        if not along_k(gemm, side):
            short = rows.isin([32 // size, 64 // size])
            s.require(short | divides(128 // size, rows), f"lines of {side}'s tile are 32, 64 or n times 128 bytes")


def _sharing(s: Space, gemm: Gemm, gpu: Gpu, bk: Expr, min_blocks: Expr) -> None:
    """How the work is shared out among blocks."""
    s.knob("MAPPING", [1, 4, 8, 16])
    fixup = s.knob("FIXUP", fixups(gemm, gpu))
    splits = s.knob("SPLITS", _splits(gemm, gpu), when=fixup.isin(["step", "last"]))
    blocks = s.knob("BLOCKS", [gpu.multiprocessors * n for n in (1, 2, 3, 4)], when=fixup == "stream")
    s.require(implies(fixup.isin(["step", "last"]), splits * bk <= gemm.k), "every part of K has a step")
    s.require(implies(fixup == "stream", blocks <= gpu.multiprocessors * min_blocks), "streaming blocks run at once")
    s.knob("GUARD", ["sizes"])


def _tile_sizes(size: int) -> list[int]:
    """Not more than twice what there is: the rest of the tile would be idle."""
    return [t for t in (16, 32, 48, 64, 96, 128, 192, 256) if t < 2 * size or t <= 32]


def fixups(gemm: Gemm, gpu: Gpu) -> list[str]:
    """K is divided where the tiles alone would not fill the chip a few times."""
    few = ceil(gemm.m / 64) * ceil(gemm.n / 64) * gemm.batch < 16 * gpu.multiprocessors
    deep = gemm.k >= 2 * _LEAST_SLICE
    return ["none", *(["stream"] if deep else []), *(["step", "last"] if few and deep else [])]


def _splits(gemm: Gemm, gpu: Gpu) -> list[int]:
    most = max(2, min(gemm.k // _LEAST_SLICE, 2 * gpu.multiprocessors))
    return [n for n in (2, 3, 4, 5, 6, 7, 8, 11, 14, 16, 22, 29, 33, 44, 66, 88, 132) if n <= most]
