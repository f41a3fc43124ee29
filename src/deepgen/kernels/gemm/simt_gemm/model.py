"""The time of a run of a config: a model of the chip with a few constants that were fitted to timings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import ceil
from typing import Any, TypeGuard

from deepgen.kernels.gemm import beyond
from deepgen.kernels.gemm.simt_gemm.lower import group_k
from deepgen.kernels.gemm.simt_gemm.space import WIDEST, BandedGemm, GatheredGemm
from deepgen.operators import Gemm
from deepgen.targets import Gpu
from deepgen.vocabulary import dtype

Config = Mapping[str, Any]

# Microseconds, unless noted otherwise. Fitted together to 900 timings on an H200: 170 shapes, most of them drawn;
# docs/kernels/simt_gemm.md describes how, and how well the model chooses.
_LAUNCH, _SPREAD = 2.54, 0.63  # of the kernel; additional if all multiprocessors take part
_CODE = 0.098  # per 1,000 bytes of code fetched
_FIRST, _LATENCY = 0.51, 0.3  # until a block has its first tiles; latency of later ones
_ASKED = 80.0  # kB per microsecond that a multiprocessor receives
_CLOCK = 1950.0  # clocks per microsecond; a warp's multiply-add takes a quarter of a clock
# Instructions of a warp: a multiply-add, with four steps of K in a fragment and with one; a load of a fragment; a copy;
# a load to registers, and its store to shared memory; the overhead of a step; a store of results.
_MULTIPLY_K, _MULTIPLY, _FRAGMENT, _COPY, _LOAD, _PUT, _STEP, _STORE = 1.25, 1.0, 1.19, 2.24, 6.6, 0.52, 58.0, 20.4
_CONVERT, _FOUR_AT_ONCE = 1.4, 0.5  # converting an element to the sums' format; factor for several products at once
# Additional shares for a branch in the middle of a step: not all threads have a load; the loop is unrolled in part.
_UNEVEN, _PARTED = 0.14, 0.17
_MANY, _CROWDED = 128, 0.1  # sums of a thread beside which addresses of copies are in the way; additional share
# Additional share, divided by the number of warps on each quarter of a multiprocessor; if elements are converted, which
# lies between their load and their products.
_FEW_WARPS, _FEW_CONVERT = 0.13, 0.8
# Clocks of shared memory: fragments, copies, stores with bank conflicts, 32 bytes of C.
_WAVE_K, _WAVE_ROW, _MOVE, _BANK, _SECTOR = 2.2, 1.86, 0.49, 1.59, 1.62
_ALONE_COPY, _ALONE = 1.02, 0.64  # share of a step's instructions that its next tiles wait for
_PASS, _PASSED = 0.024, 0.077  # sums that go through shared memory: per pass, and per store of a thread
_READ, _CACHE = 0.91, 1.27  # of the memory's bandwidth, for memory and for the cache
_WRITTEN, _SCATTERED = 1.11, 0.98  # writes relative to reads; additional share of bytes that stores touch unnecessarily
_STORED = 0.6  # share of writing the results that does not overlap, divided by the resident blocks and one
_CUT = 56.0  # additional bytes for each line of a tile, if rows are not multiples of 32 bytes
_SLICES, _HOT = 96, 1.44  # of the cache; clocks in which one answers a copy: all blocks request a small operand's lines
_PARTS, _PART, _ADDED = 0.83, 0.027, 65.0  # parts of K: fixed time, time per part, and kB per microsecond
_RESULT, _OUT = 34.0, 0.82  # as _STORE and _WRITTEN, where no operand is gathered
_WHOLE_ROWS = 1.0  # additional for copies along K if there are few steps
_STREAM, _STREAMED = 5.7, 1.08  # blocks that share tiles wait for each other; factor on instructions
_HELD = 0.35  # of a store, for a number that is held in shared memory until its row is complete
_SHARP, _SOFT = 14.0, 3.6  # exponents for overlapping times: the higher, the less the shorter ones add to the longest
# Where B is gathered, fitted to 360 timings of 30 convolutions. Instructions: a copy or load of pixels, its entry of
# the table if lines of a step have several taps, its test for padding in each dimension, the overhead of a step.
_PIXELS, _PIXELS_LOADED, _ENTRY, _ENTRY_LOADED, _PADDED, _STEP_PIXELS = 3.3, 2.4, 7.0, 10.5, 9.4, 32.0
_FIRST_LOADED, _PHASE_LOADED = 1.4, 0.39  # until a block has its first tiles in registers; the same of later phases
_DRAINED = 1.1  # of the time that a block's results need at its share of the bandwidth, in which it has no other work
_IDLE_QUARTERS = 0.36  # of the loss if the warps at work are not the same number on all quarters of a multiprocessor
_FEW_WITH_PIXELS, _LATE_PIXELS, _SOFT_PIXELS = 0.25, 0.05, 7.4  # as _FEW_WARPS, _LATENCY and _SOFT
_APART = 2.7  # bytes touched for one of a row that is stored with gaps


def registers(gemm: Gemm, c: Config) -> float:
    """Registers of a thread, as the compiler allocates them without a limit."""
    size, wide = bytes_of(gemm)[0], bytes_of(gemm)[2] // 4
    tm, tn, each = c["TM"], c["TN"], sum(_loads(c))
    if c["COPY"] == "registers":
        return float((tm * tn + 1.04 * (tm + tn)) * wide + 1.2 * each * (c["LOAD_A"] + c["LOAD_B"]) / 8 * size + 50)
    ahead = 1.3 if c["REG_PREFETCH"] else 1.0
    return float(tm * tn * wide + (tm + tn) * (0.62 * group_k(c, size) - 0.3) * ahead + 1.46 * each + 56)


def resident(gemm: Gemm, gpu: Gpu, c: Config) -> int:
    """Blocks that are resident on a multiprocessor."""
    threads, (size, _, wide) = _threads(c), bytes_of(gemm)
    each = min(ceil(registers(gemm, c) / 8) * 8, gpu.registers_per_thread, register_limit(gpu, c))
    stages = (c["BM"] + c["BN"]) * (c["BK"] + c.get("PAD", 0)) * size * c["STAGES"]
    passes = c["SPLIT_U"] * c["BM"] // c["TM"] * c["STAGE_ROWS"] * (c["BN"] + 8) * wide
    held = c["BM"] * (c["BN"] * gemm.apart + 1) * wide if _whole_rows(gemm, c) else 0
    by_shared = gpu.shared_per_sm // (max(stages, passes) + held + gpu.shared_reserved)
    warps = gpu.registers_per_sm // gpu.register_files // (gpu.warp * each) * gpu.register_files
    most = min(warps * gpu.warp // threads, gpu.threads_per_sm // threads, by_shared, gpu.blocks_per_sm)
    return int(max(1, most))


def register_limit(gpu: Gpu, c: Config) -> int:
    """Registers available to a thread: each register file holds whole warps."""
    warps = ceil(_threads(c) * c["MIN_BLOCKS"] / gpu.warp / gpu.register_files)
    return int(gpu.registers_per_sm // gpu.register_files // gpu.warp // warps // 8 * 8)


def seconds(gemm: Gemm, gpu: Gpu, c: Config) -> float:
    """The seconds of a run with cold caches. Sizes may be symbolic (`libraries/c/models.py`)."""
    if isinstance(gemm, GatheredGemm):
        return _gathered_seconds(gemm, gpu, c)
    size, result, wide = bytes_of(gemm)
    bm, bn, bk, splits, most = c["BM"], c["BN"], c["BK"], c.get("SPLITS", 1), resident(gemm, gpu, c)
    warps = _threads(c) / gpu.warp
    every = ceil(gemm.m / bm) * ceil(gemm.n / bn) * gemm.batch
    tiles = gemm.computed(bm, bn) if isinstance(gemm, BandedGemm) else every  # the others only store zeros
    blocks, steps = tiles * splits, ceil(ceil(gemm.k / bk) / splits)
    mine = ceil(blocks / gpu.multiprocessors)  # blocks of the busiest multiprocessor
    if c["FIXUP"] == "stream":
        mine = c["BLOCKS"] // gpu.multiprocessors
        steps = ceil(ceil(gemm.k / bk) * tiles / c["BLOCKS"])
    at_once, rounds = min(mine, most), ceil(mine / most)
    instructions, waves = _step(gemm, c)
    copies = c["COPY"] == "async"
    instructions *= _STREAMED if c["FIXUP"] == "stream" else 1.0
    slot, clock = _slot(gemm, gpu)
    issue = mine * steps * warps * instructions * slot
    few = _FEW_CONVERT if size < wide else _FEW_WARPS
    issue *= (1 + few * 4 / (at_once * warps)) * _hindered(gemm, c)
    sectors = _sectors(gemm, gpu, c)
    results = min(gemm.m, bm) * min(gemm.n, bn) * sectors * _SECTOR
    shared = mine * (warps * steps * waves + results) * clock
    ahead = min(c["STAGES"] - 1, steps) if copies else 1
    alone = instructions * max(warps / 4, 1.0) * clock * (_ALONE_COPY if copies else _ALONE)
    wait = (_LATENCY + at_once * (bm + bn) * bk * size * 1e-3 / _ASKED) / ahead + alone
    stores = c["TM"] * c["TN"] / c["SPLIT_U"] / c["STORE"]
    fixed = _FIRST + (c["TM"] / c["STAGE_ROWS"] * _PASS + stores * _PASSED if c["STAGE_ROWS"] else 0.0)
    own = _longest(_SHARP, issue, rounds * steps * wait) + rounds * fixed + mine * warps * stores * _RESULT * slot
    bandwidth = gpu.bandwidth_gbs * 1e3  # bytes per microsecond
    operands = gemm.batch * gemm.k * (gemm.m + gemm.n) * size
    touched = sectors * 32 / result
    written = gemm.batch * gemm.m * gemm.n * result * (1 + _SCATTERED * (touched - 1))
    memory = (operands + written * _OUT) / (_READ * bandwidth)
    cache = tiles * ceil(gemm.k / bk) * bk * _lines(gemm, c) * size / (_CACHE * bandwidth)
    shared_lines = copies and gemm.batch == 1
    hot = blocks * steps * bk * _asked_of_one(gemm, c) * size / 32 * clock * _HOT if shared_lines else 0.0
    adding = _PARTS + splits * (_PART + bm * bn * wide * 1e-3 / _ADDED) if splits > 1 else 0.0
    # Rows that are copied whole, in one or two steps, by more blocks than a multiprocessor has at once.
    if copies and c["INNER_A"] == c["INNER_B"] == "k":
        adding += _WHOLE_ROWS * (1 - min((steps - 1) // 2, 1)) * min(tiles // (2 * gpu.multiprocessors), 1)
    whole: float = _LAUNCH + _SPREAD * min(blocks / gpu.multiprocessors, 1.0) + _CODE * _kilobytes(gemm, c)
    whole += _STORED * written * _OUT / (_READ * bandwidth) / (at_once + 1)
    whole += _longest(_SOFT, own, shared, memory, cache, hot) + adding + _STREAM * (c["FIXUP"] == "stream")
    return whole * 1e-6


def _gathered_seconds(gemm: GatheredGemm, gpu: Gpu, c: Config) -> float:
    """The same where B is gathered. Such products have many tiles and often few steps: what counts is which part of a
    tile's time other blocks of the multiprocessor fill."""
    bm, bn, bk, warps = c["BM"], c["BN"], c["BK"], _threads(c) / gpu.warp
    size, copies = bytes_of(gemm)[0], c["COPY"] == "async"
    phases = gemm.apart if _whole_rows(gemm, c) else 1  # that a block does one after the other
    tiles, steps = ceil(gemm.m / bm) * ceil(gemm.n / bn) * gemm.batch // phases, ceil(gemm.k / bk) * phases
    mine = c["BLOCKS"] // gpu.multiprocessors if c["FIXUP"] == "stream" else ceil(tiles / gpu.multiprocessors)
    at_once = min(mine, resident(gemm, gpu, c))
    slot, clock = _slot(gemm, gpu)
    bandwidth = gpu.bandwidth_gbs * 1e3  # bytes per microsecond

    instructions, waves = _step(gemm, c)
    instructions *= _STREAMED if c["FIXUP"] == "stream" else 1.0
    alone = instructions * max(warps / 4, 1.0) * clock * (_ALONE_COPY if copies else _ALONE)
    ahead = min(c["STAGES"] - 1, steps) if copies else 1
    stores = c["TM"] * c["TN"] / c["SPLIT_U"] / c["STORE"] if phases == 1 else c["TM"] * c["TN"] * phases * _HELD
    work = steps * instructions * _hindered(gemm, c) + stores * _STORE

    def busy(blocks: int) -> float:
        """The time in which one block is done, if so many are at work on a multiprocessor."""
        each = blocks * warps / 4  # quarter
        lost = _FEW_WITH_PIXELS / each + _IDLE_QUARTERS * (ceil(each) / each - 1)
        arriving = (_LATE_PIXELS + blocks * (bm + bn) * bk * size * 1e-3 / _ASKED) / ahead
        return float(_longest(_SHARP, work * warps * slot * (1 + lost), steps * (arriving + alone) / blocks))

    results = min(gemm.m, bm) * min(gemm.n, bn) * phases
    idle = _FIRST if copies else (_FIRST_LOADED + _PHASE_LOADED * (phases - 1))
    idle += _DRAINED * results * size * _WRITTEN / (bandwidth / gpu.multiprocessors)
    idle += c["TM"] / c["STAGE_ROWS"] * _PASS + stores * _PASSED if c["STAGE_ROWS"] else 0.0
    sectors = _sectors(gemm, gpu, c)
    touched = sectors * 32 / size if gemm.apart == 1 else 1.0 if phases > 1 else _APART
    per_block = tiles / c["BLOCKS"] if c["FIXUP"] == "stream" else 1.0
    own = mine * per_block * _queued(at_once, idle, busy)
    blocks = ceil(tiles / gpu.multiprocessors)
    shared = blocks * (warps * steps * waves + results / phases * sectors * _SECTOR) * clock
    writing = gemm.batch * gemm.m * gemm.n * size * (1 + _SCATTERED * (touched - 1)) * _WRITTEN / (_READ * bandwidth)
    reading = gemm.gathered_bytes / (_READ * bandwidth)
    cache = tiles * steps * bk * _lines(gemm, c) * size / (_CACHE * bandwidth)
    hot = tiles * steps * bk * _asked_of_one(gemm, c) * size / 32 * clock * _HOT if copies else 0.0
    whole: float = _LAUNCH + _SPREAD * min(tiles / gpu.multiprocessors, 1.0) + _CODE * _kilobytes(gemm, c)
    # Blocks that began together also store together: nothing overlaps with the writing but their own next loads.
    whole += _longest(_SOFT_PIXELS, own, shared, reading + writing, cache, hot) + writing
    return float(whole + _STREAM * (c["FIXUP"] == "stream")) * 1e-6


