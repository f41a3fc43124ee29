"""A good config without any search: tile, cluster and split of K by a simple model of the busiest multiprocessor."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Any, NamedTuple

from deepgen.generators.templates.sm90.lower import ATOM_BYTES
from deepgen.generators.templates.sm90.space import sm90_space
from deepgen.operators import Gemm
from deepgen.targets.gpu import Gpu
from deepgen.vocabulary.dtypes import dtype


class _Tile(NamedTuple):
    consumers: int
    tiles_m: int
    bn: int
    turns: bool = False  # ping-pong

    @property
    def bm(self) -> int:
        return 64 * self.tiles_m * (1 if self.turns else self.consumers)


_TILES = (
    _Tile(2, 1, 256), _Tile(2, 2, 128), _Tile(2, 1, 192), _Tile(3, 1, 192), _Tile(2, 1, 128), _Tile(3, 1, 96),
    _Tile(2, 2, 128, turns=True), _Tile(2, 1, 256, turns=True), _Tile(2, 1, 192, turns=True),
    _Tile(2, 1, 128, turns=True), _Tile(1, 1, 256), _Tile(1, 1, 128), _Tile(2, 1, 64), _Tile(1, 1, 96),
    _Tile(1, 1, 64), _Tile(1, 1, 32), _Tile(1, 1, 16),
)  # fmt: skip
_LAUNCH_SECONDS = 4e-6
_ROOM = 224 << 10  # of shared memory, for stages
_L2_BYTES_PER_SECOND = 5.5e12


def choose(gemm: Gemm, gpu: Gpu) -> dict[str, Any]:
    """The fastest by the model of those that the space admits."""
    space = sm90_space("defaults", gemm, gpu)
    ranked = sorted(_candidates(gemm, gpu), key=lambda config: seconds(gemm, gpu, config))
    return next(config for config in ranked if not space.explain(config))


def _candidates(gemm: Gemm, gpu: Gpu) -> Iterator[dict[str, Any]]:
    steps = _steps(gemm)
    for tile in _TILES:
        if gemm.layout[1] == "n" and tile.bn % 64:
            continue
        tiles = ceil(gemm.m / tile.bm) * ceil(gemm.n / tile.bn) * gemm.batch
        for cluster in ((1, 1), (2, 1), (1, 2)):
            yield _config(gemm, tile, cluster)
        if tile.turns:
            continue
        for splits in range(2, gpu.multiprocessors + 1):
            if tiles * splits <= gpu.multiprocessors and splits <= steps:
                yield _config(gemm, tile, (1, 1), 1, splits, "exchange")
                for cluster_k in (1, 2):  # larger clusters do not fill the chip
                    if splits % cluster_k == 0:
                        yield _config(gemm, tile, (1, 1), cluster_k, splits // cluster_k)


def _config(
    gemm: Gemm, tile: _Tile, cluster: tuple[int, int], cluster_k: int = 1, parts: int = 1, way: str = "split"
) -> dict[str, Any]:
    splits = cluster_k * parts
    copied = dtype(gemm.c).bytes == 2 and gemm.n % 8 == 0 and tile.bn % 64 == 0 and splits == 1
    steps = _steps(gemm) // splits if splits > 1 else 12
    stage = ATOM_BYTES * (tile.bm + tile.bn)
    most = min(steps, (_ROOM - (tile.consumers * 16384 if copied else 0)) // stage)
    most = max(most, ceil(tile.bm * tile.bn * 4 / stage)) if cluster_k > 1 else most
    config: dict[str, Any] = {
        "SCHEDULE": "ping-pong" if tile.turns else "cooperative",
        "CONSUMERS": tile.consumers, "TILES_M": tile.tiles_m, "BN": tile.bn, "ATOMS": 1,
        "STAGES": max(n for n in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12) if n <= max(most, 2)),
        "REGISTERS": tile.consumers > 1 and tile.tiles_m * tile.bn >= 192 + 64 * tile.turns, "MIN_BLOCKS": 1,
        "CLUSTER_M": cluster[0], "CLUSTER_N": cluster[1], "STORE": "copy" if copied else "straight",
        "FIXUP": "none" if splits == 1 else way, "GROUP": 8, "ALONG": "M",
    }  # fmt: skip
    if copied:
        config["BUFFERS"] = 2
    if splits == 1:
        return {**config, "PERSISTENT": True}
    return {**config, "PARTS": parts} if way == "exchange" else {**config, "PARTS": parts, "CLUSTER_K": cluster_k}


def _steps(gemm: Gemm) -> int:
    return ceil(gemm.k * dtype(gemm.a).bytes / ATOM_BYTES)


def seconds(gemm: Gemm, gpu: Gpu, c: dict[str, Any]) -> float:
    """The busiest multiprocessor's arithmetic, the memory's or the cache's time, and what adding parts up costs."""
    splits = c.get("CLUSTER_K", 1) * c.get("PARTS", 1)
    turns = c["SCHEDULE"] == "ping-pong"
    bm, bn = 64 * c["TILES_M"] * (1 if turns else c["CONSUMERS"]), c["BN"]
    shared = c["CLUSTER_M"] * c["CLUSTER_N"]
    tiles = ceil(gemm.m / (bm * c["CLUSTER_M"])) * ceil(gemm.n / (bn * c["CLUSTER_N"])) * gemm.batch * shared
    rounds = ceil(tiles * splits / gpu.multiprocessors)
    peak = (gpu.peak(gemm.a) or 1e5) * 1e9 * 0.9
    # One warpgroup alone does not keep the tensor cores busy, nor do narrow tiles: operands come from shared memory.
    rate = peak / gpu.multiprocessors * min(1.0, 0.5 + 0.25 * c["CONSUMERS"]) * bm * bn / (bm * bn + 16 * (bm + bn))
    size = dtype(gemm.a).bytes
    arithmetic = rounds * ceil(gemm.k / splits) * bm * bn * 2 / rate
    fetched = gemm.k * size * tiles * (bm / c["CLUSTER_N"] + bn / c["CLUSTER_M"])
    busy = min(1.0, tiles * splits / gpu.multiprocessors)  # a few multiprocessors do not take all that memory gives
    memory = max(gemm.least_bytes() / (gpu.bandwidth_gbs * 0.65e9), fetched / _L2_BYTES_PER_SECOND) / (0.3 + 0.7 * busy)
    stored = (1 if turns else rounds) * bm * bn * dtype(gemm.c).bytes / 60e9
    parts = 8e-7 * (shared - 1) + 5e-7 * turns * (rounds == 1)
    if c["FIXUP"] == "exchange":
        parts = 4e-6 + 3 * bm * bn * 4 / 80e9
    elif splits > 1:
        parts = 1.5e-6 * (c["CLUSTER_K"] > 1) + (c["PARTS"] > 1) * (
            3e-6 + c["PARTS"] * bm * bn * 4 / c["CLUSTER_K"] / 80e9
        )
    return float(_LAUNCH_SECONDS + max(arithmetic, memory) + 0.2 * min(arithmetic, memory) + 0.5 * stored + parts)
