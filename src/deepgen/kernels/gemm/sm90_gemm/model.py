"""A rough model of a config's time: the busiest multiprocessor, the memory, and fixed costs.

Sizes may be symbolic (`libraries/c/models.py`), so it uses only arithmetic and few conditions.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, gcd
from typing import Any, NamedTuple

from deepgen.kernels.gemm import beyond
from deepgen.kernels.gemm.sm90_gemm.lower import (
    ATOM_BYTES,
    BY_LINES,
    operand_line,
    operand_rows,
    overlap,
    producers,
    promotes,
    rows_of_tile,
    sets_of_sums,
    shared_bytes,
)
from deepgen.kernels.gemm.sm90_gemm.operands import LINE_BYTES, PITCH_BYTES, factor_registers
from deepgen.kernels.shared.epilogue import issue_slots
from deepgen.operators import Gemm
from deepgen.targets import Gpu
from deepgen.vocabulary import dtype

Config = Mapping[str, Any]

# Microseconds, unless noted otherwise. Fitted together to 4,257 timings on an H200: 90 drawn shapes (bf16, fp8; aligned
# and not, batched and not, all layouts), 182 problems of suites, and three spaces. docs/kernels/sm90_gemm.md describes
# how, and how well the model chooses at held-out shapes.
LAUNCH = 3.9  # of the kernel, until the first tile has arrived
_SPREAD = 1.35  # additional if all multiprocessors take part: each fetches code and descriptors
_CLUSTER = 0.15  # additional until a cluster's blocks have synchronized
_PING_PONG = 0.1  # additional until the second warpgroup begins; fitted to earlier timings
_TILE = 0.25  # from a tile's last product to the first of the next tile
_BLOCK = 1.6  # from a block's end to the first products of the block that takes its place
_LATENCY = 0.68  # latency of a stage
_CLUSTER_LATENCY = 1.0  # of one that blocks of a cluster fetch for each other
_CLOCK = 1960.0  # clocks per microsecond
# Clocks per step, which is 128 bytes of K:
_OPERAND, _OPERAND_BOUND = 0.26, 1.5  # 128 bytes of an operand from shared memory: cost in power, or as the bottleneck
_ALONE = 64.0  # the last products of a warpgroup, if no other work overlaps with them
_PROMOTE, _ADD = 65.0, 1.23  # moving sums of 8-bit floats; additional for each column if no other group multiplies
_AHEAD = 0.3  # of that, if the next step's products run meanwhile
_SCALED, _SCALED_TILE = 150.0, 1.5  # scales of blocks; of single columns, for 64 rows of each. Of one shape, not fitted
_FACTOR = 6.0  # of each warpgroup and group of columns that always share a block: its factors; counted, not fitted
_LINE, _SHORT_LINE = 1.32, 2.4  # a line that the copy engine fetches; additional if K ends in it
_NARROW_LINE = 1.1  # additional for a line across K that is mostly outside the matrix
_LOADED, _LOAD_BEGIN = 8.0, 0.85  # a line that producers load; microseconds until the first have arrived
# The same that producers copy asynchronously, by 16 bytes; additional by 8, and by 4; until the first have arrived.
_ASKED, _ASKED_8, _ASKED_4, _ASK_BEGIN = 3.4, 0.7, 1.1, 0.7
_SPLIT = 1.5  # additional share if a line is not aligned to 64 bytes: it is fetched in two parts
_CLUSTER_SLOWER, _FOUR_SLOWER = 1.035, 1.3  # blocks wait for each other in each step; few clusters of four run at once
# Memory, relative to its bandwidth:
_READ, _WRITTEN, _OVER = 0.75, 0.67, 0.65  # results stay in the cache, except those that do not fit
_ASKING = 0.2  # exponent of the share of busy multiprocessors
_COPIED, _COPIED_LINE = 0.265, 8e-5  # aligned copies: each byte is read and written; additional for each line
_COPY = 2.74  # the preceding launch, as far as it does not overlap
_LINES_FROM_CACHE = 117e3  # for all multiprocessors together
# Results, in kB per microsecond from one multiprocessor:
_STRAIGHT, _BY_LINES, _BY_COPY = 14.5, 12.0, 88.0  # by lines: per warpgroup
_STORING = 2.3  # warpgroups that do not slow each other down
_SPLIT_COPY, _SPLIT_FAR = 0.2, 0.05  # relative slowdown if rows are not aligned to 64 bytes
_TEXT_WARPS = 2  # of a scheduler, that have it busy with an epilogue's text
_TEXT_BESIDE = 1.4  # exposed share of a text between two tiles, with its waits; two warpgroups are at it together
_LINES_BEGIN = 0.3  # until the first whole rows are stored
_RAGGED = 0.28  # additional share if tiles are not multiples of 128 bytes
_ODD = 0.74  # additional share for direct stores to unaligned rows
_STREAMS = 4.0  # L2 sizes: if C is this large, half of it is not cached
_EXPOSED, _EXPOSED_SPLIT = 0.65, 1.3  # exposed share of overlapped stores; of those to rows not aligned to 64 bytes
# Parts of K, sums in kB per microsecond:
_EXCHANGE, _EXCHANGE_PART, _EXCHANGED = 1.15, 0.03, 66.0
_PARTS, _ADDED = 2.14, 55.0  # by the last block
_CLUSTER_K, _ADDED_IN_CLUSTER = 1.16, 65.0
_STREAM = 4.7  # blocks that share tiles wait for each other
_SHARP, _SOFT = 9.0, 2.5  # exponents that combine overlapping times; the second: waits and products
_MORE_REGISTERS = 56  # of a thread, in addition to sums


class Gathered(NamedTuple):
    """The differences from a matrix if A is gathered from another tensor."""

    read: int  # bytes in memory
    pitch: int  # bytes between rows
    products: float  # the share that is computed; the others would multiply zeros


def seconds(gemm: Gemm, gpu: Gpu, c: Config, gathered: Gathered | None = None) -> float:
    """The seconds of a run with cold caches."""
    size, result = dtype(gemm.a).bytes, dtype(gemm.c).bytes
    bm, bn, fixup, shared = rows_of_tile(c), c["BN"], c["FIXUP"], c["CLUSTER_M"] * c["CLUSTER_N"]
    splits = splits_of(c)
    wide = bn - overlap(gemm, c)  # columns that a tile does not share
    across = ceil((gemm.n if wide == bn else max(gemm.n - bn + wide, 1)) / (wide * c["CLUSTER_N"]))
    tiles = ceil(gemm.m / (bm * c["CLUSTER_M"])) * across * gemm.batch * shared
    stays = c.get("PERSISTENT", False) or fixup in ("stream", "tail")
    most = c["MIN_BLOCKS"] if stays else _resident(gemm, gpu, c)
    at_once, rounds = _rounds(gpu, c, tiles * splits, most)
    steps = ceil(ceil(gemm.k * size / ATOM_BYTES) / splits)
    row_a, row_b = (gemm.m if gemm.layout[0] == "t" else gemm.k), (gemm.k if gemm.layout[1] == "t" else gemm.n)
    odd_a, odd_b = beyond(row_a * size, LINE_BYTES), beyond(row_b * size, LINE_BYTES)
    way = c.get("REALIGN", "copy")
    copied_a, copied_b = odd_a * (way == "copy"), odd_b * (way == "copy")
    lines_a = _lines_of_a(gemm, c, bm) * _slower(row_a * size if gathered is None else gathered.pitch, way)
    lines_b = _lines_of_b(gemm, c) * _slower(row_b * size, way)
    share = 1.0 if gathered is None else gathered.products
    body = _products(gemm, c, steps, (lines_a, lines_b), (at_once, most, rounds if stays else 1), share)
    ragged = 1 + _RAGGED * (c["STORE"] != "sectors" and bn * result % 128 > 0)
    odd = 1 + _ODD * beyond(gemm.n * result, LINE_BYTES) * (c["STORE"] == "straight")
    split = beyond(gemm.n * result, PITCH_BYTES)
    # Adjacent tiles of a cluster write shared sectors at the same time; other neighbours write them later.
    far = _SPLIT_FAR * (c["CLUSTER_M"] > 1) - _SPLIT_FAR / 2 * (c["CLUSTER_N"] > 1)
    by_copy = _BY_COPY * (1 - split * (_SPLIT_COPY + far))
    by_lines = _BY_LINES * min(c["CONSUMERS"], _STORING)
    rate = {"straight": _STRAIGHT, "lines": by_lines, "sectors": by_lines}.get(c["STORE"], by_copy) * 1e3
    store = at_once * min(gemm.m, bm) * min(gemm.n, wide) * result * ragged * odd / rate
    # Tiles that extend beyond C take as long as whole ones.
    written = gemm.batch * gemm.m * (gemm.n if wide < bn else ceil(gemm.n / bn) * bn) * result * ragged * odd
    alternating = c["SCHEDULE"] == "ping-pong"
    hidden = _exposed(gpu, c, written, split)
    later = max(rounds - 1, 0) if fixup == "stream" else rounds - 1
    text, beside = _text(gemm, c, at_once)
    own = rounds * (body + _TILE) + later * (store * hidden + text * beside + (0.0 if stays else _BLOCK))
    a, b = gemm.batch * gemm.m * gemm.k * size, gemm.batch * gemm.n * gemm.k * size
    a = a if gathered is None else gathered.read
    bandwidth = gpu.bandwidth_gbs * 1e3  # bytes per microsecond
    memory = (a * (1 - copied_a) + b * (1 - copied_b)) / (bandwidth * _READ) + written / (bandwidth * _WRITTEN)
    memory += _OVER * max(written - gpu.l2_bytes, 0) / bandwidth
    busy = min(tiles * splits / gpu.multiprocessors, 1.0)
    memory /= busy**_ASKING
    cache = tiles * splits * steps * (lines_a + lines_b) / _LINES_FROM_CACHE
    whole: float = LAUNCH + _SPREAD * busy
    whole += _longest(own, memory, cache) * (_FOUR_SLOWER if shared > 2 else 1.0) + store + text
    whole += _LINES_BEGIN * (c["STORE"] in BY_LINES) + _CLUSTER * (shared > 1)
    whole += _PING_PONG * alternating + _adding(c, bm * bn * 4e-3)
    copying = copied_a + copied_b - copied_a * copied_b  # at least one of them
    whole += (odd_a + odd_b - odd_a * odd_b) * (way == "load") * _LOAD_BEGIN + (way == "async") * _ASK_BEGIN
    whole += _COPY * copying + (a * copied_a + b * copied_b) / (bandwidth * _COPIED)
    whole += _COPIED_LINE * (copied_a * a / (row_a * size) + copied_b * b / (row_b * size))
    return whole * 1e-6


def _exposed(gpu: Gpu, c: Config, written: Any, split: Any) -> Any:
    """The share of the time of stores that nothing runs beside."""
    if c["SCHEDULE"] != "ping-pong":
        return _EXPOSED if c["STORE"] == "late" else 1.0
    streams = written / (written + _STREAMS * gpu.l2_bytes)  # the share of C that does not stay in the cache
    return _EXPOSED + (_EXPOSED_SPLIT - _EXPOSED) * split * streams * (c["STORE"] == "copy")


def _text(gemm: Gemm, c: Config, at_once: Any) -> tuple[Any, float]:
    """The time of an epilogue's text for a tile, and the share of it that nothing runs beside."""
    alternating = c["SCHEDULE"] == "ping-pong"  # one warpgroup has a tile's text while the other multiplies
    warps = max(at_once * (1 if alternating else c["CONSUMERS"]), _TEXT_WARPS)
    beside = 0.0 if alternating else _TEXT_BESIDE if c["STORE"] == "late" else 1.0
    return issue_slots(gemm) * c["TILES_M"] * c["BN"] / 2 * warps / _CLOCK, beside