def _queued(blocks: int, idle: float, busy: Callable[[int], float]) -> float:
    """The mean time from one block's end to the next one's: each is idle for a while and then at work, beside others.

    The states of a closed queue: the chance that n are at work follows from that for n - 1.
    """
    chance, total, done = 1.0, 1.0, 0.0
    for working in range(1, blocks + 1):
        chance *= (blocks - working + 1) / idle * busy(working)
        total += chance
        done += chance / busy(working)
    return total / done


def _slot(gemm: Gemm, gpu: Gpu) -> tuple[float, float]:
    """Microseconds in which a multiprocessor issues one instruction of a warp, and those of a clock."""
    # A warp's multiply-add in the sums' format takes a quarter of a clock on an H200.
    slot = gpu.warp * 2 * gpu.multiprocessors / ((gpu.vector_peak(gemm.acc) or gpu.vector_peak("f32") or 1e4) * 1e3)
    return slot, 4 * slot if gpu.warp == 32 else 1 / _CLOCK


def _lines(gemm: Gemm, c: Config) -> Any:
    """Rows of both tiles, plus a share if rows are not multiples of 32 bytes."""
    size, total = bytes_of(gemm)[0], 0.0
    for along_k, rows, tile in ((gemm.layout[0] == "n", gemm.m, c["BM"]), (gemm.layout[1] == "t", gemm.n, c["BN"])):
        row, length = (gemm.k, c["BK"]) if along_k else (rows, tile)
        total += tile * (1 + _CUT * beyond(row * size, 32) * (row > length) / (length * size))
    return total


