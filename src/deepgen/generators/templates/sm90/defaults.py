"""A good config without any search: tile, cluster and split of K by a model of the busiest multiprocessor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Any, NamedTuple

from deepgen.generators.templates.sm90.lower import (
    ATOM_BYTES,
    BUFFER_ROWS,
    CONSUMER_REGISTERS,
    LINE_BYTES,
    operand_rows,
    result_line,
)
from deepgen.generators.templates.sm90.space import sm90_space
from deepgen.operators import Gemm
from deepgen.targets.gpu import Gpu
from deepgen.vocabulary.dtypes import dtype

STAGES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
_COLUMNS = (256, 224, 208, 192, 176, 168, 160, 144, 128, 112, 96, 88, 72, 64, 48, 32, 16)
_GROUPS = ((1, 1, False), (1, 2, False), (2, 1, False), (2, 2, False), (3, 1, False), (2, 1, True), (2, 2, True))
_PARTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 14, 16, 18, 20, 22, 26, 29, 33, 44, 66, 132)
_ROOM = 226 << 10  # of shared memory, for stages and buffers

# What the model knows of the chip beside its target, fitted to 1,300 ways to do 104 problems measured on an H200.
_LAUNCH_SECONDS = 5.3e-6
_CLUSTER_SECONDS = 0.47e-6  # more until a cluster's blocks have met
_TILE_SECONDS = 0.24e-6
_CLOCK = 1.39e9
_L2_BYTES_PER_SECOND = 11e12
_STORE_BYTES_PER_SECOND = 64e9  # a multiprocessor's


class Way(NamedTuple):
    """What the model tells apart."""

    consumers: int
    tiles_m: int
    bn: int
    turns: bool = False  # ping-pong
    cluster: tuple[int, int] = (1, 1)
    cluster_k: int = 1
    parts: int = 1
    fixup: str = "none"

    @property
    def bm(self) -> int:
        return 64 * self.tiles_m * (1 if self.turns else self.consumers)


def choose(gemm: Gemm, gpu: Gpu) -> dict[str, Any]:
    """The fastest by the model of those that the space admits."""
    space = sm90_space("defaults", gemm, gpu)
    configs = (config(gemm, gpu, way) for way in ranked(gemm, gpu))
    return next(c for c in configs if c is not None and not space.explain(c))


def ranked(gemm: Gemm, gpu: Gpu, columns: Sequence[int] = _COLUMNS) -> list[Way]:
    """Ways to do it, the fastest by the model first; the space may not admit all of them."""
    return sorted(_ways(gemm, gpu, columns), key=lambda way: seconds(gemm, gpu, way))


def _ways(gemm: Gemm, gpu: Gpu, columns: Sequence[int]) -> Iterator[Way]:
    steps = _steps(gemm)
    for consumers, tiles_m, turns in _GROUPS:
        for bn in columns:
            tile = Way(consumers, tiles_m, bn, turns)
            most = {1: 254, 2: CONSUMER_REGISTERS[2], 3: CONSUMER_REGISTERS[3]}[consumers]
            if tiles_m * bn // 2 + 36 > most or tile.bm >= max(2 * gemm.m, 65):
                continue
            if tiles_m > 1 and operand_rows(gemm, bn) != bn:
                continue  # two rows of tiles by lines of columns that are used in part take a third longer
            for cluster in ((1, 1), (2, 1), (1, 2)):  # 33 clusters of four do not run at once
                yield tile._replace(cluster=cluster)
            tiles = ceil(gemm.m / tile.bm) * ceil(gemm.n / bn) * gemm.batch
            if turns or tiles * 2 > gpu.multiprocessors:
                continue
            for parts in _PARTS:
                if 1 < parts <= min(steps, gpu.multiprocessors // tiles):
                    # Blocks that share tiles were never faster where K is divided.
                    yield tile._replace(parts=parts, fixup="exchange")
                    yield tile._replace(parts=parts, fixup="split")
                for cluster_k in (2, 3, 4):
                    if parts * cluster_k <= min(steps, gpu.multiprocessors // tiles):
                        yield tile._replace(cluster_k=cluster_k, parts=parts, fixup="split")


def config(gemm: Gemm, gpu: Gpu, way: Way) -> dict[str, Any] | None:
    """A way with as many stages as fit; None when too few do."""
    splits, size = way.cluster_k * way.parts, dtype(gemm.c).bytes
    tiles = ceil(gemm.m / way.bm) * ceil(gemm.n / way.bn) * gemm.batch
    staying = way.turns or tiles > gpu.multiprocessors
    moved = way.consumers > 1 and way.tiles_m * way.bn >= 192 + 64 * way.turns
    store = "straight"
    if gemm.n * size % LINE_BYTES == 0 and splits == 1:
        store = "late" if staying and moved and _late(gemm, way) else "copy" if staying else "reuse"
    stage = ATOM_BYTES * (way.bm + operand_rows(gemm, way.bn))
    line = way.consumers * 4 * BUFFER_ROWS * result_line(gemm, way.bn)
    buffers = 0 if store not in ("copy", "late") else 2 if line <= 16384 * way.consumers // 2 else 1
    steps = _steps(gemm) // splits if not staying else 12
    most = min(max(steps, 2), (_ROOM - line * buffers) // stage)
    if most < 1:
        return None
    # Where twelve stages leave room, longer ones ask memory for more at once: 7 % in the mean of 59 pairs that were
    # raced, 7 of which were slower.
    atoms = 2 if most > STAGES[-1] and not staying and way.fixup == "none" else 1
    made: dict[str, Any] = {
        "SCHEDULE": "ping-pong" if way.turns else "cooperative",
        "CONSUMERS": way.consumers, "TILES_M": way.tiles_m, "BN": way.bn, "ATOMS": atoms,
        "STAGES": max(n for n in STAGES if n <= most // atoms), "REGISTERS": moved, "MIN_BLOCKS": 1,
        "CLUSTER_M": way.cluster[0], "CLUSTER_N": way.cluster[1], "STORE": store,
        "FIXUP": way.fixup, "GROUP": 8, "ALONG": "M", "HILBERT": False,
        # What one side is small against is read once.
        "CACHE": "stream" if gemm.batch == 1 and min(gemm.m, gemm.n) <= 256 else "none",
        "FIXED": False,  # what needs no search serves other shapes, too
    }  # fmt: skip
    if dtype(gemm.a).bytes == 1 and gemm.acc == "f32":
        made["PROMOTE"] = 0
    if buffers:
        made["BUFFERS"] = buffers
    if way.fixup == "none":
        made["PERSISTENT"] = staying
    else:
        made["PARTS"] = way.parts
    if way.fixup == "split":
        made["CLUSTER_K"] = way.cluster_k
    return made


def _late(gemm: Gemm, way: Way) -> bool:
    """Whether registers hold a tile's results beside the sums of the next."""
    sums = way.tiles_m * way.bn // 2
    return dtype(gemm.c).bytes == 2 and way.consumers > 1 and not way.turns and 96 <= sums <= 130


