"""The space of the family for thin operands: its knobs, their constraints, and a good config without any search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any, TypeVar

from deepgen.kernels.gemm import remembered
from deepgen.kernels.gemm.mma_gemm.defaults import parts_of
from deepgen.kernels.gemm.mma_gemm.formats import WIDEST, widened
from deepgen.kernels.gemm.skinny_gemm.lower import BLOCK_BYTES, Sides, sides
from deepgen.operators import Gemm
from deepgen.space import Expr, Space, implies, maximum, where
from deepgen.targets import Gpu
from deepgen.vocabulary import dtype

Count = TypeVar("Count", int, Expr)


def registers(gemm: Gemm, gpu: Gpu, sums: Count, loads: Count) -> Count:
    """Registers of a thread, including those for addresses, counters, the thin operand, and transposed or widened
    words."""
    side = sides(gemm)
    if not side.large_along:
        return sums + 2 * loads + 76
    needed = sums + 2 * loads + (52 if side.thin_along or dtype(gemm.a).bytes > 1 else 84)
    return needed + sums + loads + side.padded if widened(gemm, gpu) else needed


def skinny_space(name: str, gemm: Gemm, gpu: Gpu) -> Space:
    s, side, size = Space(name), sides(gemm), dtype(gemm.a).bytes
    # If the large matrix is contiguous along rows, a lane owns as many of them as a load has.
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


@remembered
def choose(gemm: Gemm, gpu: Gpu) -> dict[str, Any]:
    """The fastest config by the model that the space admits."""
    space = skinny_space("defaults", gemm, gpu)
    ranked = sorted(candidates(gemm, gpu), key=lambda config: seconds(gemm, gpu, config))
    return next(config for config in ranked if not space.explain(config))


def candidates(gemm: Gemm, gpu: Gpu) -> Iterator[dict[str, Any]]:
    side, size = sides(gemm), dtype(gemm.a).bytes
    # Four tiles were never the best of 69 problems on an H200: their sums take registers needed for loads along K.
    for tiles in (1, 2) if side.large_along else (WIDEST // size // 2,):
        for warps_r, warps_k in (
            (1, 2),
            (1, 4),
            (1, 8),
            (2, 4),
            (2, 2),
            (4, 2),
            (4, 1),
            (2, 8),
            (1, 16),
            (4, 4),
            (2, 1),
        ):
            for unroll in (1, 2, 4):
                for splits in (1, 2, 3, 4, 6, 8):
                    round_k = unroll * warps_k * BLOCK_BYTES // size
                    rounds = ceil(gemm.k / round_k)
                    if splits > rounds or (splits > 1 and splits * 256 > gemm.k):
                        continue
                    config = {
                        "TILES": tiles, "WARPS_R": warps_r, "WARPS_K": warps_k, "UNROLL": unroll, "SPLITS": splits,
                        "CHUNK": _chunk(side, ceil(rounds / splits), round_k * size), "HINT": True,
                    }  # fmt: skip
                    yield {**config, "MIN_BLOCKS": _resident(gemm, gpu, config)}


# Microseconds, unless noted otherwise. Fitted together to timings on an H200; see docs/kernels/skinny_gemm.md.
LAUNCH, _LATE = 5.46, 1.7  # of the kernel; additional for blocks that wait to become resident
_READ, _THIN = 1.02, 1.05  # of the memory's bandwidth: for the large matrix, and for the thin one from the cache
_LATENCY = 0.18  # latency for the bytes that a multiprocessor has in flight
_FIRST = 180.0  # kB per microsecond of the thin matrix, whose first chunk precedes all products
# Clocks of a multiprocessor for 512 bytes of the large matrix: loads, each further part of 16 bytes, exchanges within
# registers to transpose bytes or halves; products for each row of the thin one, with tensor cores and without.
_CLOCK, _LOAD, _PART, _EXCHANGE, _PRODUCT, _MULTIPLY = 1750.0, 1.0, 24.0, 2.5, 0.016, 0.58
_SINGLE, _SINGLE_COPY = 83.0, 54.0  # per 32 elements of a thin matrix that is not contiguous along K
_PARTS, _LEFT, _ADDED = 1.95, 1.05, 47.0  # parts of K: fixed time; of memory's rate; kB per microsecond of one block


def seconds(gemm: Gemm, gpu: Gpu, c: Mapping[str, Any]) -> float:
    """The busiest multiprocessor's share of the large matrix, and of the thin one, which every block reads."""
    side, size = sides(gemm), dtype(gemm.a).bytes
    rows = c["WARPS_R"] * c["TILES"] * 16
    blocks = ceil(side.large / rows) * gemm.batch * c["SPLITS"]
    rounds = ceil(blocks / gpu.multiprocessors)
    alive = min(rounds, c["MIN_BLOCKS"])
    share = rows * gemm.k * size / c["SPLITS"]  # bytes of the large matrix that a block reads
    asked = alive * c["WARPS_R"] * c["WARPS_K"] * 32 * _loads(side, c, size) * 16  # bytes
    bandwidth = gpu.bandwidth_gbs * 1e3  # bytes per microsecond
    stream = rounds * share * (gpu.multiprocessors / (bandwidth * _READ) + _LATENCY / asked)
    thin = rounds * gpu.multiprocessors * side.thin * gemm.k / c["SPLITS"] * size / (bandwidth * _THIN)
    row = (gemm.k if side.large_along else side.large) * size
    clocks = _LOAD + _PART * (parts_of(row) - 1) + _EXCHANGE * (not side.large_along and size < 4)
    clocks += side.padded * (_MULTIPLY if side.plain else _PRODUCT)
    single = 0.0 if side.thin_along else _SINGLE_COPY if size == 4 else _SINGLE
    busy = rounds * (share / 512 * clocks + side.thin * gemm.k / c["SPLITS"] / 32 * single) / _CLOCK
    first = c["CHUNK"] * c["UNROLL"] * c["WARPS_K"] * BLOCK_BYTES * side.padded * 1e-3 / _FIRST
    whole: float = LAUNCH + first + stream + thin + busy + _LATE * (ceil(rounds / c["MIN_BLOCKS"]) - 1)
    if c["SPLITS"] > 1:  # partial sums are written and read
        left = c["SPLITS"] * rows * side.padded * 4e-3
        whole += _PARTS + 2e3 * left * blocks / c["SPLITS"] / (bandwidth * _LEFT) + left / _ADDED
    return whole * 1e-6