def least_seconds(gemm: Gemm, gpu: Gpu) -> float:
    """A lower bound for all configs."""
    at_once = 1 / _FOUR_AT_ONCE if bytes_of(gemm)[0] == 1 else 1.0
    peak = (gpu.vector_peak(gemm.acc) or gpu.vector_peak("f32") or 1e4) * 1e9
    flops = 2 * gemm.computed(1, 1) * gemm.k if isinstance(gemm, BandedGemm) else gemm.flops()
    return _LAUNCH * 1e-6 + float(flops) / (peak * at_once)


def _step(gemm: Gemm, c: Config) -> tuple[float, float]:
    """Instructions of a warp in a step, and clocks for which they occupy shared memory."""
    size, steps = bytes_of(gemm)[0], c["BK"] / c["SPLIT_U"]
    group, fragments, waves = group_k(c, size), 0.0, 0.0
    for side, tile in (("A", c["TM"]), ("B", c["TN"])):
        inner, run = c[f"INNER_{side}"] == "k", c[f"THREAD_SCATTER_{side}"]
        count = tile / (group if inner else run) * steps
        fragments += count
        waves += count * (_WAVE_K if inner else _WAVE_ROW if run * size == WIDEST else 1.0)
    loads, copies = sum(_loads(c)), c["COPY"] == "async"
    moves = loads * _COPY if copies else loads * _LOAD + _puts(gemm, c) * _PUT
    if isinstance(gemm, GatheredGemm):
        moves += _gathering(gemm, c)
    multiply = c["TM"] * c["TN"] * steps * (_MULTIPLY_K if group > 1 else _MULTIPLY)
    if size == 1 and c["INNER_A"] == c["INNER_B"] == "k":
        multiply *= _FOUR_AT_ONCE
    elif size < bytes_of(gemm)[2]:  # each element of a fragment is converted to the sums' format
        multiply += (c["TM"] + c["TN"]) * steps * _CONVERT
    # Transposed stores cause bank conflicts, more of them the longer the lines along K are.
    same = max(1.0, c["BK"] / 8)
    waves += sum(
        _BANK * same * put if transposed else 0.0 if copies else _BANK * put for put, transposed in _placed(gemm, c)
    )
    return multiply + fragments * _FRAGMENT + moves + _STEP, waves + loads * _MOVE