def splits_of(c: Config) -> int:
    """The number of parts of K of every tile."""
    parts: int = c["PARTS"] * c.get("CLUSTER_K", 1) if c["FIXUP"] in ("split", "exchange") else 1
    return parts


def sums_of(gemm: Gemm, c: Config) -> int:
    """Registers of a thread that hold sums, and factors of blocks."""
    sums: int = c["TILES_M"] * c["BN"] // 2 * sets_of_sums(gemm, c)
    return sums + int(factor_registers(gemm, c["TILES_M"]))


def _slower(row: Any, way: str) -> Any:
    """The time of a line of such rows, relative to an aligned line."""
    odd, within = beyond(row, LINE_BYTES), beyond(row, PITCH_BYTES)
    if way == "async":  # by 16, 8 or 4 bytes
        return 1 + within * ((_ASKED + _ASKED_8 * odd + _ASKED_4 * beyond(row, LINE_BYTES // 2)) / _LINE - 1)
    return 1 + _SPLIT * within * (1 - odd) + (_LOADED / _LINE - 1) * odd * (way == "load")


def _longest(*times: Any) -> Any:
    """The combined time of overlapping parts."""
    return sum(time**_SHARP for time in times) ** (1 / _SHARP)


def _rounds(gpu: Gpu, c: Config, units: Any, most: int) -> tuple[Any, Any]:
    """Blocks that run on a multiprocessor at a time, and the number of rounds."""
    if c["FIXUP"] == "stream":
        return most, units / (gpu.multiprocessors * most)
    if c["FIXUP"] == "tail":
        return most, units // (gpu.multiprocessors * most) + 1 / c["PARTS"]
    at_once = min(ceil(units / gpu.multiprocessors), most) if most > 1 else 1
    return at_once, ceil(units / (gpu.multiprocessors * at_once))


def _resident(gemm: Gemm, gpu: Gpu, c: Config) -> int:
    """Blocks that are resident on a multiprocessor, even if the compiler was not asked to leave room for them."""
    threads = c["CONSUMERS"] * 128 + producers(c)
    held = sums_of(gemm, c) * (3 if c["STORE"] == "late" else 2) // 2 + _MORE_REGISTERS
    registers = min(-(-held // 8) * 8, gpu.registers_per_sm // threads // c["MIN_BLOCKS"] // 8 * 8)
    by_shared = gpu.shared_per_sm // (shared_bytes(gemm, c) + gpu.shared_reserved)
    most = min(by_shared, gpu.registers_per_sm // (registers * threads), gpu.threads_per_sm // threads)
    return 1 if c["REGISTERS"] else max(most, c["MIN_BLOCKS"])


def _lines_of_a(gemm: Gemm, c: Config, bm: int) -> Any:
    """Lines of A that a block fetches per step: no more rows than the matrix has, unless blocks share them."""
    few = gemm.layout[0] == "n" and c["CLUSTER_N"] == 1
    if gemm.layout[0] == "t" and c.get("REALIGN") == "async":  # what lies outside of a matrix is not asked for
        return bm * min(gemm.m * dtype(gemm.a).bytes / ATOM_BYTES, 1)
    return (min(ceil(gemm.m / 8) * 8, bm) if few else bm) / c["CLUSTER_N"]


def _lines_of_b(gemm: Gemm, c: Config) -> float:
    """Lines of B that a block fetches per step; narrow lines count as whole ones."""
    narrow = ATOM_BYTES / operand_line(gemm, c["BN"]) if gemm.layout[1] == "n" else 1.0
    if gemm.layout[1] == "n" and c.get("REALIGN") == "async":
        narrow = min(gemm.n * dtype(gemm.b).bytes / ATOM_BYTES, 1)
    return operand_rows(gemm, c["BN"]) * narrow / float(c["CLUSTER_M"])


def _products(
    gemm: Gemm, c: Config, steps: Any, lines: tuple[Any, Any], work: tuple[Any, int, Any], share: float = 1.0
) -> Any:
    """The time of a tile's products, limited by the arrival of operands. `work`: blocks at once, most resident blocks,
    and tiles that one block fetches."""
    (lines_a, lines_b), (at_once, most, rounds), bm = lines, work, rows_of_tile(c)
    single = c["SCHEDULE"] == "ping-pong" or c["CONSUMERS"] == 1  # one warpgroup multiplies at a time
    operands = bm + bm // 64 * operand_rows(gemm, c["BN"])
    tensor = max(bm * c["BN"] / 32 + _OPERAND * operands, _OPERAND_BOUND * operands)
    tensor *= share * (_CLUSTER_SLOWER if c["CLUSTER_M"] * c["CLUSTER_N"] > 1 else 1.0)
    alone = _ALONE * (single and c["TILES_M"] == 1 and not c.get("AHEAD"))
    if promotes(gemm):
        alone += (_PROMOTE + _ADD * c["TILES_M"] * c["BN"] * single) * (_AHEAD if c.get("AHEAD") else 1.0)
    if gemm.blocks:
        alone += _SCALED_TILE * c["CONSUMERS"] * c["TILES_M"] * c["BN"] if gemm.blocks[1] == 1 else _SCALED
    if gemm.blocks and gemm.blocks[1] > 1:
        alone += _FACTOR * c["CONSUMERS"] * (c["BN"] // gcd(c["BN"], overlap(gemm, c), gemm.blocks[1]))
    along = lines_a * (gemm.layout[0] == "n") + lines_b * (gemm.layout[1] == "t")
    along *= c.get("REALIGN") != "load"
    size = dtype(gemm.a).bytes
    fetch = _LINE * (lines_a + lines_b) + _SHORT_LINE * along * beyond(gemm.k * size, ATOM_BYTES) / steps
    engine = c.get("REALIGN") != "async"
    narrow_a = engine * (gemm.layout[0] == "t") * (gemm.m * size < ATOM_BYTES // 2)
    narrow_b = engine * (gemm.layout[1] == "n") * (gemm.n * size < ATOM_BYTES // 2)
    fetch += _NARROW_LINE * (lines_a * narrow_a + lines_b * narrow_b)
    steps = ceil(steps / c["ATOMS"]) * c["ATOMS"]  # in whole stages
    # All stages are requested at once. Each is released when the products of the next have begun: so one is never in
    # flight.
    ring, held = max(c["STAGES"] - 1, 1) * c["ATOMS"], c["STAGES"] * c["ATOMS"]
    if c.get("REALIGN") == "load":  # producers wait for one stage while they request the next
        ring, held = 1, 2
    latency = _CLUSTER_LATENCY if c["CLUSTER_M"] * c["CLUSTER_N"] > 1 else _LATENCY
    waits = max(steps - held / rounds, 0) * latency / ring
    own = steps * _longest(tensor + alone, fetch) / _CLOCK
    own = (own**_SOFT + waits**_SOFT) ** (1 / _SOFT)
    # Other blocks multiply while one waits.
    return own if most == 1 else max(own, at_once * steps * _longest(tensor, fetch) / _CLOCK)


def _adding(c: Config, kilobytes: float) -> float:
    """The time of adding up parts of K."""
    if c["FIXUP"] == "exchange":
        own = c["PARTS"] * _share(c["TILES_M"] * c["BN"] // 8, c["PARTS"])  # what a block adds up, in tiles
        return float(_EXCHANGE + _EXCHANGE_PART * c["PARTS"] + (1 + own) / 2 * kilobytes / _EXCHANGED)
    if c["FIXUP"] in ("stream", "tail"):
        return _STREAM + kilobytes / _EXCHANGED
    time, cluster = 0.0, c.get("CLUSTER_K", 1)
    if cluster > 1:
        time += _CLUSTER_K + kilobytes / _ADDED_IN_CLUSTER
    if c.get("PARTS", 1) > 1:
        time += _PARTS + c["PARTS"] * kilobytes / cluster / _ADDED
    return time


def _share(chunks: int, parts: int) -> float:
    """The share of a tile that a block finishes, as in epilogue.h: whole shares, so some blocks may have none."""
    return next(n for n in range(-(-chunks // parts), chunks + 1) if chunks % n == 0) / chunks