def _steps(gemm: Gemm) -> int:
    return ceil(gemm.k * dtype(gemm.a).bytes / ATOM_BYTES)


def seconds(gemm: Gemm, gpu: Gpu, way: Way) -> float:
    """The busiest multiprocessor's arithmetic, the memory's or the cache's time, and what adding parts up costs."""
    bm, bn, (cluster_m, cluster_n) = way.bm, way.bn, way.cluster
    shared, splits = cluster_m * cluster_n, way.cluster_k * way.parts
    tiles = ceil(gemm.m / (bm * cluster_m)) * ceil(gemm.n / (bn * cluster_n)) * gemm.batch * shared
    rounds = ceil(tiles * splits / gpu.multiprocessors)
    # Of 128 bytes of K: products, operands read from shared memory, tiles that come in. In clocks.
    products = bm * bn / 32 * 1.37
    operands = (bm + bm // 64 * bn) * 1.44
    lines_a = (min(bm, gemm.m) if cluster_n == 1 else bm) / cluster_n
    lines_b = operand_rows(gemm, bn) / cluster_m
    steps = ceil(_steps(gemm) / splits)
    clocks = steps * max(products, operands, 0.72 * (lines_a + lines_b))
    own = rounds * (clocks / _CLOCK + _TILE_SECONDS * (0.74 if way.turns else 1.0))
    # To ask twice for what comes from memory costs more than for what the cache has.
    lines = lines_a * (1.26 if gemm.m >= 4 * gemm.n else 1.0) + lines_b * (1.26 if gemm.n >= 4 * gemm.m else 1.0)
    fetched = steps * ATOM_BYTES * tiles * splits * lines
    busy = min(1.0, tiles * splits / gpu.multiprocessors)  # a few multiprocessors do not take all that memory gives
    memory = max(gemm.least_bytes() / (gpu.bandwidth_gbs * 0.74e9), fetched / _L2_BYTES_PER_SECOND) / (
        0.92 + 0.08 * busy
    )
    # Of the time to store a tile, what the next one waits for.
    again = 0.0 if way.turns else 0.18 if _late(gemm, way) else 1.23
    stored = bm * bn * dtype(gemm.c).bytes / _STORE_BYTES_PER_SECOND * (1 + again * (rounds - 1))
    if result_line(gemm, bn) < 128:
        stored, memory = stored * 1.78, memory + 0.25 * gemm.batch * gemm.m * gemm.n * dtype(gemm.c).bytes / 3e12
    parts = _CLUSTER_SECONDS * (shared > 1) + 1.1e-7 * way.turns
    if way.fixup == "exchange":
        parts += 1.6e-6 + bm * bn * 4 / 64e9
    elif splits > 1:
        last = 1.35e-6 + way.parts * bm * bn * 4 / way.cluster_k / 20e9
        parts += (2.3e-6 + 1.4e-6 * (way.cluster_k > 2)) * (way.cluster_k > 1) + last * (way.parts > 1)
    return float(_LAUNCH_SECONDS + max(own, memory) + 0.11 * min(own, memory) + stored + parts)
