"""Good configs without any search: tiles, clusters, blocks and parts of K, ordered by the model's times."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from math import ceil
from typing import Any, NamedTuple

from deepgen.kernels.gemm import remembered
from deepgen.kernels.gemm.sm90_gemm.lower import (
    ATOM_BYTES,
    BUFFER_ROWS,
    BY_LINES,
    CONSUMER_REGISTERS,
    columns_of_tiles,
    loads_columns,
    operand_rows,
    overlap,
    promotes,
    result_pitch,
    rows_of_tile,
)
from deepgen.kernels.gemm.sm90_gemm.model import seconds, sums_of
from deepgen.kernels.gemm.sm90_gemm.operands import LINE_BYTES, asynchronous, factor_bytes, realigned
from deepgen.kernels.gemm.sm90_gemm.space import sm90_space
from deepgen.kernels.shared import Kinds, of_several_kinds
from deepgen.operators import Gemm
from deepgen.targets import Gpu
from deepgen.vocabulary import dtype

STAGES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
_COLUMNS = (256, 224, 208, 192, 176, 168, 160, 144, 128, 112, 96, 88, 72, 64, 48, 32, 16, 8)
_GROUPS = ((1, 1, False), (1, 2, False), (2, 1, False), (2, 2, False), (3, 1, False), (2, 1, True), (2, 2, True))
_PARTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 14, 16, 18, 20, 22, 26, 29, 33, 44, 66, 132)
_MOST_SHARES = 22  # of a tile whose parts several blocks add up: smaller shares took longer
_BLOCKS = (2, 3, 4)  # per multiprocessor, if there are enough tiles and K is short
_FEW_STEPS = 4
_ROOM = 226 << 10  # of shared memory, for stages and buffers
_BESIDE = 256  # of shared memory for barriers and flags, where stages and buffers are not whole kilobytes
_FIXED = 2 << 10  # the additional use of each of several blocks
_RESERVED = 36  # registers in addition to sums
_REGISTERS = {1: 254, 2: 168, 3: 128}  # of a thread, by number of consumer groups, if the producer keeps as many
_LATE_STEPS = 8  # late results are stored over this many steps, or all at once
_CACHED = 12 << 20  # bytes that certainly stay in the cache

# The model predicts the order within a kind of configs better than the order between kinds.
_SAME_KIND = 1.05  # factor for each config already taken of a kind
_LIKELY = 1.3  # times the best: slower ones are not tried


class Way(NamedTuple):
    """The parameters that determine a config."""

    consumers: int
    tiles_m: int
    bn: int
    ping_pong: bool = False
    cluster: tuple[int, int] = (1, 1)
    cluster_k: int = 1
    parts: int = 1
    fixup: str = "none"
    blocks: int = 1  # per multiprocessor
    store: str = ""  # empty: the one that suits the rows of C
    loads: str = ""  # how lines are loaded; empty: the copy engine fetches them, or aligned copies
    ahead: bool = False  # begins the next step's products before it adds sums of 8-bit floats

    @property
    def bm(self) -> int:
        return 64 * self.tiles_m * (1 if self.ping_pong else self.consumers)


@remembered
def choose(gemm: Gemm, gpu: Gpu) -> dict[str, Any]:
    """The fastest config by the model that the space admits."""
    space = sm90_space("defaults", gemm, gpu, asks=True)
    return next(config for _, config in ranked(gemm, gpu) if not space.explain(config))


@lru_cache(2)
def ranked(gemm: Gemm, gpu: Gpu) -> list[tuple[float, dict[str, Any]]]:
    """Seconds and configs, the fastest by the model first; the space may not admit all of them."""
    configs = (config(gemm, gpu, way) for way in ways(gemm, gpu, asks=True))
    timed = [(seconds(gemm, gpu, one), one) for one in configs if one is not None]
    return sorted(timed, key=lambda row: row[0])


def various(gemm: Gemm, gpu: Gpu) -> Iterator[dict[str, Any]]:
    """Configs that may be the fastest, starting with the default."""
    return of_several_kinds(ranked(gemm, gpu), sm90_space("defaults", gemm, gpu, asks=True), KINDS)


def _kind(c: dict[str, Any]) -> tuple[Any, ...]:
    shares = c["CLUSTER_M"] * c["CLUSTER_N"] > 1
    stored = (c["STORE"] in BY_LINES and c["STORE"], c.get("REALIGN") in ("load", "async") and c["REALIGN"])
    return c["SCHEDULE"], shares, c.get("CLUSTER_K", 1) > 1, c["FIXUP"], c["MIN_BLOCKS"] > 1, *stored


def _tile(c: dict[str, Any]) -> tuple[Any, ...]:
    return rows_of_tile(c), c["BN"]


KINDS = Kinds(_kind, _tile, _SAME_KIND, _LIKELY)


def ways(gemm: Gemm, gpu: Gpu, *, asks: bool = False) -> Iterator[Way]:
    """The combinations of parameters from which configs can be made. `asks`: producers may copy lines themselves."""
    engine = "engine" if asks and asynchronous(gemm) and not realigned(gemm) else ""
    yield from (way._replace(loads=engine) for way in _tiled(gemm, gpu))
    letters, others = realigned(gemm), asynchronous(gemm) if asks else ""
    for way in _tiled(gemm, gpu) if letters or others else ():
        if letters and ("b" not in letters or loads_columns(gemm, way.bn)) and way.cluster == (1, 1):
            yield way._replace(loads="load")
        if others and (gemm.layout[1] == "t" or way.bn % 64 == 0) and way.cluster == (1, 1):
            yield way._replace(loads="async")


def _tiled(gemm: Gemm, gpu: Gpu) -> Iterator[Way]:
    steps = _steps(gemm)
    row, cached = gemm.n * dtype(gemm.c).bytes, gemm.least_bytes() <= _CACHED
    stores = ("", "straight", "sectors") if row % LINE_BYTES else ("",)
    for ahead, (consumers, tiles_m, ping_pong) in product((False, True) if promotes(gemm) else (False,), _GROUPS):
        for bn in _widths(gemm, gpu, Way(consumers, tiles_m, 8, ping_pong).bm):
            tile = Way(consumers, tiles_m, bn, ping_pong, ahead=ahead)
            most = CONSUMER_REGISTERS.get(consumers, _REGISTERS[1])
            if _sums(gemm, tile) + _RESERVED > most or tile.bm >= max(2 * gemm.m, 65):
                continue
            if bn < min(gemm.n, 16):
                continue  # so few columns of a wider matrix were never timed
            in_part = operand_rows(gemm, bn) != bn
            if ping_pong and in_part:
                continue  # partly used lines of columns then take a third longer, or twice as long
            tiles = ceil(gemm.m / tile.bm) * ceil(gemm.n / bn) * gemm.batch
            for store in stores:
                # 33 clusters of four do not run at once; with few steps a cluster only waits.
                for cluster in ((1, 1), (2, 1), (1, 2)) if steps > 1 else ((1, 1),):
                    yield tile._replace(cluster=cluster, store=store)
                for blocks in _BLOCKS if not ping_pong and steps <= _FEW_STEPS else ():
                    if tiles > gpu.multiprocessors * (blocks - 1):
                        yield tile._replace(blocks=blocks, store=store)
            if ping_pong or in_part or tiles * 2 > gpu.multiprocessors:
                continue
            for parts in _PARTS:
                if 1 < parts <= min(steps, gpu.multiprocessors // tiles):
                    # Stream-K was never faster where K is split.
                    yield tile._replace(parts=parts, fixup="split")
                    if parts <= _MOST_SHARES:
                        yield tile._replace(parts=parts, fixup="exchange")
                # Clusters along K are out of step with others that share their lines.
                for cluster_k in (2, 3, 4) if cached else ():
                    if parts * cluster_k <= min(steps, gpu.multiprocessors // tiles):
                        yield tile._replace(cluster_k=cluster_k, parts=parts, fixup="split")


def _widths(gemm: Gemm, gpu: Gpu, bm: int) -> list[int]:
    """Some widths of tiles, and those with which as many tiles as there are multiprocessors cover the matrix."""
    step = 8 if gemm.layout[1] == "t" and gemm.acc != "i32" else 16
    high = ceil(gemm.m / bm) * gemm.batch
    wide = {gpu.multiprocessors * rounds // high for rounds in (1, 2, 3)} - {0}
    whole = {ceil(ceil(gemm.n / count) / step) * step for count in wide}
    even = {n for n in whole if n <= _COLUMNS[0]} if gemm.layout[1] == "t" else set[int]()
    return sorted((n for n in {*_COLUMNS, *even} if n < max(2 * gemm.n, 65)), reverse=True)


def config(gemm: Gemm, gpu: Gpu, way: Way) -> dict[str, Any] | None:
    """The config of these parameters, with as many stages as fit; None if too few do."""
    splits, size = way.cluster_k * way.parts, dtype(gemm.c).bytes
    wide = {"STORE": way.store, "BN": way.bn, "CLUSTER_N": 1}
    if way.store == "sectors" and (gemm.n <= way.bn or overlap(gemm, wide) > way.bn // 4):
        return None
    tiles = ceil(gemm.m / way.bm) * columns_of_tiles(gemm, wide) * gemm.batch
    staying = way.ping_pong or tiles > gpu.multiprocessors
    moved = way.consumers > 1 and way.tiles_m * way.bn >= 192 + 64 * way.ping_pong
    if promotes(gemm):
        moved = _sums(gemm, way) + _RESERVED > _REGISTERS[way.consumers]
    if moved and (way.blocks > 1 or way.loads in ("load", "async")):
        return None
    store = way.store or "straight"
    if splits == 1 and not way.store and gemm.n * size % LINE_BYTES:
        store = "lines"
    elif splits == 1 and not way.store:
        store = "late" if staying and moved and _late(gemm, way) else "copy" if staying else "reuse"
    stage = ATOM_BYTES * (way.bm + operand_rows(gemm, way.bn))
    line = way.consumers * 4 * BUFFER_ROWS * result_pitch(gemm, way.bn, store)
    twice = line <= 16384 * way.consumers // 2 and not gemm.blocks  # factors take the place of a second buffer
    buffers = 0 if store not in ("copy", "late") else 2 if twice else 1
    held = buffers + (store in BY_LINES)
    room = _ROOM if way.blocks == 1 else _ROOM // way.blocks - _FIXED
    if gemm.blocks:
        room -= way.consumers * 4 * factor_bytes(gemm, way.bn, way.tiles_m) + _BESIDE
    steps = ceil(_steps(gemm) / splits) if not staying else 12
    most = min(max(steps, 2), (room - line * held) // stage)
    if most < (1 if way.blocks == 1 else 2):
        return None
    # If there is room for more than twelve stages, longer ones request more from memory at once: 7 % faster on average
    # in 59 pairs that were raced, 7 of which were slower.
    few = staying or way.fixup != "none" or way.loads or way.ahead
    atoms = 2 if most > STAGES[-1] and not few else 1
    result: dict[str, Any] = {
        "SCHEDULE": "ping-pong" if way.ping_pong else "cooperative",
        "CONSUMERS": way.consumers, "TILES_M": way.tiles_m, "BN": way.bn, "ATOMS": atoms,
        "STAGES": max(n for n in STAGES if n <= most // atoms), "REGISTERS": moved, "MIN_BLOCKS": way.blocks,
        "CLUSTER_M": way.cluster[0], "CLUSTER_N": way.cluster[1], "STORE": store,
        "FIXUP": way.fixup, "GROUP": 1 if _streams(gemm, gpu) else 8, "ALONG": "M", "HILBERT": False,
        # If one side is small, the other is read only once.
        "CACHE": "stream" if gemm.batch == 1 and min(gemm.m, gemm.n) <= 256 else "none",
        "FIXED": False,  # without a search a kernel should serve other shapes, too
    }  # fmt: skip
    if promotes(gemm):
        result["AHEAD"] = way.ahead
    if buffers:
        result["BUFFERS"] = buffers
    if way.loads or realigned(gemm):
        result["REALIGN"] = way.loads or "copy"
    if way.fixup == "none":
        result["PERSISTENT"] = staying
    else:
        result["PARTS"] = way.parts
    if way.fixup == "split":
        result["CLUSTER_K"] = way.cluster_k
    return result


def _streams(gemm: Gemm, gpu: Gpu) -> bool:
    """Whether memory traffic is almost only C: adjacent tiles then write neighbouring rows at the same time."""
    written = gemm.batch * gemm.m * gemm.n * dtype(gemm.c).bytes
    return written > gpu.l2_bytes and gemm.n * gemm.k * dtype(gemm.b).bytes <= _CACHED and _steps(gemm) <= _FEW_STEPS


def _late(gemm: Gemm, way: Way) -> bool:
    """Whether registers hold a tile's results in addition to the sums of the next tile."""
    one_set = dtype(gemm.c).bytes == 2 and not promotes(gemm)
    longer = way.consumers > 1 and not way.ping_pong and _steps(gemm) >= _LATE_STEPS
    return one_set and longer and 96 <= _sums(gemm, way) <= 130


def _sums(gemm: Gemm, way: Way) -> int:
    return sums_of(gemm, {"TILES_M": way.tiles_m, "BN": way.bn, "AHEAD": way.ahead})


def _steps(gemm: Gemm) -> int:
    return ceil(gemm.k * dtype(gemm.a).bytes / ATOM_BYTES)
