"""A good config without any search: tile, cluster and split of K by a model of the busiest multiprocessor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import ceil, inf
from typing import Any, NamedTuple

from deepgen.kernels.gemm.sm90_gemm.lower import (
    ATOM_BYTES,
    BUFFER_ROWS,
    CONSUMER_REGISTERS,
    operand_rows,
    promotes,
    result_line,
)
from deepgen.kernels.gemm.sm90_gemm.realign import LINE_BYTES
from deepgen.kernels.gemm.sm90_gemm.space import sm90_space
from deepgen.operators import Gemm
from deepgen.targets import Gpu
from deepgen.vocabulary import dtype

STAGES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
_COLUMNS = (256, 224, 208, 192, 176, 168, 160, 144, 128, 112, 96, 88, 72, 64, 48, 32, 16, 8)
_GROUPS = ((1, 1, False), (1, 2, False), (2, 1, False), (2, 2, False), (3, 1, False), (2, 1, True), (2, 2, True))
_PARTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 14, 16, 18, 20, 22, 26, 29, 33, 44, 66, 132)
_MOST_SHARES = 22  # of a tile that as many blocks add up: smaller ones took longer
_ROOM = 226 << 10  # of shared memory, for stages and buffers
_RESERVED = 36  # registers beside sums
_REGISTERS = {1: 254, 2: 168, 3: 128}  # of a thread, by how many groups multiply, while the producer keeps as many

# What the model knows of the chip beside its target, fitted to 2,500 ways to do 182 problems measured on an H200. With
# a third of the shapes left out, it chose what took 1.02 times as long as the best of a left-out shape's ways.
_LAUNCH_SECONDS = 4.5e-6
_CLUSTER_SECONDS = 0.75e-6  # more until a cluster's blocks have met
_CLUSTER_SLOWER = 1.03  # they wait for each other in every stage
_PING_PONG_SECONDS = 0.12e-6  # more until the second warpgroup begins
_TILE_SECONDS = 0.31e-6  # until a tile's first products, and from its last ones
_CLOCK = 1.96e9
_OPERAND_CLOCKS, _OPERAND_BOUND = 0.35, 1.55  # of 128 bytes from shared memory: they cost power, or bind
_ALONE_CLOCKS = 38  # of a stage: the last products of a warpgroup that has no others, and no partner
# Sums of 8-bit floats that are moved, fitted where that was done in every second stage, and doubled:
_PROMOTE_CLOCKS = 124  # of a stage: products end before their sums are added to
_ADD_CLOCKS = 0.6  # of a stage, for each column: where no other warpgroup multiplies meanwhile
_READ, _WRITTEN, _OVER = 0.8, 1.1, 0.41  # of the memory's rate; of its time more for what the cache does not hold
_L2_BYTES_PER_SECOND = 28e12
_SPLIT_BYTES_PER_SECOND = (
    10e12  # where rows begin anywhere, and each fetch meets two lines; a cluster shares nothing then
)
_STORE_BYTES_PER_SECOND = 43e9  # a multiprocessor's
_WHOLE = 64  # bytes that rows begin at multiples of, or fetches are split
_LATE = 0.4  # of a store, what the next tile waits for if it is late
_OPEN = 0.32  # of that wait, what the memory's time does not hide
_LAST = 0.52  # of the last store of several: multiprocessors do not end all at once
_ASKED_TWICE = 0.35  # of the time to read it once, where one asks again for what comes from memory
_RAGGED = 0.54  # more to write where tiles end within a line of memory
_SHARP = 4.7  # how little the shorter of arithmetic and memory adds to the longer
_LATE_STEPS = 8  # results that are late go out between so many steps, or all at once
_CACHED = 12 << 20  # bytes that surely stay in the cache

# The model is sure of the order within a kind of ways, and less so of that between kinds. Where lines of memory begin
# anywhere, it was too good by up to half for narrow tiles, and by a tenth for others.
_SAME_KIND = 1.03  # times longer, for each that was taken of a kind
_LIKELY = 1.3  # times the best: others are not worth a try


class Way(NamedTuple):
    """What the model tells apart."""

    consumers: int
    tiles_m: int
    bn: int
    ping_pong: bool = False  # ping-pong
    cluster: tuple[int, int] = (1, 1)
    cluster_k: int = 1
    parts: int = 1
    fixup: str = "none"

    @property
    def bm(self) -> int:
        return 64 * self.tiles_m * (1 if self.ping_pong else self.consumers)


def choose(gemm: Gemm, gpu: Gpu) -> dict[str, Any]:
    """The fastest by the model of those that the space admits."""
    space = sm90_space("defaults", gemm, gpu)
    configs = (config(gemm, gpu, way) for way in ranked(gemm, gpu))
    return next(c for c in configs if c is not None and not space.explain(c))


def ranked(gemm: Gemm, gpu: Gpu, columns: Sequence[int] = _COLUMNS) -> list[Way]:
    """Ways to do it, the fastest by the model first; the space may not admit all of them."""
    return sorted(_ways(gemm, gpu, columns), key=lambda way: seconds(gemm, gpu, way))


def various(gemm: Gemm, gpu: Gpu) -> Iterator[dict[str, Any]]:
    """Configs that may be the fastest, beginning with the default: of several kinds, each tile once in a kind."""
    space = sm90_space("defaults", gemm, gpu)
    modelled = [(seconds(gemm, gpu, way), way) for way in ranked(gemm, gpu)]
    taken: Counter[Any] = Counter()
    least = inf
    while modelled:
        modelled.sort(key=lambda row: row[0] * _SAME_KIND ** taken[_kind(row[1])])
        time, way = modelled[0]
        modelled = [row for row in modelled if (_kind(row[1]), row[1].bm, row[1].bn) != (_kind(way), way.bm, way.bn)]
        candidate = config(gemm, gpu, way)
        if candidate is not None and not space.explain(candidate) and time <= _LIKELY * least:
            least = min(least, time)
            taken[_kind(way)] += 1
            yield candidate


def _kind(way: Way) -> tuple[bool, bool, bool, str]:
    return way.ping_pong, way.cluster != (1, 1), way.cluster_k > 1, way.fixup


def _ways(gemm: Gemm, gpu: Gpu, columns: Sequence[int]) -> Iterator[Way]:
    steps = _steps(gemm)
    for consumers, tiles_m, ping_pong in _GROUPS:
        for bn in columns:
            tile = Way(consumers, tiles_m, bn, ping_pong)
            most = CONSUMER_REGISTERS.get(consumers, _REGISTERS[1])
            if _sums(gemm, tile) + _RESERVED > most or tile.bm >= max(2 * gemm.m, 65):
                continue
            if bn < min(gemm.n, 16):
                continue  # so few columns of more were never timed
            in_part = operand_rows(gemm, bn) != bn
            if (ping_pong or tiles_m > 1) and in_part:
                continue  # lines of columns that are used in part then take a third longer, or twice as long
            for cluster in ((1, 1), (2, 1), (1, 2)):  # 33 clusters of four do not run at once
                yield tile._replace(cluster=cluster)
            tiles = ceil(gemm.m / tile.bm) * ceil(gemm.n / bn) * gemm.batch
            if ping_pong or in_part or tiles * 2 > gpu.multiprocessors:
                continue
            for parts in _PARTS:
                if 1 < parts <= min(steps, gpu.multiprocessors // tiles):
                    # Blocks that share tiles were never faster where K is divided.
                    yield tile._replace(parts=parts, fixup="split")
                    if parts <= _MOST_SHARES:
                        yield tile._replace(parts=parts, fixup="exchange")
                # Clusters along K meet the others that share their lines at other times.
                for cluster_k in (2, 3, 4) if gemm.least_bytes() <= _CACHED else ():
                    if parts * cluster_k <= min(steps, gpu.multiprocessors // tiles):
                        yield tile._replace(cluster_k=cluster_k, parts=parts, fixup="split")


def config(gemm: Gemm, gpu: Gpu, way: Way) -> dict[str, Any] | None:
    """A way with as many stages as fit; None when too few do."""
    splits, size = way.cluster_k * way.parts, dtype(gemm.c).bytes
    tiles = ceil(gemm.m / way.bm) * ceil(gemm.n / way.bn) * gemm.batch
    staying = way.ping_pong or tiles > gpu.multiprocessors
    moved = way.consumers > 1 and way.tiles_m * way.bn >= 192 + 64 * way.ping_pong
    if promotes(gemm):
        moved = _sums(gemm, way) + _RESERVED > _REGISTERS[way.consumers]
    store = "straight"
    if splits == 1 and gemm.n * size % LINE_BYTES:
        store = "lines"
    elif splits == 1:
        store = "late" if staying and moved and _late(gemm, way) else "copy" if staying else "reuse"
    stage = ATOM_BYTES * (way.bm + operand_rows(gemm, way.bn))
    line = way.consumers * 4 * BUFFER_ROWS * result_line(gemm, way.bn)
    buffers = 0 if store not in ("copy", "late") else 2 if line <= 16384 * way.consumers // 2 else 1
    held = buffers + (store == "lines")
    steps = _steps(gemm) // splits if not staying else 12
    most = min(max(steps, 2), (_ROOM - line * held) // stage)
    if most < 1:
        return None
    # Where twelve stages leave room, longer ones ask memory for more at once: 7 % in the mean of 59 pairs that were
    # raced, 7 of which were slower.
    atoms = 2 if most > STAGES[-1] and not staying and way.fixup == "none" else 1
    result: dict[str, Any] = {
        "SCHEDULE": "ping-pong" if way.ping_pong else "cooperative",
        "CONSUMERS": way.consumers, "TILES_M": way.tiles_m, "BN": way.bn, "ATOMS": atoms,
        "STAGES": max(n for n in STAGES if n <= most // atoms), "REGISTERS": moved, "MIN_BLOCKS": 1,
        "CLUSTER_M": way.cluster[0], "CLUSTER_N": way.cluster[1], "STORE": store,
        "FIXUP": way.fixup, "GROUP": 8, "ALONG": "M", "HILBERT": False,
        # What one side is small against is read once.
        "CACHE": "stream" if gemm.batch == 1 and min(gemm.m, gemm.n) <= 256 else "none",
        "FIXED": False,  # what needs no search serves other shapes, too
    }  # fmt: skip
    if buffers:
        result["BUFFERS"] = buffers
    if way.fixup == "none":
        result["PERSISTENT"] = staying
    else:
        result["PARTS"] = way.parts
    if way.fixup == "split":
        result["CLUSTER_K"] = way.cluster_k
    return result


def way_of(values: Mapping[str, Any]) -> Way:
    """What the model tells apart of a config."""
    return Way(
        values["CONSUMERS"],
        values["TILES_M"],
        values["BN"],
        values["SCHEDULE"] == "ping-pong",
        (values["CLUSTER_M"], values["CLUSTER_N"]),
        values.get("CLUSTER_K", 1),
        values.get("PARTS", 1),
        values["FIXUP"],
    )


def _late(gemm: Gemm, way: Way) -> bool:
    """Whether registers hold a tile's results beside the sums of the next."""
    one_set = dtype(gemm.c).bytes == 2 and not promotes(gemm)
    longer = way.consumers > 1 and not way.ping_pong and _steps(gemm) >= _LATE_STEPS
    return one_set and longer and 96 <= _sums(gemm, way) <= 130


