"""A good config without any search: enough loads on their way, little of the thin operand read twice."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Any

from deepgen.kernels.gemm.mma_gemm.formats import WIDEST
from deepgen.kernels.gemm.skinny_gemm.lower import BLOCK_BYTES, Sides, sides
from deepgen.kernels.gemm.skinny_gemm.space import registers, skinny_space
from deepgen.operators import Gemm
from deepgen.targets import Gpu
from deepgen.vocabulary import dtype

_LAUNCH_SECONDS = 3e-6
_ON_ITS_WAY = 40e3  # bytes that a multiprocessor must have asked for, to have its share of the bandwidth


def choose(gemm: Gemm, gpu: Gpu) -> dict[str, Any]:
    """The fastest by the model of those that the space admits."""
    space = skinny_space("defaults", gemm, gpu)
    ranked = sorted(candidates(gemm, gpu), key=lambda config: seconds(gemm, gpu, config))
    return next(config for config in ranked if not space.explain(config))


def candidates(gemm: Gemm, gpu: Gpu) -> Iterator[dict[str, Any]]:
    side, size = sides(gemm), dtype(gemm.a).bytes
    # Four tiles were never the best of 69 problems on an H200: their sums take the registers of loads along K.
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


def seconds(gemm: Gemm, gpu: Gpu, c: dict[str, Any]) -> float:
    """The busiest multiprocessor's share of the large matrix, and of the thin one, which every block reads."""
    side, size = sides(gemm), dtype(gemm.a).bytes
    rows = c["WARPS_R"] * c["TILES"] * 16
    blocks = ceil(side.large / rows) * gemm.batch * c["SPLITS"]
    rounds = ceil(blocks / gpu.multiprocessors)
    alive = min(rounds, c["MIN_BLOCKS"])
    share = side.large * gemm.k * size * gemm.batch / blocks  # bytes of the large matrix that a block reads
    flight = alive * c["WARPS_R"] * c["WARPS_K"] * 32 * _loads(side, c, size) * 16
    bandwidth = gpu.bandwidth_gbs * 0.9e9 * min(1.0, flight / _ON_ITS_WAY * min(1.0, blocks / gpu.multiprocessors))
    stream = rounds * share * gpu.multiprocessors / bandwidth
    # The thin operand comes from L2, at about the memory's rate once more.
    thin = rounds * gpu.multiprocessors * side.thin * gemm.k / c["SPLITS"] * size / (gpu.bandwidth_gbs * 1.2e9)
    # Nothing is multiplied before the first chunk of it is there.
    first = c["CHUNK"] * c["UNROLL"] * c["WARPS_K"] * BLOCK_BYTES * side.padded / 30e9
    late = 0.0 if rounds <= c["MIN_BLOCKS"] else 0.5e-6 * ceil(rounds / c["MIN_BLOCKS"])
    # Sums that blocks leave to each other are written and read: by all, and by the one that adds a tile's parts up.
    left = c["SPLITS"] * rows * side.padded * 4
    shared = 1.5e-6 + 2 * left * blocks / c["SPLITS"] / 2e12 + left / 75e9
    parts = 0.3e-6 + (0.0 if c["SPLITS"] == 1 else shared)
    plain = 2.0 * side.large * side.thin * gemm.k * gemm.batch / 40e12 if side.plain else 0.0
    whole: float = _LAUNCH_SECONDS + first + max(stream + 0.5 * thin, plain) + late + parts
    return whole


def _loads(side: Sides, c: dict[str, Any], size: int) -> int:
    return int(c["UNROLL"] * (c["TILES"] * 2 if side.large_along else 4 * (4 // size)))


def _chunk(side: Sides, rounds: int, round_bytes: int) -> int:
    """All of a block's K where that is little, else a tenth of a multiprocessor's shared memory."""
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
    return max(n for n in (1, 2, 3, 4, 6, 8) if n <= max(1, most))
