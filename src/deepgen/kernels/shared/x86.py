"""Shared by the x86 GEMM families: a model of their time, narrow operands and results, tasks.

The model says how a kernel's time changes with the shape: partial tiles, and threads that wait. It is for choosing
among kernels that were timed at other shapes: only ratios matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from deepgen.kernels.shared import epilogue
from deepgen.operators import Gemm
from deepgen.space import Expr, Space, implies
from deepgen.targets import X86

HUGE_PAGE = 2 << 20  # bytes, as in x86_pages.h
_CLOCK = 2.5e9  # of a typical CPU under vector load
_WAKING_CLOCKS = 2e4  # for a call that wakes other threads
_PACKING_CLOCKS = 0.25  # per packed element
_BYTES_PER_CLOCK = 4.0  # from memory, per core
_ADDED_PER_CLOCK = 4.0  # sums of slices of K
_DIVIDED = {"m": "left", "n": "right", "mn": "both"}  # knob values of other families for what tasks divide


class TileCost(NamedTuple):
    """The work of one iteration of the innermost loop."""

    rows: int
    columns: int
    depth: int  # elements along K
    clocks: float


def seconds(gemm: Gemm, config: Mapping[str, Any], tile: TileCost) -> float:
    """Arithmetic and packing of the busiest thread, memory time, and waking threads."""
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
    """The busiest thread's share, if tasks have whole units and threads draw them one by one."""
    each = -(-units // parts)
    tasks = -(-units // each)
    return -(-tasks // threads) * each / units


PARTITION = {"left": 0, "right": 1, "both": 2, "batch": 3}
C_TYPES = {"f32": 0, "bf16": 1, "i32": 2, "f16": 0}  # f16 is converted from f32
_SCALES = {"none": 0, "tensor": 1, "row": 2, "column": 3}
_ACTIVATIONS = {"none": 0, "relu": 1, "gelu": 2, "silu": 3}


def unfit_result(gemm: Gemm) -> str | None:
    """The reason why these operands cannot give such sums or such a result; None if they can."""
    if (why := epilogue.refused(gemm)) is not None:
        return why
    integer = gemm.a in ("i8", "u8")
    if gemm.acc != ("i32" if integer else "f32"):
        return f"it accumulates {gemm.a} in {'i32' if integer else 'f32'} only"
    if gemm.c not in C_TYPES or (gemm.c == "i32" and not integer) or (gemm.c == "f16") > (gemm.a == "f16"):
        return f"it cannot produce {gemm.c} from {gemm.a}"
    if gemm.c == "i32" and (gemm.alpha != int(gemm.alpha) or gemm.beta != int(gemm.beta)):
        return "with an i32 result, alpha and beta must be integers"
    if gemm.c == "i32" and (gemm.scales != "none" or gemm.activation not in ("none", "relu")):
        return "scales, gelu and silu need a floating result"
    return None


def swaps(gemm: Gemm) -> list[bool]:
    """The possible values of SWAP: rows of A (M x K) and columns of B (N x K) can be read in place as the left
    operand."""
    return {"nn": [False], "nt": [False, True], "tn": [False, True], "tt": [True]}[gemm.layout]


def sides(gemm: Gemm, swap: bool) -> tuple[int, int]:
    """Rows of the left operand and columns of the right one."""
    return (gemm.n, gemm.m) if swap else (gemm.m, gemm.n)


def operand_macros(gemm: Gemm, swap: bool) -> dict[str, int]:
    left, right = (gemm.b, gemm.a) if swap else (gemm.a, gemm.b)
    return {
        "LEFT_SIGNED": int(left == "i8"),
        "RIGHT_SIGNED": int(right == "i8"),
        "A_T": int(gemm.layout[0] == "t"),
        "B_T": int(gemm.layout[1] == "t"),
    }


def finish_macros(gemm: Gemm) -> dict[str, int]:
    """The macros for the epilogue in finish.h."""
    return {"BIAS": int(gemm.bias), "SCALES": _SCALES[gemm.scales], "ACTIVATION": _ACTIVATIONS[gemm.activation],
            **epilogue.macros(gemm)}  # fmt: skip


def partitions(gemm: Gemm) -> list[str]:
    return ["left", "right", "both", *(["batch"] if gemm.batch > 1 else [])]


def every_task_works(
    s: Space, gemm: Gemm, swap: Expr, threads: Expr, partition: Expr, tasks: Expr, rows: Expr, columns: Expr
) -> None:
    """Requires, for each task of each thread, a panel of this many rows or columns, or a matrix."""
    for swapped in swaps(gemm):
        left, right = sides(gemm, swapped)
        for word, size, unit in (("left", left, rows), ("right", right, columns)):
            s.require(
                implies((threads > 1) & (swap == swapped) & (partition == word), threads * tasks * unit < size + unit),
                f"every task has a panel when the {word} operand is divided, swapped: {swapped}",
            )
    s.require(
        implies((threads > 1) & (partition == "batch"), threads * tasks <= gemm.batch),
        "every task has a matrix when the batch is divided",
    )


def all_cores(gemm: Gemm, cpu: X86, left: int, right: int, rows: int, columns: int) -> Mapping[str, Any]:
    """Threads of a default with enough work for all cores: the dimension that gives each of them most panels is
    divided."""
    threads = cpu.cores
    if threads == 1:
        return {"THREADS": 1}
    if gemm.batch >= threads:
        return {"THREADS": threads, "PARTITION": "batch", "TASKS": 1}
    wide, high = right > columns * (threads - 1), left > rows * (threads - 1)
    if not wide and not high:
        return {"THREADS": 1}
    by_columns = wide and (right >= left or not high)
    return {"THREADS": threads, "PARTITION": "right" if by_columns else "left", "TASKS": 1}
