"""A good config without any search: the tile and the split of K by a simple model of the busiest multiprocessor."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, gcd
from typing import Any, NamedTuple

from deepgen.kernels.gemm.simt_gemm.space import WIDEST, simt_space
from deepgen.operators import Gemm
from deepgen.targets import Gpu, Hip
from deepgen.vocabulary import dtype


class _Shape(NamedTuple):
    bm: int
    bn: int
    tm: int
    tn: int
    split_u: int = 1


# Warps of 32 lanes lie 4 x 8, of 64 lanes 8 x 8.
_TILES_32 = (
    _Shape(256, 128, 16, 8), _Shape(128, 128, 16, 8), _Shape(128, 64, 16, 8), _Shape(128, 64, 8, 8),
    _Shape(64, 64, 8, 8), _Shape(64, 64, 8, 8, 2), _Shape(32, 64, 8, 4), _Shape(32, 64, 8, 4, 4), _Shape(16, 64, 4, 4),
    _Shape(16, 64, 4, 4, 4), _Shape(16, 32, 4, 4, 4), _Shape(16, 32, 2, 4), _Shape(16, 16, 2, 2),
)  # fmt: skip
_TILES_64 = (
    _Shape(128, 128, 8, 8), _Shape(128, 64, 8, 8), _Shape(64, 64, 8, 8), _Shape(64, 64, 4, 4), _Shape(32, 64, 4, 8),
    _Shape(32, 32, 4, 4), _Shape(16, 32, 2, 4), _Shape(16, 16, 2, 2),
)  # fmt: skip
_LAUNCH_SECONDS = 3e-6


def choose(gemm: Gemm, gpu: Gpu) -> dict[str, Any]:
    """The fastest by the model of those that the space admits."""
    space = simt_space("defaults", gemm, gpu)
    ranked = sorted(_candidates(gemm, gpu), key=lambda config: seconds(gemm, gpu, config))
    return next(config for config in ranked if not space.explain(config))


def _candidates(gemm: Gemm, gpu: Gpu) -> Iterator[dict[str, Any]]:
    for tile in _TILES_32 if gpu.warp == 32 else _TILES_64:
        tiles = ceil(gemm.m / tile.bm) * ceil(gemm.n / tile.bn) * gemm.batch
        yield _config(gemm, gpu, tile, 1)
        for splits in (2, 3, 4, 6, 8, 16, 33, 66):
            if tiles * splits <= 4 * gpu.multiprocessors:
                yield _config(gemm, gpu, tile, splits)


def _config(gemm: Gemm, gpu: Gpu, tile: _Shape, splits: int) -> dict[str, Any]:
    """K outermost in shared memory, through registers: the arithmetic then reads its operands from different banks."""
    cuda = not isinstance(gpu, Hip)
    wide = max(1, gemm.dtypes[3].bytes // 4)
    threads = tile.bm // tile.tm * (tile.bn // tile.tn) * tile.split_u
    registers = tile.tm * tile.tn * wide + 3 * (tile.tm + tile.tn) * wide + 40
    most, size = WIDEST // dtype(gemm.a).bytes, dtype(gemm.a).bytes
    bk = 8 if tile.split_u == 1 else 16 * (2 if tile.split_u > 2 else 1)
    shared = 2 * size * ((tile.bm + tile.bn) * (bk + most) + 2 * most * bk) + gpu.shared_reserved
    resident = min(
        gpu.registers_per_sm // (min(registers, 255) * threads),
        gpu.threads_per_sm // threads,
        gpu.shared_per_sm // shared,
    )
    loads = {side: _load(gemm, side, most) for side in "AB"}
    run = {"A": gcd(tile.tm, min(4, most)), "B": gcd(tile.tn, min(4, most))}
    store = gcd(run["B"] if tile.split_u == 1 else 4, gcd(gemm.n, WIDEST // max(gemm.dtypes[2].bytes, wide * 4)))
    config: dict[str, Any] = {
        "BM": tile.bm, "BN": tile.bn, "BK": bk, "TM": tile.tm, "TN": tile.tn,
        "LANES_M": 4 if gpu.warp == 32 else 8, "LANE_ORDER": 1, "SPLIT_U": tile.split_u,
        # AMD's registers come in halves and thirds of a file: asking for more wavefronts makes the compiler spill.
        "MIN_BLOCKS": max(n for n in (1, 2, 3, 4, 6) if n <= max(1, resident)) if cuda else 1,
        "INNER_A": "row", "INNER_B": "row", "COPY": "registers", "REG_PREFETCH": cuda and wide == 1,
        "UNROLL": min(8, bk // tile.split_u), "LOAD_CONTINUOUS": True, "STAGES": 2, "PAD": most,
        "LOAD_A": loads["A"], "LOAD_B": loads["B"],
        "THREAD_SCATTER_A": run["A"], "THREAD_SCATTER_B": run["B"],
        "WARP_SCATTER_A": "thread" if run["A"] == tile.tm else "tile",
        "WARP_SCATTER_B": "thread" if run["B"] == tile.tn else "tile",
        "STAGE_ROWS": 0 if tile.split_u == 1 else 1, "REDUCE_CONTINUOUS": True, "STORE": store, "MAPPING": 8,
        "FIXUP": "none" if splits == 1 else "last", "GUARD": "sizes",
    }  # fmt: skip
    return config if splits == 1 else {**config, "SPLITS": splits}


def _load(gemm: Gemm, side: str, most: int) -> int:
    scalars = gemm.scalars()
    line = int(scalars["lda" if side == "A" else "ldb"])
    stride = int(scalars["stride_a" if side == "A" else "stride_b"]) if gemm.batch > 1 else line
    # A tile's line along K is 8 steps long.
    return gcd(gcd(line, stride), min(most, 8))


def seconds(gemm: Gemm, gpu: Gpu, c: dict[str, Any]) -> float:
    """The busiest multiprocessor's arithmetic, or the memory's time, and what adding parts of K up costs."""
    splits, threads = c.get("SPLITS", 1), c["BM"] // c["TM"] * (c["BN"] // c["TN"]) * c["SPLIT_U"]
    tiles = ceil(gemm.m / c["BM"]) * ceil(gemm.n / c["BN"]) * gemm.batch
    rounds = ceil(tiles * splits / gpu.multiprocessors)
    warps = min(rounds, max(2, c["MIN_BLOCKS"])) * threads / gpu.warp
    moved = 2.0 * (c["TM"] + c["TN"]) + 10.0 * (c["BM"] + c["BN"]) / threads  # from and to shared memory, by trial
    share = c["TM"] * c["TN"] / (c["TM"] * c["TN"] + moved)  # of arithmetic among instructions
    peak = (gpu.vector_peak(gemm.a) or gpu.vector_peak("f32") or 1e4) * 1e9
    rate = peak / gpu.multiprocessors * min(1.0, 0.4 + warps / 13) * share
    arithmetic = rounds * ceil(gemm.k / splits) * c["BM"] * c["BN"] * 2 / rate
    memory = gemm.least_bytes() / (gpu.bandwidth_gbs * 1e9)
    parts = 0.0 if splits == 1 else 1e-6 + splits * c["BM"] * c["BN"] * 4 / 120e9
    whole: float = _LAUNCH_SECONDS + max(arithmetic, memory) + 0.2 * min(arithmetic, memory) + parts
    return whole
