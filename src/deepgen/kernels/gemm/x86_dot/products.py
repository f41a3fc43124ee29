"""What the families that multiply narrow numbers share, on vectors and on tiles: results, operands, threads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepgen.operators import Gemm
from deepgen.space import Expr, Space, implies
from deepgen.targets import X86

PARTITION = {"left": 0, "right": 1, "both": 2, "batch": 3}
C_TYPES = {"f32": 0, "bf16": 1, "i32": 2, "f16": 0}  # f16 is made from f32
_SCALES = {"none": 0, "tensor": 1, "row": 2, "column": 3}
_ACTIVATIONS = {"none": 0, "relu": 1, "gelu": 2, "silu": 3}


def unfit_result(gemm: Gemm) -> str | None:
    """Why these sums or this result cannot be had from such operands; None where they can."""
    integer = gemm.a in ("i8", "u8")
    if gemm.acc != ("i32" if integer else "f32"):
        return f"it adds {gemm.a} up in {'i32' if integer else 'f32'} only"
    if gemm.c not in C_TYPES or (gemm.c == "i32" and not integer) or (gemm.c == "f16") > (gemm.a == "f16"):
        return f"it gives no {gemm.c} from {gemm.a}"
    if gemm.c == "i32" and (gemm.alpha != int(gemm.alpha) or gemm.beta != int(gemm.beta)):
        return "with a result in i32, alpha and beta must be whole numbers"
    if gemm.c == "i32" and (gemm.scales != "none" or gemm.activation not in ("none", "relu")):
        return "scales, gelu and silu need a floating result"
    return None


def swaps(gemm: Gemm) -> list[bool]:
    """Which operand may be the left one: rows of A (M x K) and columns of B (N x K) can be read where they lie."""
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
    """What finish.h does to sums."""
    return {
        "BIAS": int(gemm.bias),
        "SCALES": _SCALES[gemm.scales],
        "ACTIVATION": _ACTIVATIONS[gemm.activation],
    }


def partitions(gemm: Gemm) -> list[str]:
    return ["left", "right", "both", *(["batch"] if gemm.batch > 1 else [])]


def every_task_works(
    s: Space, gemm: Gemm, swap: Expr, threads: Expr, partition: Expr, tasks: Expr, rows: Expr, columns: Expr
) -> None:
    """Requires a panel, of so many rows or columns, or a matrix for each task of each thread."""
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
    """Threads of a default that has enough to do for all cores: what gives each of them most panels is divided."""
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
