"""How the time of a GEMM kernel on x86 changes with the shape: tiles that are not full, and threads that wait.

For choosing among kernels that were timed at other shapes: only ratios count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from deepgen.operators import Gemm

_CLOCK = 2.5e9  # of a usual processor under vectors
_WAKING_CLOCKS = 2e4  # of a call that wakes other threads
_PACKING_CLOCKS = 0.25  # of each number that is packed
_BYTES_PER_CLOCK = 4.0  # that a core gets from memory
_ADDED_PER_CLOCK = 4.0  # sums of slices of K that are added up
_DIVIDED = {"m": "left", "n": "right", "mn": "both"}  # other words for what tasks divide


class Tile(NamedTuple):
    """What one turn of the innermost loop computes."""

    rows: int
    columns: int
    depth: int  # numbers along K
    clocks: float


def seconds(gemm: Gemm, config: Mapping[str, Any], tile: Tile) -> float:
    """The arithmetic and the packing of the busiest thread, the memory's time, and waking threads."""
    left, right = (gemm.n, gemm.m) if config.get("SWAP", False) else (gemm.m, gemm.n)
    high, wide, deep = -(-left // tile.rows), -(-right // tile.columns), -(-gemm.k // tile.depth)
    threads = config["THREADS"]
    parts = threads * config.get("TASKS", 1)
    divided = config.get("PARTITION", "left")
    divided = _DIVIDED.get(divided, divided)
    units = {"left": high, "right": wide, "both": high * wide, "k": deep, "batch": gemm.batch}[divided]
    share = 1.0 if threads == 1 else _busiest(units, threads, parts)
    products = high * wide * deep * gemm.batch * tile.clocks * share
    packs = config.get("PACK_B", "block") not in ("none", "ahead")
    packed = right * gemm.k * gemm.batch * _PACKING_CLOCKS * (1.0 if divided == "left" else share) if packs else 0.0
    added = parts * gemm.m * gemm.n * gemm.batch / _ADDED_PER_CLOCK / threads if divided == "k" else 0.0
    memory = gemm.least_bytes() / (_BYTES_PER_CLOCK * threads)
    whole: float = (products + packed + added + memory + _WAKING_CLOCKS * (threads > 1)) / _CLOCK
    return whole


def _busiest(units: int, threads: int, parts: int) -> float:
    """The share of the thread that has most to do, where tasks have whole units and threads draw one by one."""
    each = -(-units // parts)
    tasks = -(-units // each)
    return -(-tasks // threads) * each / units