def _gathering(gemm: GatheredGemm, c: Config) -> float:
    """Additional instructions of a step, for loads of pixels instead of lines of a matrix."""
    copies, loads, threads = c["COPY"] == "async", _loads(c)[1], _threads(c)
    pixels = max(1, c["BN"] // c["LOAD_B"] // threads)  # of a thread, in each line
    each = _PIXELS - _COPY if copies else _PIXELS_LOADED - _LOAD
    if gemm.channels % c["BK"] == 0:  # all lines of a step belong to one tap
        looking = pixels * gemm.guarded * _PADDED
    else:
        looking = loads / pixels * (_ENTRY if copies else _ENTRY_LOADED) + loads * gemm.guarded * _PADDED
    return float(loads * each + looking + _STEP_PIXELS - _STEP)


def _asked_of_one(gemm: Gemm, c: Config) -> Any:
    """Rows of both operands that a block requests, divided by the number of cache slices that answer."""
    size, total = bytes_of(gemm)[0], 0.0
    operands = ((gemm.m, c["BM"]), (gemm.n, c["BN"]))
    for rows, tile in operands[:1] if isinstance(gemm, GatheredGemm) else operands:
        lines = rows * gemm.k * size / 128 + 1
        total += min(rows, tile) * (1 / lines + 1 / _SLICES)
    return total


def _sectors(gemm: Gemm, gpu: Gpu, c: Config) -> Any:
    """32-byte sectors that stores touch, per element of C: a warp's lanes should cover long runs of a row."""
    sector = 32 // bytes_of(gemm)[1]
    if _whole_rows(gemm, c):
        return (gpu.warp / sector + 1) / gpu.warp
    if isinstance(gemm, GatheredGemm) and gemm.apart > 1:
        return min(1.0, gemm.apart * (1 if c["STAGE_ROWS"] else c["THREAD_SCATTER_B"]) / sector)
    if c["STAGE_ROWS"]:
        line = min(gpu.warp * c["STORE"], c["BN"])
        return (line / sector + beyond(gemm.n, sector)) / line
    line = max(1.0, gpu.warp // c["LANES_M"] * c["THREAD_SCATTER_B"] / sector)
    return c["LANES_M"] * (line + beyond(gemm.n, sector)) / (gpu.warp * c["STORE"])


def _whole_rows(gemm: Gemm, c: Config) -> TypeGuard[GatheredGemm]:
    """Whether a block does all classes of its rows, and holds them in shared memory until they are complete."""
    return isinstance(gemm, GatheredGemm) and bool(c.get("ROWS_WHOLE"))


def _longest(sharp: float, *times: Any) -> Any:
    """The combined time of overlapping parts."""
    return sum(time**sharp for time in times) ** (1 / sharp)


def bytes_of(gemm: Gemm) -> tuple[int, int, int]:
    """Bytes of an element of A and B, of C, and of a sum."""
    return _size(gemm.a), _size(gemm.c), _size(gemm.acc)


@lru_cache
def _size(name: str) -> int:
    return dtype(name).bytes


def _threads(c: Config) -> int:
    threads: int = c["BM"] // c["TM"] * (c["BN"] // c["TN"]) * c["SPLIT_U"]
    return threads


def _hindered(gemm: Gemm, c: Config) -> float:
    """A factor on the time to issue a step's instructions: what keeps them from overlapping."""
    copies, group = c["COPY"] == "async", group_k(c, bytes_of(gemm)[0])
    factor = 1 + _UNEVEN * _uneven(gemm, c)
    if c["UNROLL"] * group * c["SPLIT_U"] < c["BK"] and not (copies and group > 1):
        factor *= 1 + _PARTED
    return factor * (1 + _CROWDED) if copies and c["TM"] * c["TN"] >= _MANY else factor


def _uneven(gemm: Gemm, c: Config) -> int:
    """Whether some loads of a tile are not every thread's, or begin at places that each need a division."""
    threads, along_k = _threads(c), {"A": gemm.layout[0] == "n", "B": gemm.layout[1] == "t"}
    for side, rows in (("A", c["BM"]), ("B", c["BN"])):
        width, line = c[f"LOAD_{side}"], c["BK"] if along_k[side] else rows
        if side == "B" and isinstance(gemm, GatheredGemm):
            return int(c["BK"] % max(1, threads // (line // width)) > 0)
        if rows * c["BK"] // width % threads or threads % (line // width):
            return 1
    return 0


def _loads(c: Config) -> tuple[int, int]:
    """Loads of a thread, for a tile of A and of B."""
    threads = _threads(c)
    return -(-c["BM"] * c["BK"] // (c["LOAD_A"] * threads)), -(-c["BN"] * c["BK"] // (c["LOAD_B"] * threads))


def _placed(gemm: Gemm, c: Config) -> tuple[tuple[int, bool], tuple[int, bool]]:
    """A thread's stores to shared memory for a tile of A and of B, and whether they transpose it, element by
    element."""
    along_k = gemm.layout[0] == "n", gemm.layout[1] == "t"
    a, b = ((c[f"INNER_{side}"] == "k") != along for side, along in zip("AB", along_k, strict=True))
    loads_a, loads_b = _loads(c)
    return (loads_a * (c["LOAD_A"] if a else 1), a), (loads_b * (c["LOAD_B"] if b else 1), b)


def _puts(gemm: Gemm, c: Config) -> int:
    return 0 if c["COPY"] == "async" else sum(count for count, _ in _placed(gemm, c))


def _kilobytes(gemm: Gemm, c: Config) -> float:
    """Approximate size of the code."""
    tile, group = c["TM"] * c["TN"], group_k(c, bytes_of(gemm)[0])
    body = 20.0 * c["UNROLL"] * group * tile + (380 if c["COPY"] == "registers" else 200) * sum(_loads(c))
    stores = 12 * tile + 750 * c["TM"] / c["STAGE_ROWS"] if c["STAGE_ROWS"] else 100 * tile / c["STORE"]
    return float((5e3 + body + 80 * _puts(gemm, c) + stores + 7e3 * (c.get("SPLITS", 1) > 1)) * 1e-3)