def _sums(gemm: Gemm, way: Way) -> int:
    """Registers of a thread that hold them."""
    return way.tiles_m * way.bn // 2 * (2 if promotes(gemm) else 1)


def _steps(gemm: Gemm) -> int:
    return ceil(gemm.k * dtype(gemm.a).bytes / ATOM_BYTES)


def seconds(gemm: Gemm, gpu: Gpu, way: Way) -> float:
    """The busiest multiprocessor's arithmetic beside the memory's time, and what adding parts up costs."""
    bm, bn, (cluster_m, cluster_n) = way.bm, way.bn, way.cluster
    shared, splits, size = cluster_m * cluster_n, way.cluster_k * way.parts, dtype(gemm.c).bytes
    tiles = ceil(gemm.m / (bm * cluster_m)) * ceil(gemm.n / (bn * cluster_n)) * gemm.batch * shared
    rounds, steps = ceil(tiles * splits / gpu.multiprocessors), ceil(_steps(gemm) / splits)
    ragged = 1 + _RAGGED * (bn * size % 128 > 0)
    stored = bm * bn * size / _STORE_BYTES_PER_SECOND * ragged
    waited = 0.0 if way.ping_pong else (rounds - 1) * stored * (_LATE if _late(gemm, way) else 1.0)
    own = rounds * (steps * _clocks(gemm, way) / _CLOCK + _TILE_SECONDS) + (1 - _OPEN) * waited
    memory = _memory_seconds(gemm, gpu, way, steps * tiles * splits, ragged)
    parts = _CLUSTER_SECONDS * (shared > 1) + _PING_PONG_SECONDS * way.ping_pong
    if way.fixup == "exchange":
        parts += 2.7e-6 + bm * bn * 4 / 90e9
    elif splits > 1:
        parts += (1.0e-6 + bm * bn * 4 / 27e9) * (way.cluster_k > 1)
        parts += (1.35e-6 + way.parts * bm * bn * 4 / way.cluster_k / 20e9) * (way.parts > 1)
    both = (own**_SHARP + memory**_SHARP) ** (1 / _SHARP)
    whole: float = _LAUNCH_SECONDS + both + _OPEN * waited + stored * (1.0 if rounds == 1 else _LAST) + parts
    return whole


