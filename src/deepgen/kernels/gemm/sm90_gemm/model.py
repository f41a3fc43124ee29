"""A rough model of a config's time: the busiest multiprocessor, the memory, and fixed costs.

Sizes may be symbols (`libraries/c/models.py`), so it uses only arithmetic and few conditions.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any, NamedTuple

from deepgen.kernels.gemm.sm90_gemm.lower import (
    ATOM_BYTES,
    BY_LINES,
    operand_line,
    operand_rows,
    overlap,
    producers,
    promotes,
    rows_of_tile,
    shared_bytes,
)
from deepgen.kernels.gemm.sm90_gemm.realign import LINE_BYTES, PITCH_BYTES
from deepgen.operators import Gemm
from deepgen.targets import Gpu
from deepgen.vocabulary import dtype

Config = Mapping[str, Any]

# Microseconds, unless said otherwise. Fitted together to 4,257 timings on an H200: 90 drawn shapes (bf16, fp8; aligned
# and not, batched and not, all layouts), 182 problems of suites, and three spaces. docs/kernels/sm90_gemm.md tells how,
# and how well it chooses at shapes that were left out.
LAUNCH = 3.9  # of the kernel, and until the first tile has come
_SPREAD = 1.0  # more where all multiprocessors take part: each fetches code and descriptors
_CLUSTER = 0.15  # more until a cluster's blocks have met
_PING_PONG = 0.1  # more until the second warpgroup begins; as fitted to earlier timings
_TILE = 0.25  # from a tile's last product to the next one's first
_BLOCK = 1.6  # from a block's end to the first products of one that waited for its place
_LATENCY = 0.68  # from asking for a stage to having it
_CLOCK = 1960.0  # clocks in a microsecond
# Clocks of a step, 128 bytes of K:
_OPERAND, _OPERAND_BOUND = 0.26, 1.5  # 128 bytes of an operand from shared memory: they cost power, or bind
_ALONE = 64.0  # the last products of a warpgroup that has no others, and no partner
_PROMOTE, _ADD = 65.0, 1.23  # sums of 8-bit floats that are moved; for each column where no other group multiplies
_LINE, _SHORT_LINE = 1.32, 2.4  # a line that the copy engine fetches; more for one that K ends in
_NARROW_LINE = 1.5  # more for one across K that is mostly outside the matrix
_LOADED, _LOAD_BEGIN = 8.0, 0.85  # a line that producers load; microseconds until the first are there
_SPLIT = 1.5  # more of a line that begins within 64 bytes: it is fetched in two
_CLUSTER_SLOWER, _FOUR_SLOWER = 1.035, 1.3  # blocks wait for each other in each step; few clusters of four run at once
# Memory, of its rate:
_READ, _WRITTEN, _OVER = 0.75, 1.12, 0.27  # results stay in the cache, but for what it does not hold
_ASKING = 0.2  # the power of the multiprocessors at work, of all, to which it grows
_COPIED, _COPIED_LINE = 0.265, 8e-5  # aligned copies: each byte is read and written; more for each line
_COPY = 2.74  # the launch before, as far as it does not overlap
_LINES_FROM_CACHE = 117e3  # that all multiprocessors together are given
# Results, kB a microsecond from one multiprocessor:
_STRAIGHT, _BY_LINES, _BY_COPY = 14.5, 12.0, 41.0  # by lines: from one warpgroup
_STORING = 2.3  # warpgroups that are not in each other's way
_SPLIT_COPY, _SPLIT_FAR = 0.2, 0.05  # less of it for rows that begin within 64 bytes
_LINES_BEGIN = 0.3  # until whole rows go out
_RAGGED = 0.28  # more where tiles end within 128 bytes of a row
_ODD = 0.74  # more for straight stores to rows that begin anywhere
_STREAMS = 4.0  # caches that C fills by half
_EXPOSED, _EXPOSED_SPLIT = 0.65, 1.3  # of a store beside other products; of one to rows that begin within 64 bytes
# Parts of K, sums in kB a microsecond:
_EXCHANGE, _EXCHANGE_PART, _EXCHANGED = 1.15, 0.03, 66.0
_PARTS, _ADDED = 2.14, 55.0  # by the block that comes last
_CLUSTER_K, _ADDED_IN_CLUSTER = 1.16, 65.0
_STREAM = 4.7  # blocks that share tiles wait for each other
_SHARP, _SOFT = 9.0, 2.5  # how little the shorter of times that overlap add to the longest; waiting beside products
_MORE_REGISTERS = 56  # of a thread, beside sums


class Gathered(NamedTuple):
    """Where A is gathered from another tensor: what differs from a matrix."""

    read: int  # bytes in memory
    pitch: int  # bytes from row to row
    products: float  # share of them that is computed: others are of zeros


def seconds(gemm: Gemm, gpu: Gpu, c: Config, gathered: Gathered | None = None) -> float:
    """What a run takes with cold caches."""
    size, result = dtype(gemm.a).bytes, dtype(gemm.c).bytes
    bm, bn, fixup, shared = rows_of_tile(c), c["BN"], c["FIXUP"], c["CLUSTER_M"] * c["CLUSTER_N"]
    splits = splits_of(c)
    wide = bn - overlap(gemm, c)  # of a tile's columns, those that are its own
    beside = ceil((gemm.n if wide == bn else max(gemm.n - bn + wide, 1)) / (wide * c["CLUSTER_N"]))
    tiles = ceil(gemm.m / (bm * c["CLUSTER_M"])) * beside * gemm.batch * shared
    stays = c.get("PERSISTENT", False) or fixup in ("stream", "tail")
    most = c["MIN_BLOCKS"] if stays else _resident(gemm, gpu, c)
    at_once, rounds = _rounds(gpu, c, tiles * splits, most)
    steps = ceil(ceil(gemm.k * size / ATOM_BYTES) / splits)
    row_a, row_b = (gemm.m if gemm.layout[0] == "t" else gemm.k), (gemm.k if gemm.layout[1] == "t" else gemm.n)
    odd_a, odd_b = _beyond(row_a * size, LINE_BYTES), _beyond(row_b * size, LINE_BYTES)
    copies = c.get("REALIGN", "copy") == "copy"
    copied_a, copied_b = odd_a * copies, odd_b * copies
    lines_a = _lines_of_a(gemm, c, bm) * _slower(row_a * size if gathered is None else gathered.pitch, copies)
    lines_b = _lines_of_b(gemm, c) * _slower(row_b * size, copies)
    share = 1.0 if gathered is None else gathered.products
    body = _products(gemm, c, steps, (lines_a, lines_b), (at_once, most, rounds if stays else 1), share)
    ragged = 1 + _RAGGED * (c["STORE"] != "sectors" and bn * result % 128 > 0)
    odd = 1 + _ODD * _beyond(gemm.n * result, LINE_BYTES) * (c["STORE"] == "straight")
    split = _beyond(gemm.n * result, PITCH_BYTES)
    # Pairs that lie side by side write what they share at the same time; neighbours of others come later.
    far = _SPLIT_FAR * (c["CLUSTER_M"] > 1) - _SPLIT_FAR / 2 * (c["CLUSTER_N"] > 1)
    by_copy = _BY_COPY * (1 - split * (_SPLIT_COPY + far))
    by_lines = _BY_LINES * min(c["CONSUMERS"], _STORING)
    rate = {"straight": _STRAIGHT, "lines": by_lines, "sectors": by_lines}.get(c["STORE"], by_copy) * 1e3
    store = at_once * min(gemm.m, bm) * min(gemm.n, wide) * result * ragged * odd / rate
    # Tiles that end outside C take as long as whole ones.
    written = gemm.batch * gemm.m * (gemm.n if wide < bn else ceil(gemm.n / bn) * bn) * result * ragged * odd
    hidden = _EXPOSED if c["STORE"] == "late" else 1.0
    if c["SCHEDULE"] == "ping-pong":
        streams = written / (written + _STREAMS * gpu.l2_bytes)  # of C, what does not stay in the cache
        hidden = _EXPOSED + (_EXPOSED_SPLIT - _EXPOSED) * split * streams * (c["STORE"] == "copy")
    later = max(rounds - 1, 0) if fixup == "stream" else rounds - 1
    own = rounds * (body + _TILE) + later * (store * hidden + (0.0 if stays else _BLOCK))
    a, b = gemm.batch * gemm.m * gemm.k * size, gemm.batch * gemm.n * gemm.k * size
    a = a if gathered is None else gathered.read
    bandwidth = gpu.bandwidth_gbs * 1e3  # bytes in a microsecond
    memory = (a * (1 - copied_a) + b * (1 - copied_b)) / (bandwidth * _READ) + written / (bandwidth * _WRITTEN)
    memory += _OVER * max(written - gpu.l2_bytes, 0) / bandwidth
    busy = min(tiles * splits / gpu.multiprocessors, 1.0)
    memory /= busy**_ASKING
    cache = tiles * splits * steps * (lines_a + lines_b) / _LINES_FROM_CACHE
    whole: float = LAUNCH + _SPREAD * busy
    whole += _longest(own, memory, cache) * (_FOUR_SLOWER if shared > 2 else 1.0) + store
    whole += _LINES_BEGIN * (c["STORE"] in BY_LINES) + _CLUSTER * (shared > 1)
    whole += _PING_PONG * (c["SCHEDULE"] == "ping-pong") + _adding(c, bm * bn * 4e-3)
    copying = copied_a + copied_b - copied_a * copied_b  # either
    whole += (odd_a + odd_b - odd_a * odd_b) * (not copies) * _LOAD_BEGIN
    whole += _COPY * copying + (a * copied_a + b * copied_b) / (bandwidth * _COPIED)
    whole += _COPIED_LINE * (copied_a * a / (row_a * size) + copied_b * b / (row_b * size))
    return whole * 1e-6


def splits_of(c: Config) -> int:
    """Parts of K of every tile."""
    parts: int = c["PARTS"] * c.get("CLUSTER_K", 1) if c["FIXUP"] in ("split", "exchange") else 1
    return parts


def sums_of(gemm: Gemm, c: Config) -> int:
    """Registers of a thread that hold sums."""
    sums: int = c["TILES_M"] * c["BN"] // 2 * (2 if promotes(gemm) else 1)
    return sums


def _beyond(length: Any, whole: int) -> Any:
    """1 where it is not a multiple, or 0: as arithmetic, since each condition doubles the calls that symbols take."""
    return ceil(length % whole / whole)


def _slower(row: Any, copies: bool) -> Any:
    """How many times as long as an aligned line one of such rows takes."""
    odd = _beyond(row, LINE_BYTES)
    return 1 + _SPLIT * _beyond(row, PITCH_BYTES) * (1 - odd) + (_LOADED / _LINE - 1) * odd * (not copies)


def _longest(*times: Any) -> Any:
    """Of times that overlap."""
    return sum(time**_SHARP for time in times) ** (1 / _SHARP)


def _rounds(gpu: Gpu, c: Config, units: Any, most: int) -> tuple[Any, Any]:
    """Blocks at work on a multiprocessor at a time, and how often they take something."""
    if c["FIXUP"] == "stream":
        return most, units / (gpu.multiprocessors * most)
    if c["FIXUP"] == "tail":
        return most, units // (gpu.multiprocessors * most) + 1 / c["PARTS"]
    at_once = min(ceil(units / gpu.multiprocessors), most) if most > 1 else 1
    return at_once, ceil(units / (gpu.multiprocessors * at_once))


def _resident(gemm: Gemm, gpu: Gpu, c: Config) -> int:
    """Blocks that a multiprocessor holds, whether or not the compiler was asked to make room for so many."""
    threads = c["CONSUMERS"] * 128 + producers(c)
    held = sums_of(gemm, c) * (3 if c["STORE"] == "late" else 2) // 2 + _MORE_REGISTERS
    registers = min(-(-held // 8) * 8, gpu.registers_per_sm // threads // c["MIN_BLOCKS"] // 8 * 8)
    by_shared = gpu.shared_per_sm // (shared_bytes(gemm, c) + gpu.shared_reserved)
    most = min(by_shared, gpu.registers_per_sm // (registers * threads), gpu.threads_per_sm // threads)
    return 1 if c["REGISTERS"] else max(most, c["MIN_BLOCKS"])


def _lines_of_a(gemm: Gemm, c: Config, bm: int) -> Any:
    """What a block fetches of A for a step: no more rows than the matrix has, where blocks do not share."""
    few = gemm.layout[0] == "n" and c["CLUSTER_N"] == 1
    return (min(ceil(gemm.m / 8) * 8, bm) if few else bm) / c["CLUSTER_N"]


def _lines_of_b(gemm: Gemm, c: Config) -> float:
    """Narrow lines count as whole ones."""
    narrow = ATOM_BYTES / operand_line(gemm, c["BN"]) if gemm.layout[1] == "n" else 1.0
    return operand_rows(gemm, c["BN"]) * narrow / float(c["CLUSTER_M"])


def _products(
    gemm: Gemm, c: Config, steps: Any, lines: tuple[Any, Any], work: tuple[Any, int, Any], share: float = 1.0
) -> Any:
    """A tile's products, as fast as its operands come. `work`: blocks at once, at most, and tiles that one fetches."""
    (lines_a, lines_b), (at_once, most, rounds), bm = lines, work, rows_of_tile(c)
    single = c["SCHEDULE"] == "ping-pong" or c["CONSUMERS"] == 1  # one warpgroup multiplies at a time
    operands = bm + bm // 64 * operand_rows(gemm, c["BN"])
    tensor = max(bm * c["BN"] / 32 + _OPERAND * operands, _OPERAND_BOUND * operands)
    tensor *= share * (_CLUSTER_SLOWER if c["CLUSTER_M"] * c["CLUSTER_N"] > 1 else 1.0)
    alone = _ALONE * (single and c["TILES_M"] == 1)
    if promotes(gemm):
        alone += _PROMOTE + _ADD * c["TILES_M"] * c["BN"] * single
    along = lines_a * (gemm.layout[0] == "n") + lines_b * (gemm.layout[1] == "t")
    along *= c.get("REALIGN") != "load"
    size = dtype(gemm.a).bytes
    fetch = _LINE * (lines_a + lines_b) + _SHORT_LINE * along * _beyond(gemm.k * size, ATOM_BYTES) / steps
    narrow_a = (gemm.layout[0] == "t") * (gemm.m * size < ATOM_BYTES // 2)
    narrow_b = (gemm.layout[1] == "n") * (gemm.n * size < ATOM_BYTES // 2)
    fetch += _NARROW_LINE * (lines_a * narrow_a + lines_b * narrow_b)
    steps = ceil(steps / c["ATOMS"]) * c["ATOMS"]  # in whole stages
    # All stages are asked for at once. Each is let go when the products of the next have begun: one is not on its way.
    ring, held = max(c["STAGES"] - 1, 1) * c["ATOMS"], c["STAGES"] * c["ATOMS"]
    if c.get("REALIGN") == "load":  # producers wait for a stage while they ask for the next
        ring, held = 1, 2
    waits = max(steps - held / rounds, 0) * _LATENCY / ring
    own = steps * _longest(tensor + alone, fetch) / _CLOCK
    own = (own**_SOFT + waits**_SOFT) ** (1 / _SOFT)
    # Other blocks multiply while one waits.
    return own if most == 1 else max(own, at_once * steps * _longest(tensor, fetch) / _CLOCK)


def _adding(c: Config, kilobytes: float) -> float:
    """What it takes to add parts of K up."""
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
    """Of a tile, what each of some blocks finishes, as in epilogue.h: whole shares, so that some may have none."""
    return next(n for n in range(-(-chunks // parts), chunks + 1) if chunks % n == 0) / chunks
