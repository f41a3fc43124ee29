"""The configs of the f32 GEMM on x86 that a search starts from. Each choice was measured: docs/kernels/x86_gemm.md.

Products of few rows or columns, and small ones, have a model of their time: cycles of one core, counted as that page
explains, with constants that were fitted to times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from deepgen.kernels.gemm.x86_gemm.space import (
    BLOCK_M,
    BLOCK_N,
    FLOAT,
    LEAST_SLICE,
    ROWS,
    THIN,
    VECTORS,
    along_k,
    along_n,
    depths,
    large_tiles,
    may_share,
    most_block_bytes,
    small,
    worth_help,
)
from deepgen.kernels.shared import covering, nearest, thread_counts
from deepgen.operators import Gemm
from deepgen.targets import X86

_NARROW = 32  # rows or columns of C up to which the model is best
_ROWS = 8  # of a tile; each is a separate stream if A is read in place
_FEW = 128  # rows of C up to which packing B as a separate step would be noticeable
_SOME = 256  # rows of C up to which packing B would cost more than reading it in place
_FAST = 512  # rows of C up to which loading a block of B from memory would be noticeable
_SHORT = 64  # steps of K; with shorter blocks C is traversed too often
_PAGE = 4096  # bytes
_STRIPS = 8  # of A in a block, so that others can help with it
_SLICE = 64  # times the rows of C: adding up a shorter slice of K would cost as much as reading B
_MORE = 8  # of the model's first choices, of any kind
_WITHOUT = ("NEXT_STRIP", "NEXT_BLOCK", "PACK_FETCH", "NEXT_C", "STREAM_C", "HUGE_PAGES")  # not in the model's configs
_PAGES = 96  # entries of the first-level TLB

# Costs in the model, in cycles.
_CALL = 1750.0  # a call and a task
_TILE = 85.0  # start and end of a tile
_SQUARE = 42.0  # storing a square of a transposed tile to C
_TRANSPOSE = 88.0  # transposing a square while packing
_COPY = 1.5  # packing a vector unchanged
_FAR = 8.5  # bytes per cycle from beyond L2
_ROW_BY_ROW = 1.2  # factor if a few lines of each row are read at a time
_ROW = 1.5  # storing a row of a tile to C
_SUMS, _SUM = 20.0, 1.75  # a tile of sums along K, and adding up each of them
_SWEEP, _WAIT = 10.0, 0.5  # a group of rows of B; a vector of sums that is loaded and stored
_WAKE = 8000.0  # a call in which another thread takes part


def default_config(gemm: Gemm, cpu: X86, *, constant_b: bool = False) -> Mapping[str, Any]:
    """A good config without any search; a constant B is packed before all runs."""
    if not constant_b and _is_modelled(gemm, cpu):
        return guesses(gemm, cpu)[0]
    # With SWAP, the few rows of the caller's A are packed and B, much larger, is read in place.
    swap = not constant_b and gemm.layout[1] == "t" and 4 * gemm.m <= gemm.n
    height, width = (gemm.n, gemm.m) if swap else (gemm.m, gemm.n)
    rows, vectors = _tile(gemm, cpu, height, width, transposed=swap)
    lanes = cpu.vector_bytes // FLOAT
    a_in_place, b_in_place = along_k(gemm)[not swap], along_n(gemm)[not swap]
    # Elements of A that are contiguous in each step of K: if steps are close together, they need not be packed.
    a_by_steps = not (a_in_place or constant_b) and height * FLOAT <= _PAGE and gemm.k <= 8 * _SHORT
    bytes_b = width * gemm.k * FLOAT
    little = bytes_b <= cpu.l2_bytes // 4
    small_a = height * gemm.k * FLOAT <= cpu.l2_bytes // 4
    streamed = gemm.m <= THIN and b_in_place and not little  # B is read directly from memory, a few long rows at a time
    narrow = width <= 8 * lanes
    ahead = constant_b and not streamed  # what is read only once is read in place
    # If no cache holds C, it is written along its rows, not from row to row.
    near = little and small_a and height * width * FLOAT <= cpu.l2_bytes // 2
    # With a short K, prefetching C is also too late, and each thread should write to the same part in every call.
    passing = gemm.k <= _SHORT // 2 and gemm.batch * height * width * FLOAT > cpu.l2_bytes
    one_panel = near and not (ahead or b_in_place)
    askew = near and b_in_place and width % lanes != 0  # every load in place would touch two cache lines
    # Strips of A pass over B, one block at a time.
    blocks = not (swap or little or streamed)
    few = blocks and gemm.m <= _FEW
    # Blocks of B follow so quickly that the next must be prefetched: two of them, and C, have to fit in L2.
    fast = blocks and gemm.m <= _FAST
    depth = (32 if gemm.m > 4 else 16) if streamed else 1024 if narrow else 256 if fast or lanes == 8 else 512
    # Not packed if a block is so short that its rows are in few pages.
    reach = [d for d in depths(gemm) if _SHORT <= d <= depth and d * min(width * FLOAT, _PAGE) <= _PAGES * _PAGE]
    as_it_lies = blocks and b_in_place and not ahead and gemm.m <= _SOME and bool(reach)
    if as_it_lies:
        depth = reach[-1]
    # The first strip packs B at no cost if few others follow; if many do, packing whole rows at a time is faster.
    on_the_way = b_in_place and (askew or few)
    in_place = b_in_place and not blocks
    packing = (
        "none" if as_it_lies else "first" if on_the_way else "none" if in_place else "panel" if one_panel else "block"
    )
    # Packed blocks leave more than half of L2 to A, C and pages that happen to share sets with them.
    room = cpu.l2_bytes * 3 // 8 // (depth * FLOAT) if blocks or ahead else 512
    packed_n = max(n for n in BLOCK_N if n <= max(room, BLOCK_N[0]))
    packs = blocks and not (as_it_lies or ahead)
    next_strip = blocks and a_in_place
    # What stays in L1 through the inner loop: the panel if each is packed before its use, else the strip of A.
    stays = FLOAT * (vectors * lanes if one_panel or askew else rows)
    widths = [n for n in covering(BLOCK_N, width) if n >= vectors * lanes]
    most = min(cpu.l1d_bytes // stays, most_block_bytes(cpu) // (widths[0] * FLOAT))
    block_k = nearest(depths(gemm), min(depth, max(d for d in depths(gemm) if d == depths(gemm)[0] or d <= most)))
    widths = [n for n in widths if n * block_k * FLOAT <= most_block_bytes(cpu)] or widths[:1]
    long = 1024 if b_in_place else 4096  # rows of C that are traversed once
    block_n = nearest(
        widths, 4096 if streamed else long if passing else 1024 if as_it_lies else 384 if few else packed_n
    )
    room = most_block_bytes(cpu) if block_n * block_k * FLOAT <= cpu.l2_bytes else cpu.l2_bytes
    heights = covering(BLOCK_M, height)
    heights = [m for m in heights if m * block_k * FLOAT <= room] or heights[:1]
    config: dict[str, Any] = {
        "KIND": "tiles",
        "SWAP": swap,
        "MR": rows,
        "NR": vectors,
        "MC": heights[-1] if blocks and a_in_place else nearest(heights, 256),
        "NC": block_n,
        "KC": block_k,
        "PACK_A": "none" if a_in_place or a_by_steps else "panels",
        "PACK_B": "ahead" if ahead else packing,
        "OUTER": "b",
        "INNER": "a" if one_panel or askew else "b",
        "UNROLL": 8 if one_panel or swap or blocks else 4,
        "PREFETCH": 0,
        "PREFETCH_A": 64 if a_in_place and not small_a and not next_strip else 0,
        "NEXT_STRIP": next_strip,
        "NEXT_BLOCK": fast,
        "PACK_FETCH": packs or (askew and not ahead),
        **_fetches(gemm, cpu, blocks=blocks),
        "NEXT_C": passing and not swap,
        "STREAM_C": False,
        "HUGE_PAGES": packs and not small(gemm),
    }
    along = "k" if streamed or (as_it_lies and gemm.k >= 2 * max(height, width)) else "m" if passing else ""
    return {**config, **_threads(gemm, cpu, height, width, rows, vectors * lanes, along=along, inner=config["INNER"])}


def _fetches(gemm: Gemm, cpu: X86, *, blocks: bool) -> Mapping[str, Any]:
    """What is prefetched: all of a small product, or the next matrix of a batch."""
    both_in_l1 = 2 * gemm.least_bytes() // gemm.batch <= cpu.l1d_bytes
    return {
        "AHEAD": gemm.batch == 1 and small(gemm) and (gemm.m + gemm.n) * gemm.k * FLOAT <= cpu.l1d_bytes,
        "NEXT": "none" if gemm.batch == 1 or blocks else "l1" if both_in_l1 else "l2",
    }


def _threads(
    gemm: Gemm, cpu: X86, height: int, width: int, rows: int, columns: int, *, along: str = "", inner: str | None = None
) -> Mapping[str, Any]:
    """All cores if there is enough work, dividing the dimension that gives each of them most tiles.

    `along` k: B is read in place, and a slice of K is contiguous; m: what a thread writes is contiguous. Any core may
    be slowed down at any time by something else: a thread that has finished helps the others with their strips, or
    draws more tasks.
    """
    threads = cpu.cores
    if threads == 1 or not may_share(gemm, 4 * threads):
        return {"THREADS": 1}
    if gemm.batch >= threads:
        tasks = max(t for t in (1, 2, 4) if t * threads <= gemm.batch)
        return {"THREADS": threads, "PARTITION": "batch", "TASKS": tasks}
    helped = height >= _STRIPS * rows and worth_help(gemm, threads, inner)
    wide = width > columns * (threads - 1) and width >= height
    if along == "m" and height > rows * (threads - 1):
        return {"THREADS": threads, "PARTITION": "m", "TASKS": 1}
    if along == "k" and gemm.k >= threads * LEAST_SLICE:
        part, pieces = along, gemm.k // max(LEAST_SLICE, _SLICE * gemm.m)
    elif wide or height > rows * (threads - 1):
        part, pieces = ("n", width // columns // 8) if wide else ("m", height // rows // 8)
    else:
        return {"THREADS": 1}
    tasks = 1 if helped else max(t for t in (1, 2, 4) if t == 1 or t * threads <= pieces)
    return {"THREADS": threads, "PARTITION": part, "TASKS": tasks}


def _tile(gemm: Gemm, cpu: X86, height: int, width: int, *, transposed: bool) -> tuple[int, int]:
    lanes = cpu.vector_bytes // FLOAT
    streamed = gemm.m <= THIN and gemm.layout[1] == "n" and gemm.n * gemm.k * FLOAT > cpu.l2_bytes // 4
    low = [(r, v) for r, v in large_tiles(cpu, height, width) if r <= _ROWS]
    most = 8 if not streamed else 2 if gemm.m > 4 else 4
    if max(height, width) * gemm.k * FLOAT <= cpu.l2_bytes // 4:  # a panel of B may stay in L1
        most = min(most, cpu.l1d_bytes // (depths(gemm)[0] * lanes * FLOAT))
    most = max(most, min(v for _, v in low))
    allowed = [(r, v) for r, v in low if v <= most]
    load_b = 0.35 if transposed else 0.2
    return min(allowed, key=lambda tile: _tile_cost(height, width, lanes, tile[0], tile[1], load_b))


def _tile_cost(height: int, width: int, lanes: int, rows: int, vectors: int, load_b: float) -> float:
    """Cycles of one step of K over all of C, including what tiles waste at the edges.

    Two multiply-adds per cycle, of latency four; a load costs little in comparison, but not nothing, and one of B more
    than one of A because it loads a whole vector. With SWAP, a wide tile costs more: it writes C in short pieces. Every
    tile has a start and an end, rows that do not fill a strip are copied first, and a narrower last panel takes its own
    code.
    """

    def tile(across: int) -> float:
        return max(rows * across / 2, 4.0) + 0.12 * rows + load_b * across + 0.5

    panels, rest = divmod(-(-width // lanes), vectors)
    strips = height // rows + (1.2 if height % rows else 0.0)
    return strips * (panels * tile(vectors) + (1.1 * tile(rest) if rest else 0.0))


def guesses(gemm: Gemm, cpu: X86) -> list[Mapping[str, Any]]:
    """Configs for this product, the fastest by the model first; none if the model does not cover it."""
    if min(gemm.m, gemm.n) > THIN and not _fits(gemm, cpu):
        return []
    alone = sorted(_configs(gemm, cpu), key=lambda config: cycles(gemm, cpu, config))
    # The best of each kind first: when the model is wrong, it is rarely about the size of a tile.
    kinds = {(config["KIND"], config["SWAP"]): config for config in reversed(alone)}
    order = [*kinds.values(), *(config for config in alone[:_MORE] if config not in kinds.values())]
    shared = [_shared(gemm, cpu, config) for config in order]
    first = sorted(shared[: len(kinds)], key=lambda config: cycles(gemm, cpu, config))
    return [*first, *shared[len(kinds) :]]


def _is_modelled(gemm: Gemm, cpu: X86) -> bool:
    """Whether the model has the best choice: for few rows or columns, and small products with a C that stays in
    cache."""
    least, results = min(gemm.m, gemm.n), gemm.batch * gemm.m * gemm.n * FLOAT
    return least <= THIN or (_fits(gemm, cpu) and (least <= _NARROW or results <= cpu.l2_bytes))


def _fits(gemm: Gemm, cpu: X86) -> bool:
    """Whether all matrices of a product stay in cache while it runs."""
    return (gemm.m * gemm.k + gemm.k * gemm.n + gemm.m * gemm.n) * FLOAT <= cpu.l2_bytes // 4


def cycles(gemm: Gemm, cpu: X86, config: Mapping[str, Any]) -> float:
    """Cycles of the busiest thread."""
    lanes, swap = cpu.vector_bytes // FLOAT, config["SWAP"]
    height, width = (gemm.n, gemm.m) if swap else (gemm.m, gemm.n)
    work = {"tiles": _tiles, "thin": _thin, "dot": _dot}[config["KIND"]]
    threads, deep, batch, waking = config["THREADS"], gemm.k, gemm.batch, 0.0
    if threads > 1:
        waking = _WAKE + 500.0 * threads
        part = config["PARTITION"]
        if part == "batch":
            batch = -(-batch // threads)
        elif part == "k":
            deep = -(-deep // threads)
            waking += _WAKE / 4 + threads * gemm.m * gemm.n / lanes
        elif part == "n":
            width = -(-width // threads)
        else:
            height = -(-height // threads)
    arithmetic = work(gemm, config, lanes, height, width, deep)
    # Data that does not stay in L2 between calls is loaded from beyond it.
    touched = (height * deep + deep * width + height * width) * FLOAT * batch
    far = min(max(touched / cpu.l2_bytes - 0.5, 0.0) / 0.75, 1.0)
    beyond = far * touched / _FAR
    if config.get("PACK_B") in ("none", "first"):  # row by row of B: hardware cannot predict what comes next
        beyond *= _ROW_BY_ROW
    # Sums along K wait for loads; others run ahead.
    apart = 0.8 if config["KIND"] == "dot" else 0.25
    return _CALL + waking + max(batch * arithmetic, beyond) + apart * min(batch * arithmetic, beyond)


def _step(rows: int, vectors: int) -> float:
    """Two multiply-adds per cycle, of latency four; loads cost little in comparison, but not nothing."""
    return max(rows * vectors / 2, (rows + vectors) / 2, 4.0) + 0.06 * rows + 0.1 * vectors


def _tiles(gemm: Gemm, config: Mapping[str, Any], lanes: int, height: int, width: int, deep: int) -> float:
    rows, vectors, swap = config["MR"], config["NR"], config["SWAP"]
    strips = -(-height // rows)
    panels, rest = divmod(-(-width // lanes), vectors)
    blocks = -(-deep // config["KC"])

    def tile(across: int) -> float:
        put = _SQUARE * across if swap else _ROW * rows
        return float(deep * _step(rows, across) + blocks * (_TILE + put))

    whole: float = strips * (panels * tile(vectors) + (tile(rest) if rest else 0.0))
    transposing = -(-deep // lanes) * _TRANSPOSE
    if config["PACK_A"] == "panels":
        whole += strips * (deep * 2.0 if not along_k(gemm)[not swap] else transposing)
    elif height % rows:  # the last rows are copied
        whole += deep * rows / 8
    if config["PACK_B"] in ("panel", "block"):
        many = -(-width // lanes)
        whole += many * (deep * _COPY if along_n(gemm)[not swap] else transposing)
    elif config["PACK_B"] == "first":
        whole += -(-width // lanes) * deep * 0.5
    return whole


def _thin(gemm: Gemm, config: Mapping[str, Any], lanes: int, height: int, width: int, deep: int) -> float:
    rows, vectors, unroll = config["MR"], config["NR"], config["UNROLL"]
    panels, rest = divmod(-(-width // lanes), vectors)
    groups, sweeps = -(-height // rows), -(-deep // unroll)

    def swept(across: int) -> float:
        return float(deep * _step(rows, across) + sweeps * (_WAIT * rows * across + 4.0))

    whole: float = groups * (sweeps * _SWEEP + panels * swept(vectors) + rest * swept(1))
    return whole + (_SQUARE * groups * -(-width // lanes) if config["SWAP"] else 0.0)


def _dot(gemm: Gemm, config: Mapping[str, Any], lanes: int, height: int, width: int, deep: int) -> float:
    rows, vectors = config["MR"], config["NR"]
    steps = -(-deep // lanes)
    sums = _SUMS + _SUM * rows * vectors + _ROW * (vectors if config["SWAP"] else rows)
    whole: float = -(-height // rows) * -(-width // vectors) * (steps * _step(rows, vectors) + sums)
    return whole + (steps * _TRANSPOSE * -(-height // rows) if "KC" in config else 0.0)


def _configs(gemm: Gemm, cpu: X86) -> Iterator[dict[str, Any]]:
    """On one thread: with and without SWAP, all applicable kinds, tiles of all sizes."""
    lanes = cpu.vector_bytes // FLOAT
    for swap in (False, True):
        height, width = (gemm.n, gemm.m) if swap else (gemm.m, gemm.n)
        a_along_k, b_along_n = along_k(gemm)[not swap], along_n(gemm)[not swap]
        groups, bytes_b = -(-height // 8), width * gemm.k * FLOAT
        rows = min(r for r in (*ROWS, *(h for h in (gemm.m, gemm.n) if h <= lanes)) if r * groups >= height)
        fitting = [v for v in VECTORS if rows * v + v + 1 <= cpu.vector_registers]
        common = {"SWAP": swap, "PREFETCH": 0, "THREADS": 1}
        if height <= THIN and b_along_n:
            widths = [n for n in covering(BLOCK_N, width) if n <= (4096 if height <= 4 else 1024 // groups)]
            for vectors in (v for v in fitting if v <= 4 and rows * v <= THIN and v * lanes < width + lanes):
                thin = {"KIND": "thin", "MR": rows, "NR": vectors, "NC": widths[-1], "UNROLL": 8}
                # Rows that span pages are prefetched by hardware.
                fetched = height > 1 and bytes_b > cpu.l2_bytes and width * FLOAT <= _PAGE
                yield {**thin, "NEXT_BLOCK": fetched, **common}
        if height <= 2 * THIN and not b_along_n:
            for vectors in (v for v in fitting if v <= width):
                depth = {} if a_along_k else {"KC": nearest_depth(gemm, 1024)}
                fetches = 1 < rows <= 6 if bytes_b <= 4 * cpu.l2_bytes else rows > 4
                ahead = {"PREFETCH": 16 if fetches and bytes_b > cpu.l2_bytes // 2 else 0}
                yield {"KIND": "dot", "MR": rows, "NR": vectors, **depth, **common, **ahead}
        yield from _tile_configs(gemm, cpu, swap, height, width)


def nearest_depth(gemm: Gemm, most: int) -> int:
    """The longest block of K up to a limit."""
    return max(d for d in depths(gemm) if d <= most or d == depths(gemm)[0])


def _tile_configs(gemm: Gemm, cpu: X86, swap: bool, height: int, width: int) -> Iterator[dict[str, Any]]:
    lanes = cpu.vector_bytes // FLOAT
    a_along_k, b_along_n = along_k(gemm)[not swap], along_n(gemm)[not swap]
    for rows, vectors in large_tiles(cpu, height, width):
        pack_b, inner = ("none", "b") if b_along_n else ("panel", "a")
        most = cpu.l1d_bytes // (FLOAT * (vectors * lanes if inner == "a" else rows))
        if most < depths(gemm)[0]:
            continue
        depth = nearest_depth(gemm, min(most, cpu.l2_bytes // FLOAT // max(BLOCK_M[0], BLOCK_N[0], vectors * lanes)))
        heights = [m for m in covering(BLOCK_M, height) if m * depth * FLOAT <= cpu.l2_bytes]
        widths = [n for n in covering(BLOCK_N, width) if n >= vectors * lanes]
        for pack_a in ("none",) if a_along_k else ("none", "panels"):
            yield {
                "KIND": "tiles",
                "SWAP": swap,
                "MR": rows,
                "NR": vectors,
                "MC": heights[-1],
                "NC": [n for n in widths if n == widths[0] or n * depth * FLOAT <= most_block_bytes(cpu)][-1],
                "KC": depth,
                "PACK_A": pack_a,
                "PACK_B": pack_b,
                "OUTER": "b",
                "INNER": inner,
                "UNROLL": 8 if depth >= 8 and gemm.k >= 64 else 4,
                **dict.fromkeys(("PREFETCH", "PREFETCH_A"), 0),
                **dict.fromkeys(_WITHOUT, False),
                **_fetches(gemm, cpu, blocks=False),
                "THREADS": 1,
            }


def _shared(gemm: Gemm, cpu: X86, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same on as many threads as pay off, with the best dimension to divide."""
    height, width = (gemm.n, gemm.m) if config["SWAP"] else (gemm.m, gemm.n)
    columns = config["NR"] * (1 if config["KIND"] == "dot" else cpu.vector_bytes // FLOAT)
    ways = [config]
    for threads in thread_counts(cpu.cores)[1:]:
        if not may_share(gemm, threads):
            continue
        divided = ["batch"] if threads <= gemm.batch else []
        divided += ["n"] if threads * columns < width + columns else []
        divided += ["m"] if threads * config["MR"] < height + config["MR"] else []
        divided += ["k"] if threads * LEAST_SLICE <= gemm.k else []
        for part in divided:
            # Slices of a long K are enough tasks for a thread on a slowed-down core to do fewer of them.
            pieces = gemm.k // max(LEAST_SLICE, _SLICE * min(gemm.m, gemm.n)) if part == "k" else 0
            tasks = max(t for t in (1, 2, 4) if t == 1 or t * threads <= pieces)
            ways.append({**config, "THREADS": threads, "PARTITION": part, "TASKS": tasks})
    return min(ways, key=lambda way: cycles(gemm, cpu, way))