def _loads(side: Sides, c: Mapping[str, Any], size: int) -> int:
    return int(c["UNROLL"] * (c["TILES"] * 2 if side.large_along else 4 * (4 // size)))


def _chunk(side: Sides, rounds: int, round_bytes: int) -> int:
    """All of a block's K if that is small, else a tenth of a multiprocessor's shared memory."""
    sizes = [n for n in (1, 2, 4, 8, 16, 32, 64) if n == 1 or n * side.padded * round_bytes <= 24 << 10]
    return next((n for n in sizes if n >= rounds), sizes[-1])


def _resident(gemm: Gemm, gpu: Gpu, c: dict[str, Any]) -> int:
    side, size = sides(gemm), dtype(gemm.a).bytes
    threads = c["WARPS_R"] * c["WARPS_K"] * 32
    sums = c["TILES"] * (2 * side.padded if side.plain else side.padded // 2)
    needed = registers(gemm, gpu, sums, _loads(side, c, size) * 4)
    rows = c["WARPS_R"] * c["TILES"] * 16
    added = c["WARPS_K"] * (side.padded * (rows + 4) if side.thin_m else rows * (side.padded + 8)) * 4
    line = c["CHUNK"] * c["UNROLL"] * c["WARPS_K"] * BLOCK_BYTES + 64
    shared = max(2 * side.padded * line, added) + gpu.shared_reserved
    most = min(
        gpu.registers_per_sm // (min(needed, 255) * threads), gpu.threads_per_sm // threads, gpu.shared_per_sm // shared
    )
    return max(n for n in (1, 2, 3, 4) if n <= max(1, most))