def _clocks(gemm: Gemm, way: Way) -> float:
    """Of 128 bytes of K of a tile."""
    operands = way.bm + way.bm // 64 * way.bn
    single = way.ping_pong or way.consumers == 1  # one warpgroup multiplies at a time
    clocks = way.bm * way.bn / 32 + _OPERAND_CLOCKS * operands + _ALONE_CLOCKS * (single and way.tiles_m == 1)
    if promotes(gemm):
        clocks += _PROMOTE_CLOCKS + _ADD_CLOCKS * way.tiles_m * way.bn * single
    return max(clocks * (_CLUSTER_SLOWER if way.cluster != (1, 1) else 1.0), _OPERAND_BOUND * operands)


def _memory_seconds(gemm: Gemm, gpu: Gpu, way: Way, stages: int, ragged: float) -> float:
    """Of what is read, in so many stages, and written."""
    (cluster_m, cluster_n), size = way.cluster, dtype(gemm.a).bytes
    rows = operand_rows(gemm, way.bn)
    lines = (min(way.bm, gemm.m) if cluster_n == 1 else way.bm) / cluster_n + rows / cluster_m
    a, b = gemm.batch * gemm.m * gemm.k * size, gemm.batch * gemm.n * gemm.k * size
    # Tiles that end outside of C take as long as whole ones.
    columns = ceil(gemm.n / way.bn) * way.bn
    written = gemm.batch * gemm.m * columns * dtype(gemm.c).bytes * ragged
    # Neighbours along M ask for the same columns of B at the same time, but not those along N for the same rows of A.
    again = b * (rows / way.bn - 1) + a * (gemm.m >= 4 * gemm.n and gemm.n > way.bn * cluster_n)
    bandwidth = gpu.bandwidth_gbs * 1e9
    row_a, row_b = (gemm.m if gemm.layout[0] == "t" else gemm.k), (gemm.k if gemm.layout[1] == "t" else gemm.n)
    split = way.bm * (row_a * size % _WHOLE > 0) + rows * (row_b * size % _WHOLE > 0)
    read = max((a + b + _ASKED_TWICE * again) / (bandwidth * _READ), stages * ATOM_BYTES * lines / _L2_BYTES_PER_SECOND)
    whole: float = read + (written / _WRITTEN + _OVER * max(written - gpu.l2_bytes, 0)) / bandwidth
    return max(whole, stages * ATOM_BYTES * split / _SPLIT_BYTES_PER_SECOND)
