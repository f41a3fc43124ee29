"""A good config without any search: the tile and the split of K by a simple model of the busiest multiprocessor."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Any, NamedTuple

from deepgen.kernels.gemm.mma_gemm.formats import STEP_BYTES, WIDEST, aligned_bytes, widened
from deepgen.kernels.gemm.mma_gemm.lower import along_k, spread
from deepgen.kernels.gemm.mma_gemm.space import RESERVED, mma_space
from deepgen.operators import Gemm
from deepgen.targets import Gpu
from deepgen.vocabulary import dtype


class _MmaTile(NamedTuple):
    bm: int
    bn: int
    wm: int
    wn: int
    warps_k: int = 1


_TILES = (
    _MmaTile(128, 256, 64, 64), _MmaTile(256, 128, 64, 64), _MmaTile(128, 128, 64, 64), _MmaTile(128, 128, 64, 32),
    _MmaTile(128, 64, 64, 32), _MmaTile(64, 128, 32, 64), _MmaTile(64, 64, 32, 32), _MmaTile(64, 64, 32, 32, 2),
    _MmaTile(64, 32, 32, 32), _MmaTile(32, 64, 32, 32), _MmaTile(32, 64, 32, 32, 2), _MmaTile(32, 32, 32, 32),
    _MmaTile(32, 32, 32, 32, 2),
    _MmaTile(16, 64, 16, 32), _MmaTile(16, 64, 16, 32, 2), _MmaTile(16, 64, 16, 32, 4), _MmaTile(16, 32, 16, 32),
    _MmaTile(16, 32, 16, 32, 4), _MmaTile(64, 16, 32, 16), _MmaTile(64, 16, 32, 16, 2), _MmaTile(16, 16, 16, 16),
    # Lines of an operand that is contiguous along rows are at least 128 bytes long, of which 8-bit formats have many.
    _MmaTile(128, 32, 32, 32), _MmaTile(32, 128, 32, 32), _MmaTile(128, 128, 32, 64),
)  # fmt: skip
_LAUNCH_SECONDS = 3e-6
_ON_ITS_WAY = 60e3  # bytes that a multiprocessor must have asked for, to have its share of the bandwidth


def choose(gemm: Gemm, gpu: Gpu) -> dict[str, Any]:
    """The fastest by the model of those that the space admits."""
    space = mma_space("defaults", gemm, gpu)
    ranked = sorted(candidates(gemm, gpu), key=lambda config: seconds(gemm, gpu, config))
    return next(config for config in ranked if not space.explain(config))


def candidates(gemm: Gemm, gpu: Gpu) -> Iterator[dict[str, Any]]:
    size = dtype(gemm.a).bytes
    for tile in _TILES:
        tiles = ceil(gemm.m / tile.bm) * ceil(gemm.n / tile.bn) * gemm.batch
        sums, wide = tile.wm * tile.wn, widened(gemm, gpu)
        if sums >= 4096 and size == 1 and _spread(gemm):
            continue
        for bk in (128 // size, 64 // size):
            if wide and sums * (bk * size // STEP_BYTES) > 4096:  # the compiler widens a tile's whole K at once
                continue
            for stages in (4, 3, 2) if _copied_in_parts(gemm) else (5, 4, 3, 2):
                base = config(gemm, gpu, tile, bk, stages)
                yield base
                # The stream's bookkeeping leaves no registers for a second set of large fragments.
                ahead = 1 if sums >= 4096 else base["FRAGMENTS"]
                blocks = gpu.multiprocessors * min(2, base["MIN_BLOCKS"])
                if sums <= (1024 if wide else 4096 if _plain(gemm) else 2048):
                    yield {**base, "FIXUP": "stream", "BLOCKS": blocks, "FRAGMENTS": ahead}
                for splits in (2, 3, 4, 6, 8, 16, 33, 66):
                    if tiles * splits <= 4 * gpu.multiprocessors:
                        # One block that adds up many parts alone takes longer than a second step.
                        yield {**base, "FIXUP": "last" if splits <= 8 else "step", "SPLITS": splits}


def config(gemm: Gemm, gpu: Gpu, tile: _MmaTile, bk: int, stages: int) -> dict[str, Any]:
    size = dtype(gemm.a).bytes
    threads = tile.bm // tile.wm * (tile.bn // tile.wn) * tile.warps_k * 32
    wide = widened(gemm, gpu)
    room = not wide and (tile.wm * tile.wn < 4096 or _plain(gemm))
    ahead = 2 if room and bk * size // STEP_BYTES % (2 * tile.warps_k) == 0 else 1
    more = 255 if wide else 48 if _spread(gemm) else 16  # the compiler must not spill
    registers = tile.wm * tile.wn // 32 + ahead * (tile.wm + tile.wn) // 4 + RESERVED + more
    shared = (tile.bm + tile.bn) * bk * size * stages + gpu.shared_reserved
    resident = min(
        gpu.registers_per_sm // (min(registers, 255) * threads),
        gpu.threads_per_sm // threads,
        gpu.shared_per_sm // shared,
    )
    return {
        "BM": tile.bm, "BN": tile.bn, "BK": bk, "WM": tile.wm, "WN": tile.wn, "WARPS_K": tile.warps_k,
        "FRAGMENTS": ahead, "STAGES": stages, "MIN_BLOCKS": max(n for n in (1, 2, 3, 4) if n <= max(1, resident)),
        "WIDE": next(w for w in (4, 2, 1) if tile.wn % (8 * w) == 0) if along_k(gemm, "B") else 1,
        "MAPPING": 8, "FIXUP": "none", "GUARD": "sizes",
    }  # fmt: skip


def _copied_in_parts(gemm: Gemm) -> bool:
    """Whether copies have fewer than 16 bytes. Five stages of these took a fifth longer than four on an H200."""
    return min(aligned_bytes(gemm, "A"), aligned_bytes(gemm, "B")) < WIDEST


def _plain(gemm: Gemm) -> bool:
    """Whether fragments come as they lie in memory."""
    return dtype(gemm.a).bytes > 1 and along_k(gemm, "A") and along_k(gemm, "B")


def _spread(gemm: Gemm) -> bool:
    return spread(gemm, "A") or spread(gemm, "B")


def seconds(gemm: Gemm, gpu: Gpu, c: dict[str, Any]) -> float:
    """The busiest multiprocessor's products, or the memory's time, and what adding parts of K up costs."""
    splits, size = c.get("SPLITS", 1), dtype(gemm.a).bytes
    tiles = ceil(gemm.m / c["BM"]) * ceil(gemm.n / c["BN"]) * gemm.batch
    rounds: float = ceil(tiles * splits / gpu.multiprocessors)
    steps = ceil(ceil(gemm.k / c["BK"]) / splits)
    if c["FIXUP"] == "stream":
        rounds = max(tiles, c["BLOCKS"] / steps) / gpu.multiprocessors
    warps = c["BM"] // c["WM"] * (c["BN"] // c["WN"]) * c["WARPS_K"]
    alive = min(rounds, c["MIN_BLOCKS"]) * warps
    # Warp-wide products reach about two thirds of a Hopper's rate; each word of a fragment serves a tile's other side.
    reuse = c["WM"] * c["WN"] / (c["WM"] * c["WN"] + 8.0 * (c["WM"] + c["WN"]))
    transposed = 0.8 if spread(gemm, "A") or spread(gemm, "B") else 1.0
    peak = (gpu.peak(gemm.a) or 1e5) * 1e9 * (0.62 if gpu.has("wgmma") else 0.9)
    rate = peak / gpu.multiprocessors * min(1.0, 0.25 + alive / 11) * reuse * 1.25 * transposed
    products = rounds * steps * c["BK"] * c["BM"] * c["BN"] * 2 / rate
    # Each tile of K costs a barrier, hidden by other blocks; the first ones wait for all of the memory's latency.
    waits = rounds * steps * 0.25e-6 / max(1, c["MIN_BLOCKS"]) + 1.2e-6
    flight = min(rounds, c["MIN_BLOCKS"]) * (c["BM"] + c["BN"]) * c["BK"] * size * (c["STAGES"] - 1)
    busy = min(1.0, tiles * splits / gpu.multiprocessors)
    bandwidth = gpu.bandwidth_gbs * 1e9 * min(1.0, flight * busy / _ON_ITS_WAY)
    moved = rounds * steps * (c["BM"] + c["BN"]) * c["BK"] * size * gpu.multiprocessors / (gpu.bandwidth_gbs * 1.3e9)
    memory = max(gemm.least_bytes() / bandwidth, moved)
    # Sums that blocks leave to each other are written and read: by all, and by the one that adds a tile's parts up.
    left = {"none": 0, "stream": c.get("BLOCKS", 0)}.get(c["FIXUP"], tiles * splits) * c["BM"] * c["BN"] * 4
    alone = {"last": splits, "stream": 1}.get(c["FIXUP"], 0) * c["BM"] * c["BN"] * 4
    parts = 0.0 if left == 0 else 1.5e-6 + 2 * left / 2e12 + alone / 150e9 + (1.5e-6 if c["FIXUP"] == "step" else 0.0)
    whole: float = _LAUNCH_SECONDS + waits + max(products, memory) + 0.2 * min(products, memory) + parts
    return whole
