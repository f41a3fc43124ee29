"""Configs of the SIMT GEMM family that are worth a trial on a shape: by a simple model, and around what is good.

It knows the H200: 132 multiprocessors and their shared memory. The knobs are the family's, with a padding for each
operand and scatter widths as numbers, which the family takes too.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, gcd
from typing import Any

Config = dict[str, Any]
Shape = tuple[int, int, int, int]  # batch, M, N, K

SMS, SHARED, RATE = 132, 227 << 10, 62e12

# (BM, BN, TM, TN, LANES_M): what a warp covers is LANES_M * TM by 32 / LANES_M * TN.
TILES = [
    (128, 128, 16, 8, 4), (128, 128, 8, 16, 8), (128, 128, 8, 8, 4), (256, 128, 16, 8, 4), (128, 256, 8, 16, 8),
    (256, 64, 16, 8, 4), (64, 256, 8, 16, 8),
    (128, 64, 16, 8, 4), (64, 128, 8, 16, 8), (64, 128, 8, 8, 4), (128, 64, 8, 8, 4), (96, 128, 12, 8, 4),
    (128, 96, 8, 12, 8), (96, 96, 12, 6, 4), (96, 96, 6, 12, 8), (192, 128, 12, 16, 8), (192, 96, 12, 12, 4),
    (64, 64, 8, 8, 4), (64, 64, 8, 4, 4), (64, 32, 8, 4, 4), (32, 64, 4, 8, 4), (32, 128, 8, 8, 4), (32, 32, 4, 8, 8),
    (64, 96, 8, 12, 8), (96, 64, 12, 8, 4), (16, 64, 4, 8, 4), (16, 64, 8, 4, 2), (16, 128, 8, 8, 2),
    (16, 128, 4, 8, 4), (16, 32, 4, 4, 4), (32, 96, 4, 12, 8),
]  # fmt: skip


def config(tile: tuple[int, ...], bk: int, stages: int, split_u: int, fixup: str, splits: int, **other: Any) -> Config:
    bm, bn, tm, tn, lanes_m = tile
    registers = tm * tn + 4 * (tm + tn) + 40
    threads = bm // tm * (bn // tn) * split_u
    made = {
        "BM": bm, "BN": bn, "BK": bk, "TM": tm, "TN": tn, "LANES_M": lanes_m, "SPLIT_U": split_u, "STAGES": stages,
        "MAPPING": 8, "STORE": gcd(tn, 4), "LOAD_A": 4, "LOAD_B": 4, "PAD_A": 4, "PAD_B": 4, "LANE_ORDER": 1,
        "WARP_SCATTER_A": tm, "WARP_SCATTER_B": tn, "THREAD_SCATTER_A": 1, "THREAD_SCATTER_B": gcd(tn, 4),
        "LOAD_CONTINUOUS": True, "INNER_A": "k", "INNER_B": "k", "COPY": "async", "REG_PREFETCH": False, "UNROLL": 4,
        "STAGE_ROWS": 0, "REDUCE_CONTINUOUS": True, "FIXUP": fixup, "SPLITS": splits, "GUARD": "sizes",
        "MIN_BLOCKS": max(1, min(8, 65536 // (min(registers, 255) * threads))), **other,
    }  # fmt: skip
    if split_u > 1:  # the sums of all groups must fit where the tiles were
        rows = tm
        while rows > 1 and split_u * (bm // tm) * rows * (bn + 8) * 4 > 96 << 10:
            rows = next(r for r in range(rows - 1, 0, -1) if tm % r == 0)
        made["STAGE_ROWS"] = rows
        made["STORE"] = 4
    if fixup == "stream":
        made["BLOCKS"] = SMS * resident(made)
    return made


def with_rows_inside(c: Config, **other: Any) -> Config:
    """The same with K outermost in shared memory: tiles are turned in registers on their way."""
    runs = {"THREAD_SCATTER_A": gcd(c["TM"], 4), "THREAD_SCATTER_B": gcd(c["TN"], 4)}
    steps = c["BK"] // c["SPLIT_U"]
    registers = c["TM"] * c["TN"] + 2 * (c["TM"] + c["TN"]) + 40
    blocks = max(1, min(8, 65536 // (min(registers, 255) * threads_of(c))))
    made = {
        **c, **runs, "INNER_A": "row", "INNER_B": "row", "COPY": "registers", "STAGES": 2, "UNROLL": min(8, steps),
        "MIN_BLOCKS": blocks, **other,
    }  # fmt: skip
    if c["SPLIT_U"] == 1:
        made["STORE"] = runs["THREAD_SCATTER_B"]
    if c["FIXUP"] == "stream":
        made["BLOCKS"] = SMS * resident(made)
    return made


def threads_of(c: Config) -> int:
    return int(c["BM"] // c["TM"] * (c["BN"] // c["TN"]) * c["SPLIT_U"])


def resident(c: Config) -> int:
    """Blocks that a multiprocessor holds, if the compiler keeps to MIN_BLOCKS."""
    shared = (c["BM"] + c["BN"]) * (c["BK"] + 4) * 4 * c["STAGES"] + 1024
    return int(max(1, min(c["MIN_BLOCKS"], (228 << 10) // shared, 2048 // threads_of(c))))


def valid(c: Config) -> bool:
    shared = (c["BM"] + c["BN"]) * (c["BK"] + 4) * 4 * c["STAGES"]
    lines = threads_of(c) % (c["BK"] // 4) == 0
    group = 4 if c["INNER_A"] == "k" else 1
    fits = c["BK"] % (group * c["SPLIT_U"]) == 0 and threads_of(c) <= 512 and shared <= SHARED
    lanes_n = 32 // c["LANES_M"]
    covers = c["BM"] % (c["LANES_M"] * c["TM"]) == 0 and c["BN"] % (lanes_n * c["TN"]) == 0
    return fits and lines and covers and c["TM"] * c["TN"] <= 128 + 64 * (c["MIN_BLOCKS"] == 1)


def predicted(shape: Shape, c: Config) -> float:
    """Seconds: the busiest multiprocessor's arithmetic, the memory's time, and what adding the parts up costs."""
    batch, m, n, k = shape
    tiles = ceil(m / c["BM"]) * ceil(n / c["BN"]) * batch
    blocks = tiles * c["SPLITS"]
    steps = ceil(ceil(k / c["BK"]) / c["SPLITS"]) * c["BK"]
    warps = threads_of(c) // 32
    work = tiles * k / SMS if c["FIXUP"] == "stream" else ceil(blocks / SMS) * steps
    alive = min(ceil(blocks / SMS), resident(c)) * warps
    ratio = c["TM"] * c["TN"] / (c["TM"] * c["TN"] + 4.0 * (c["TM"] + c["TN"]))  # arithmetic against loads
    speed = RATE / SMS * min(1.0, 0.55 + alive / 16) * min(1.0, 0.45 + ratio) * (1.0 if c["INNER_A"] == "row" else 0.93)
    arithmetic = work * c["BM"] * c["BN"] * 2 / speed
    if c["SPLIT_U"] > 1:  # each block's sums go through shared memory
        arithmetic += ceil(blocks / SMS) * c["SPLIT_U"] * c["BM"] * c["BN"] * 8 / (128 * 1.7e9)
    memory = 4.0 * batch * (m * k + n * k + m * n) / 4.2e12
    sums = 4.0 * m * n * batch * c["SPLITS"]
    extra = {
        "none": 0.0,
        "step": 2.0e-6 + 2 * sums / 3e12,
        "last": 1.0e-6 + c["SPLITS"] * c["BM"] * c["BN"] * 4 / 120e9,
        "stream": 3e-6,
    }[c["FIXUP"]]
    return float(3e-6 + max(arithmetic, memory) + 0.2 * min(arithmetic, memory) + extra)


def candidates(shape: Shape, most: int) -> list[Config]:
    batch, m, n, k = shape
    found: list[tuple[float, Config]] = []
    for tile in TILES:
        if tile[0] > 2 * m or tile[1] > 2 * n:
            continue
        tiles = ceil(m / tile[0]) * ceil(n / tile[1]) * batch
        for split_u in (1, 2, 4, 8) if tiles < 3 * SMS else (1, 2):
            for bk, stages in ((8, 2), (8, 4), (16, 2), (16, 3), (16, 4), (32, 2), (32, 3), (64, 2), (64, 3)):
                for fixup, splits in splittings(tiles, k, bk):
                    c = config(tile, bk, stages, split_u, fixup, splits)
                    some = (
                        [c]
                        if stages > 2 or bk > 16
                        else [c, with_rows_inside(c), with_rows_inside(c, REG_PREFETCH=True)]
                    )
                    found += [(predicted(shape, each), each) for each in some if valid(each)]
    found.sort(key=lambda pair: pair[0])
    return varied([c for _, c in found], most)


def varied(ranked: list[Config], most: int) -> list[Config]:
    """The best, but no more than a few of one tile and of one way to split: the model is not that good."""
    seen: dict[tuple[Any, ...], int] = {}
    out = []
    for c in ranked:
        tile = (c["BM"], c["BN"], c["TM"])
        way = (*tile, c["FIXUP"], c["SPLIT_U"], c["INNER_A"])
        if seen.get(tile, 0) < 10 and seen.get(way, 0) < 3:
            seen[tile] = seen.get(tile, 0) + 1
            seen[way] = seen.get(way, 0) + 1
            out.append(c)
        if len(out) == most:
            break
    return out


def splittings(tiles: int, k: int, bk: int) -> Iterator[tuple[str, int]]:
    yield "none", 1
    if tiles < 8 * SMS:
        yield "stream", 1
    for waves in (1, 2, 3, 4):
        splits = waves * SMS // tiles
        if splits >= 2 and k // splits >= 2 * bk:
            yield "step", splits
            if splits <= 8:
                yield "last", splits


def neighbours(c: Config) -> Iterator[Config]:
    """One knob changed at a time."""
    rows, split_u = c["INNER_A"] == "row", c["SPLIT_U"]
    runs = (c["THREAD_SCATTER_B"],) if rows else (1, 2, 4)
    for knob, values in (
        ("LANE_ORDER", (0, 1)), ("MAPPING", (1, 4, 16)), ("UNROLL", (2, 4, 8, 16) if rows else (1, 2, 4)),
        ("STAGES", (1, 2) if c["COPY"] == "registers" else (2, 3, 4, 5)), ("THREAD_SCATTER_B", runs),
        ("REG_PREFETCH", (False, True)), ("PAD_A", (0, 4)), ("PAD_B", (0, 4)), ("BK", (8, 16, 32, 64)),
        ("MIN_BLOCKS", tuple(b for b in (c["MIN_BLOCKS"] - 1, c["MIN_BLOCKS"] + 1) if b > 0)),
        ("STAGE_ROWS", (0, 1, 2, c["TM"])), ("SPLITS", (c["SPLITS"] - 1, c["SPLITS"] + 1, c["SPLITS"] * 2)),
        ("WARP_SCATTER_A", (c["THREAD_SCATTER_A"], c["TM"])), ("WARP_SCATTER_B", (c["THREAD_SCATTER_B"], c["TN"])),
        ("LANES_M", (2, 4, 8)), ("FIXUP", ("none", "stream")),
    ):  # fmt: skip
        for value in values:
            other = {**c, knob: value}
            if knob == "THREAD_SCATTER_B" and not c["STAGE_ROWS"]:
                other["STORE"] = value
            if knob == "STAGE_ROWS":
                other["STORE"] = c["STORE"] if value == 0 else 4
                if (value == 0 and split_u > 1) or (split_u > 1 and value > c["STAGE_ROWS"]):
                    continue
            if (knob == "SPLITS" and (c["SPLITS"] == 1 or value < 2)) or (knob == "FIXUP" and c["SPLITS"] > 1):
                continue
            if other["FIXUP"] == "stream":
                other["BLOCKS"] = SMS * resident(other)
            if other != c and valid(other) and c["TM"] % max(other["STAGE_ROWS"], 1) == 0:
                yield other


def turned(c: Config) -> Iterator[Config]:
    """Other ways to hold the tiles: K innermost or outermost, turned in registers or copied element by element."""
    if c["INNER_A"] == "k":
        for unroll in (4, 8, 16):
            yield with_rows_inside(c, UNROLL=unroll)
            yield with_rows_inside(c, UNROLL=unroll, REG_PREFETCH=True)
    else:
        single = {"COPY": "async", "LOAD_A": 1, "LOAD_B": 1, "PAD_A": 4, "PAD_B": 4}
        yield {**c, **single, "STAGES": 2}
        yield {**c, **single, "STAGES": 3}
        tile = (c["BM"], c["BN"], c["TM"], c["TN"], c["LANES_M"])
        yield config(tile, 16, 3, c["SPLIT_U"], c["FIXUP"], c.get("SPLITS", 1))
