"""The space of the family for thin operands: its knobs, and what they require of each other and of the chip."""

from __future__ import annotations

from typing import TypeVar

from deepgen.kernels.gemm.mma_gemm.formats import WIDEST, widened
from deepgen.kernels.gemm.skinny_gemm.lower import BLOCK_BYTES, sides
from deepgen.operators import Gemm
from deepgen.space import Expr, Space, implies, maximum, where
from deepgen.targets import Gpu
from deepgen.vocabulary import dtype

Count = TypeVar("Count", int, Expr)


def registers(gemm: Gemm, gpu: Gpu, sums: Count, loads: Count) -> Count:
    """With those for addresses, counters, the thin operand, and words that were transposed or widened."""
    side = sides(gemm)
    if not side.large_along:
        return sums + 2 * loads + 76
    needed = sums + 2 * loads + (52 if side.thin_along or dtype(gemm.a).bytes > 1 else 84)
    return needed + sums + loads + side.padded if widened(gemm, gpu) else needed


def skinny_space(name: str, gemm: Gemm, gpu: Gpu) -> Space:
    s, side, size = Space(name), sides(gemm), dtype(gemm.a).bytes
    # Where the large matrix is contiguous along rows, a lane owns as many of them as a load has.
    width = WIDEST // size
    tiles = s.knob("TILES", [1, 2, 4] if side.large_along else [width // 2])
    warps_r, warps_k = s.knob("WARPS_R", [1, 2, 4, 8]), s.knob("WARPS_K", [1, 2, 4, 8, 16])
    unroll = s.knob("UNROLL", [1, 2, 4, 8])
    min_blocks = s.knob("MIN_BLOCKS", [1, 2, 3, 4, 6, 8])
    threads = s.derive("threads", warps_r * warps_k * gpu.warp)
    s.require((threads >= 64) & (threads <= 512), "a block has 2 to 16 warps")
    s.require(threads * min_blocks <= gpu.threads_per_sm, "so many blocks' threads fit in a multiprocessor")
    sums = tiles * (2 * side.padded if side.plain else side.padded // 2)
    loads = unroll * (tiles * 2 if side.large_along else 4 * (4 // size)) * 4
    needed = s.derive("registers", registers(gemm, gpu, sums, loads))
    s.require(needed <= gpu.registers_per_thread, "sums and loads under way fit in a thread's registers")
    s.require(needed * threads * min_blocks <= gpu.registers_per_sm, "so many blocks' registers fit")
    s.require(loads * 4 * threads * min_blocks >= 16 << 10, "enough is on its way to keep the memory busy")

    round_k = s.derive("round", unroll * warps_k * (BLOCK_BYTES // size))
    splits = s.knob("SPLITS", [n for n in (1, 2, 3, 4, 6, 8, 12, 16) if n == 1 or n * 256 <= gemm.k])
    chunk = s.knob("CHUNK", [1, 2, 4, 8, 16, 32, 64])
    rounds = s.derive("rounds", (round_k + gemm.k - 1) // round_k)
    s.require(splits <= rounds, "every block has some of K")
    s.require(implies(chunk > 1, chunk * splits < 2 * rounds), "a chunk of the thin operand is not longer than K")
    rows = s.derive("rows", warps_r * tiles * 16)
    s.require(rows < 2 * side.large, "blocks are not much higher than the matrix")
    line = chunk * round_k * size + 64
    thin = where(chunk * splits >= rounds, 1, 2) * side.padded * line
    added = warps_k * (side.padded * (rows + 4) if side.thin_m else rows * (side.padded + 8)) * 4
    shared = s.derive("shared_bytes", maximum(thin, added))
    s.require(shared <= gpu.shared_per_block, "the thin operand's chunks and the sums fit in shared memory")
    s.require((shared + gpu.shared_reserved) * min_blocks <= gpu.shared_per_sm, "so many blocks' shares of it fit")
    s.knob("HINT", [False, True])
    return s
