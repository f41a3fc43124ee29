"""Good configs without any search: tiles, copies and parts of K, in the order of a model's times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import ceil, gcd, inf
from typing import Any, NamedTuple

from deepgen.kernels.gemm.simt_gemm.lower import group_k
from deepgen.kernels.gemm.simt_gemm.space import WIDEST, load_widths, simt_space, splits_of_k, store_widths, tile_sizes
from deepgen.kernels.shared import Kinds, of_several_kinds
from deepgen.operators import Gemm
from deepgen.targets import Gpu, Hip
from deepgen.vocabulary import dtype

Config = Mapping[str, Any]

_THREAD_TILES = ((2, 2), (4, 2), (2, 4), (4, 4), (8, 2), (8, 4), (4, 8), (8, 8), (12, 4), (12, 8), (16, 4), (16, 8))
_LANES = {32: (4, 8, 2, 16, 1), 64: (8, 4, 16, 2)}  # along M, the best first
_LANES_ODD = {32: (2, 4, 1, 8, 16), 64: (4, 8, 2, 16)}  # where rows of C are stored number by number
_LEAST_THREADS, _MOST_THREADS = 32, 512
_STEPS = (8, 16, 32, 64)  # of K, in a stage
_ROOM = 48 << 10  # bytes of shared memory that stages may take, so that several blocks run at once
_BLOCKS = (1, 2, 3, 4, 6, 8)  # of a multiprocessor, that the compiler is asked to make room for
_LEAST_PART, _MOST_ROUNDS = 32, 64
_LEAST_STREAM = 256  # steps of K; AMD's wavefronts were never timed
_DIVIDED = 60  # of the best: K is divided in other ways
_UNROLLED = 1024  # multiply-adds
_MOST_SUMS = {32: 128, 64: 64}  # of a thread
_SPARE = 16  # registers, so that the compiler does not spill

# The model is sure of the order within a kind of configs, and less so of that between kinds.
_SAME_KIND = 1.03  # times longer, for each that was taken of a kind
_LIKELY = 1.5  # times the best: others are not worth a try


class SimtTile(NamedTuple):
    """What a config follows from."""

    bm: int
    bn: int
    tm: int
    tn: int
    lanes_m: int
    split_u: int
    bk: int
    stages: int  # of asynchronous copies; 0: through registers
    splits: int = 1
    stream: bool = False

    def tiles(self, gemm: Gemm) -> int:
        return ceil(gemm.m / self.bm) * ceil(gemm.n / self.bn) * gemm.batch


def choose(gemm: Gemm, gpu: Gpu) -> dict[str, Any]:
    """The fastest by the model of those that the space admits."""
    return dict(_chosen(gemm, gpu))


@lru_cache(64)  # asked for by whoever compares families, and again by whoever starts with it
def _chosen(gemm: Gemm, gpu: Gpu) -> dict[str, Any]:
    space = simt_space("defaults", gemm, gpu)
    return next(config for _, config in ranked(gemm, gpu) if not space.explain(config))


@lru_cache(2)
def ranked(gemm: Gemm, gpu: Gpu) -> list[tuple[float, dict[str, Any]]]:
    """Seconds and configs, the fastest by the model first; the space may not admit all of them."""
    timed = {way: _timed(gemm, gpu, way) for way in _ways(gemm, gpu)}
    for way in sorted(timed, key=lambda way: timed[way][0])[:_DIVIDED]:
        timed |= {other: _timed(gemm, gpu, other) for other in _divided(gemm, gpu, way) if other not in timed}
    return sorted(timed.values(), key=lambda row: row[0])


def _timed(gemm: Gemm, gpu: Gpu, way: SimtTile) -> tuple[float, dict[str, Any]]:
    config = _config(gemm, gpu, way)
    most = min(gpu.registers_per_thread - _SPARE * (1 + way.stream), _register_limit(gpu, config))
    return seconds(gemm, gpu, config) if registers(gemm, config) <= most else inf, config


def various(gemm: Gemm, gpu: Gpu) -> Iterator[dict[str, Any]]:
    """Configs that may be the fastest, beginning with the default."""
    space = simt_space("defaults", gemm, gpu)
    return of_several_kinds(ranked(gemm, gpu), space, Kinds(_kind, _tile, _SAME_KIND, _LIKELY))


def _kind(c: Config) -> tuple[Any, ...]:
    return c["COPY"], c["SPLIT_U"] > 1, c["FIXUP"], c["BK"] * c["STAGES"] > 64


def _tile(c: Config) -> tuple[Any, ...]:
    return c["BM"], c["BN"]


def _ways(gemm: Gemm, gpu: Gpu) -> Iterator[SimtTile]:
    copies = gpu.has("cp_async") and all(load_widths(gemm, side)[-1] * _bytes(gemm)[0] >= 4 for side in "AB")
    deepest = next((bk for bk in _STEPS if bk >= gemm.k), _STEPS[-1])
    deep = max(1, gemm.k // _LEAST_PART)
    lanes = (_LANES if store_widths(gemm)[-1] > 1 else _LANES_ODD)[gpu.warp]
    for bm in _sizes(gemm.m):
        for bn in _sizes(gemm.n):
            tiles = ceil(gemm.m / bm) * ceil(gemm.n / bn) * gemm.batch
            if tiles * deep < gpu.multiprocessors // 2 and max(bm, bn) > 16:
                continue  # smaller ones employ more multiprocessors
            if tiles > _MOST_ROUNDS * gpu.multiprocessors and bm * bn < 1024:
                continue
            for tm, tn in _THREAD_TILES:
                lanes_m = next((n for n in lanes if bm % (n * tm) + bn % (gpu.warp // n * tn) == 0), 0)
                threads = bm // tm * (bn // tn)
                if lanes_m == 0 or tm * tn > _MOST_SUMS[gpu.warp] or threads > 256 or _uneven(tm, tn, bm * bn):
                    continue
                for split_u in (1, 2, 4, 8) if tiles < 2 * gpu.multiprocessors else (1,):
                    if 64 <= threads * split_u <= 512 or (split_u == 1 and threads == 32):
                        for bk in _STEPS:
                            if 8 * split_u <= bk <= deepest and bk <= 32 * split_u:
                                way = SimtTile(bm, bn, tm, tn, lanes_m, split_u, bk, 0)
                                yield from _copied(gemm, gpu, way, copies)


def _sizes(size: int) -> list[int]:
    """Tiles that are no power of two are worth it only where they waste less."""
    all_sizes = tile_sizes(size)
    whole = [t for t in all_sizes if t & (t - 1) == 0]
    least = min(-(-size // t) * t for t in whole if t >= 32 or t == whole[-1])
    return [t for t in all_sizes if t in whole or -(-size // t) * t < least or size > 1024]


def _uneven(tm: int, tn: int, area: int) -> bool:
    """Threads have many sums where tiles are large."""
    sums = tm * tn
    return (
        sums > 16 if area <= 512 else not 8 <= sums <= 64 if area <= 2048 else sums < 16 if area <= 4096 else sums < 32
    )


def _copied(gemm: Gemm, gpu: Gpu, way: SimtTile, copies: bool) -> Iterator[SimtTile]:
    """Through registers and asynchronously. With few tiles, parts of K fill two waves."""
    most = 2 * gpu.multiprocessors // way.tiles(gemm)
    way = way._replace(splits=max((n for n in _parts(gemm, gpu, way) if n <= most), default=1))
    yield way
    fit = _ROOM // ((way.bm + way.bn) * (way.bk + 4) * _bytes(gemm)[0])
    if copies and fit >= 2:
        yield way._replace(stages=max(2, min(fit, 5, ceil(ceil(gemm.k / way.bk) / way.splits) + 1)))


def _divided(gemm: Gemm, gpu: Gpu, way: SimtTile) -> Iterator[SimtTile]:
    """The same with other parts of K, or with tiles that blocks share."""
    able, tiles = _parts(gemm, gpu, way), way.tiles(gemm)
    if tiles > gpu.multiprocessors and gemm.k >= _LEAST_STREAM and gpu.warp == 32:
        yield way._replace(stream=True)
    for most in (1, 2, 4, 8, *(blocks * gpu.multiprocessors // tiles for blocks in (1, 3, 4))):
        if (splits := max((n for n in able if n <= most), default=1)) != way.splits:
            yield way._replace(splits=splits)


def _parts(gemm: Gemm, gpu: Gpu, way: SimtTile) -> list[int]:
    few = way.tiles(gemm) * 2 <= 3 * gpu.multiprocessors and gemm.k >= 2 * _LEAST_PART
    return [n for n in splits_of_k(gemm, gpu) if n * way.bk <= gemm.k] if few else []


def _config(gemm: Gemm, gpu: Gpu, way: SimtTile) -> dict[str, Any]:
    """K is outermost in shared memory, which multiplies best; copies of several numbers along K cannot turn."""
    most, cuda = WIDEST // _bytes(gemm)[0], not isinstance(gpu, Hip)
    along_k = {"A": gemm.layout[0] == "n", "B": gemm.layout[1] == "t"}
    rows = {"A": way.bm, "B": way.bn}
    loads = {side: gcd(load_widths(gemm, side)[-1], way.bk if along_k[side] else rows[side]) for side in "AB"}
    straight = way.split_u == 1
    widest = store_widths(gemm)[-1]
    # Where rows of C are stored number by number, neighbours store neighbours.
    run = {"A": gcd(way.tm, min(4, most)), "B": 1 if straight and widest == 1 else gcd(way.tn, min(4, most))}
    config: dict[str, Any] = {
        "BM": way.bm, "BN": way.bn, "BK": way.bk, "TM": way.tm, "TN": way.tn,
        "LANES_M": way.lanes_m, "LANE_ORDER": int(way.lanes_m > 1), "SPLIT_U": way.split_u, "MIN_BLOCKS": 1,
        **{f"INNER_{side}": "k" if way.stages and along_k[side] and loads[side] > 1 else "row" for side in "AB"},
        "COPY": "async" if way.stages else "registers",
        "LOAD_CONTINUOUS": True, "STAGES": way.stages or 2, "PAD": most,
        **{f"LOAD_{side}": loads[side] for side in "AB"},
        **{f"THREAD_SCATTER_{side}": run[side] for side in "AB"},
        "WARP_SCATTER_A": "thread" if run["A"] == way.tm else "tile",
        "WARP_SCATTER_B": "thread" if run["B"] == way.tn else "tile",
        "STAGE_ROWS": 0 if straight else gcd(way.tm, 2), "REDUCE_CONTINUOUS": True,
        "STORE": gcd(widest, run["B"]) if straight else widest,
        "MAPPING": 8, "FIXUP": "stream" if way.stream else "none" if way.splits == 1 else "last", "GUARD": "sizes",
    }  # fmt: skip
    group = group_k(config, _bytes(gemm)[0])
    groups = way.bk // (group * way.split_u)
    config["UNROLL"] = max(
        n for n in (1, 2, 4, 8, 16) if n == 1 or (n <= groups and n * group * way.tm * way.tn <= _UNROLLED)
    )
    config["REG_PREFETCH"] = cuda and _bytes(gemm)[2] == 4 and config["UNROLL"] > 1
    if cuda:  # AMD's registers come in halves and thirds of a file: asking for more wavefronts makes the compiler spill
        most = resident(gemm, gpu, config)
        config["MIN_BLOCKS"] = max(n for n in _BLOCKS if n <= most)
    if way.stream:
        return {**config, "BLOCKS": gpu.multiprocessors * min(config["MIN_BLOCKS"], 4)}
    return config if way.splits == 1 else {**config, "SPLITS": way.splits}


# Microseconds, unless said otherwise. Fitted together to 900 timings on an H200: 170 shapes, most of them drawn;
# docs/kernels/simt_gemm.md tells how, and how well it chooses.
_LAUNCH, _SPREAD = 2.54, 0.63  # of the kernel; more where all multiprocessors take part
_CODE = 0.098  # for 1,000 bytes that are fetched
_FIRST, _LATENCY = 0.51, 0.3  # until a block's first tiles are there; from asking for others to having them
_ASKED = 80.0  # kB a microsecond that a multiprocessor is given
_CLOCK = 1950.0  # clocks in a microsecond, where a warp's multiply-add takes a quarter of one
# Instructions of a warp: multiply-adds, with four steps of K in a fragment and with one; loads of fragments; copies;
# loads to registers, and stores from there; those of a step; stores of results.
_MULTIPLY_K, _MULTIPLY, _FRAGMENT, _COPY, _LOAD, _PUT, _STEP, _STORE = 1.25, 1.0, 1.19, 2.24, 6.6, 0.52, 58.0, 20.4
_CONVERT, _FOUR_AT_ONCE = 1.4, 0.5  # a number of fewer bytes than the sums have; products that one instruction adds up
_FEW_WARPS = 0.8  # more of them, divided by how many warps each quarter of a multiprocessor has
# Clocks of shared memory: fragments, copies, what is put there where banks differ, 32 bytes of C.
_WAVE_K, _WAVE_ROW, _MOVE, _BANK, _SECTOR = 2.2, 1.86, 0.49, 1.59, 1.62
_ALONE_COPY, _ALONE = 1.02, 0.64  # of a step's instructions, what its next tiles wait for
_PASS, _PASSED = 0.024, 0.077  # sums that go through shared memory: a pass, and a thread's store
_READ, _CACHE = 0.91, 1.27  # of memory's rate, from there and from the cache
_WRITTEN, _SCATTERED = 1.11, 0.98  # what is written, beside what is read; more for what stores touch in vain
_CUT = 56.0  # bytes more of each line of a tile, where rows are no multiples of 32
_SLICES, _HOT = 96, 1.44  # of the cache; clocks in which one answers a copy: all blocks ask for a small operand's lines
_PARTS, _PART, _ADDED = 0.83, 0.027, 65.0  # parts of K: once, for each, and kB a microsecond
_STREAM, _STREAMED = 5.7, 0.93  # blocks that share tiles wait for each other; times more instructions
_SHARP, _SOFT = 14.0, 3.6  # how little the shorter of times that overlap add to the longest


def registers(gemm: Gemm, c: Config) -> float:
    """Of a thread, as the compiler takes them where it may."""
    size, wide = _bytes(gemm)[0], _bytes(gemm)[2] // 4
    tm, tn, each = c["TM"], c["TN"], sum(_loads(c))
    if c["COPY"] == "registers":
        return float((tm * tn + 1.04 * (tm + tn)) * wide + 1.2 * each * (c["LOAD_A"] + c["LOAD_B"]) / 8 * size + 50)
    ahead = 1.3 if c["REG_PREFETCH"] else 1.0
    return float(tm * tn * wide + (tm + tn) * (0.62 * group_k(c, size) - 0.3) * ahead + 1.46 * each + 56)


def resident(gemm: Gemm, gpu: Gpu, c: Config) -> int:
    """Blocks that a multiprocessor holds."""
    threads, (size, _, wide) = _threads(c), _bytes(gemm)
    each = min(ceil(registers(gemm, c) / 8) * 8, gpu.registers_per_thread, _register_limit(gpu, c))
    stages = (c["BM"] + c["BN"]) * (c["BK"] + c.get("PAD", 0)) * size * c["STAGES"]
    passes = c["SPLIT_U"] * c["BM"] // c["TM"] * c["STAGE_ROWS"] * (c["BN"] + 8) * wide
    by_shared = gpu.shared_per_sm // (max(stages, passes) + gpu.shared_reserved)
    warps = gpu.registers_per_sm // gpu.register_files // (gpu.warp * each) * gpu.register_files
    most = min(warps * gpu.warp // threads, gpu.threads_per_sm // threads, by_shared, gpu.blocks_per_sm)
    return int(max(1, most))


def _register_limit(gpu: Gpu, c: Config) -> int:
    """Registers that a thread can have: each file holds whole warps."""
    warps = ceil(_threads(c) * c["MIN_BLOCKS"] / gpu.warp / gpu.register_files)
    return int(gpu.registers_per_sm // gpu.register_files // gpu.warp // warps // 8 * 8)


def seconds(gemm: Gemm, gpu: Gpu, c: Config) -> float:
    """What a run takes with cold caches. Sizes may be symbols (`libraries/c/models.py`)."""
    size, result, wide = _bytes(gemm)
    bm, bn, bk, splits, most = c["BM"], c["BN"], c["BK"], c.get("SPLITS", 1), resident(gemm, gpu, c)
    warps = _threads(c) / gpu.warp
    tiles = ceil(gemm.m / bm) * ceil(gemm.n / bn) * gemm.batch
    blocks, steps = tiles * splits, ceil(ceil(gemm.k / bk) / splits)
    mine = ceil(blocks / gpu.multiprocessors)  # of the busiest multiprocessor
    if c["FIXUP"] == "stream":
        mine = c["BLOCKS"] // gpu.multiprocessors
        steps = ceil(ceil(gemm.k / bk) * tiles / c["BLOCKS"])
    at_once, rounds = min(mine, most), ceil(mine / most)
    instructions, waves = _step(gemm, c)
    instructions *= _STREAMED if c["FIXUP"] == "stream" else 1.0
    # A warp's multiply-add, of the sums' format, takes a quarter of a clock of an H200.
    slot = gpu.warp * 2 * gpu.multiprocessors / ((gpu.vector_peak(gemm.acc) or gpu.vector_peak("f32") or 1e4) * 1e3)
    clock = 4 * slot if gpu.warp == 32 else 1 / _CLOCK
    issue = mine * steps * warps * instructions * slot * (1 + _FEW_WARPS * 4 / (at_once * warps))
    sectors = _sectors(gemm, gpu, c)
    results = min(gemm.m, bm) * min(gemm.n, bn) * sectors * _SECTOR
    shared = mine * (warps * steps * waves + results) * clock
    copies = c["COPY"] == "async"
    ahead = min(c["STAGES"] - 1, steps) if copies else 1
    alone = instructions * max(warps / 4, 1.0) * clock * (_ALONE_COPY if copies else _ALONE)
    wait = (_LATENCY + at_once * (bm + bn) * bk * size * 1e-3 / _ASKED) / ahead + alone
    stores = c["TM"] * c["TN"] / c["SPLIT_U"] / c["STORE"]
    fixed = _FIRST + (c["TM"] / c["STAGE_ROWS"] * _PASS + stores * _PASSED if c["STAGE_ROWS"] else 0.0)
    own = _longest(_SHARP, issue, rounds * steps * wait) + rounds * fixed + mine * warps * stores * _STORE * slot
    bandwidth = gpu.bandwidth_gbs * 1e3  # bytes in a microsecond
    operands = gemm.batch * gemm.k * (gemm.m + gemm.n) * size
    written = gemm.batch * gemm.m * gemm.n * result * (1 + _SCATTERED * (sectors * 32 / result - 1))
    memory = (operands + written * _WRITTEN) / (_READ * bandwidth)
    cache = tiles * ceil(gemm.k / bk) * bk * _lines(gemm, c) * size / (_CACHE * bandwidth)
    hot = blocks * steps * bk * _asked_of_one(gemm, c) * size / 32 * clock * _HOT if copies and gemm.batch == 1 else 0.0
    adding = _PARTS + splits * (_PART + bm * bn * wide * 1e-3 / _ADDED) if splits > 1 else 0.0
    whole: float = _LAUNCH + _SPREAD * min(blocks / gpu.multiprocessors, 1.0) + _CODE * _kilobytes(gemm, c)
    whole += _longest(_SOFT, own, shared, memory, cache, hot) + adding + _STREAM * (c["FIXUP"] == "stream")
    return whole * 1e-6


def _lines(gemm: Gemm, c: Config) -> Any:
    """Rows of both tiles; more where these begin within 32 bytes of rows."""
    size, total = _bytes(gemm)[0], 0.0
    for along_k, rows, tile in ((gemm.layout[0] == "n", gemm.m, c["BM"]), (gemm.layout[1] == "t", gemm.n, c["BN"])):
        row, length = (gemm.k, c["BK"]) if along_k else (rows, tile)
        total += tile * (1 + _CUT * _beyond(row * size, 32) * (row > length) / (length * size))
    return total


def least_seconds(gemm: Gemm, gpu: Gpu) -> float:
    """What no config stays below."""
    at_once = 1 / _FOUR_AT_ONCE if _bytes(gemm)[0] == 1 else 1.0
    peak = (gpu.vector_peak(gemm.acc) or gpu.vector_peak("f32") or 1e4) * 1e9
    return _LAUNCH * 1e-6 + float(gemm.flops()) / (peak * at_once)


def _step(gemm: Gemm, c: Config) -> tuple[float, float]:
    """Instructions of a warp in a step, and clocks that they keep shared memory busy."""
    size, steps = _bytes(gemm)[0], c["BK"] / c["SPLIT_U"]
    group, fragments, waves = group_k(c, size), 0.0, 0.0
    for side, tile in (("A", c["TM"]), ("B", c["TN"])):
        inner, run = c[f"INNER_{side}"] == "k", c[f"THREAD_SCATTER_{side}"]
        count = tile / (group if inner else run) * steps
        fragments += count
        waves += count * (_WAVE_K if inner else _WAVE_ROW if run * size == WIDEST else 1.0)
    loads, copies = sum(_loads(c)), c["COPY"] == "async"
    moves = loads * _COPY if copies else loads * _LOAD + _puts(gemm, c) * _PUT
    multiply = c["TM"] * c["TN"] * steps * (_MULTIPLY_K if group > 1 else _MULTIPLY)
    if size == 1 and c["INNER_A"] == c["INNER_B"] == "k":
        multiply *= _FOUR_AT_ONCE
    elif size < _bytes(gemm)[2]:  # each number of a fragment becomes one of the sums' format
        multiply += (c["TM"] + c["TN"]) * steps * _CONVERT
    # What is transposed goes to the same banks, the more so the longer the lines along K are.
    same = max(1.0, c["BK"] / 8)
    waves += sum(
        _BANK * same * put if transposed else 0.0 if copies else _BANK * put for put, transposed in _placed(gemm, c)
    )
    return multiply + fragments * _FRAGMENT + moves + _STEP, waves + loads * _MOVE


def _asked_of_one(gemm: Gemm, c: Config) -> Any:
    """Rows of both operands that a block asks for, divided by how many slices of the cache answer."""
    size, total = _bytes(gemm)[0], 0.0
    for rows, tile in ((gemm.m, c["BM"]), (gemm.n, c["BN"])):
        lines = rows * gemm.k * size / 128 + 1
        total += min(rows, tile) * (1 / lines + 1 / _SLICES)
    return total


def _sectors(gemm: Gemm, gpu: Gpu, c: Config) -> Any:
    """Pieces of 32 bytes that stores touch, for a number of C: a warp's neighbours in a row should be many."""
    sector = 32 // _bytes(gemm)[1]
    if c["STAGE_ROWS"]:
        line = min(gpu.warp * c["STORE"], c["BN"])
        return (line / sector + _beyond(gemm.n, sector)) / line
    line = max(1.0, gpu.warp // c["LANES_M"] * c["THREAD_SCATTER_B"] / sector)
    return c["LANES_M"] * (line + _beyond(gemm.n, sector)) / (gpu.warp * c["STORE"])


def _longest(sharp: float, *times: Any) -> Any:
    """Of times that overlap."""
    return sum(time**sharp for time in times) ** (1 / sharp)


def _bytes(gemm: Gemm) -> tuple[int, int, int]:
    """Of a number of A and B, of C, and of a sum."""
    return _size(gemm.a), _size(gemm.c), _size(gemm.acc)


@lru_cache
def _size(name: str) -> int:
    return dtype(name).bytes


def _threads(c: Config) -> int:
    threads: int = c["BM"] // c["TM"] * (c["BN"] // c["TN"]) * c["SPLIT_U"]
    return threads


def _loads(c: Config) -> tuple[int, int]:
    """Of a thread, for a tile of A and of B."""
    threads = _threads(c)
    return -(-c["BM"] * c["BK"] // (c["LOAD_A"] * threads)), -(-c["BN"] * c["BK"] // (c["LOAD_B"] * threads))


def _placed(gemm: Gemm, c: Config) -> tuple[tuple[int, bool], tuple[int, bool]]:
    """A thread's stores to shared memory for a tile of A and of B, and whether they transpose it, number by number."""
    along_k = gemm.layout[0] == "n", gemm.layout[1] == "t"
    a, b = ((c[f"INNER_{side}"] == "k") != along for side, along in zip("AB", along_k, strict=True))
    loads_a, loads_b = _loads(c)
    return (loads_a * (c["LOAD_A"] if a else 1), a), (loads_b * (c["LOAD_B"] if b else 1), b)


def _puts(gemm: Gemm, c: Config) -> int:
    return 0 if c["COPY"] == "async" else sum(count for count, _ in _placed(gemm, c))


def _kilobytes(gemm: Gemm, c: Config) -> float:
    """Of code, roughly."""
    tile, group = c["TM"] * c["TN"], group_k(c, _bytes(gemm)[0])
    body = 20.0 * c["UNROLL"] * group * tile + (380 if c["COPY"] == "registers" else 200) * sum(_loads(c))
    stores = 12 * tile + 750 * c["TM"] / c["STAGE_ROWS"] if c["STAGE_ROWS"] else 100 * tile / c["STORE"]
    return float((5e3 + body + 80 * _puts(gemm, c) + stores + 7e3 * (c.get("SPLITS", 1) > 1)) * 1e-3)


def _beyond(length: Any, whole: int) -> Any:
    """1 where it is no multiple, or 0: as arithmetic, since each condition doubles the calls that symbols take."""
    return ceil(length % whole / whole)
