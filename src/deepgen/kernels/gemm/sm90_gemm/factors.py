"""Factors of blocks: where they are in memory, in shared memory and in registers (`factors.h`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepgen.operators import Gemm
from deepgen.vocabulary import Arg, ScalarArg, TensorArg


def factor_registers(gemm: Gemm, bn: Any, tiles_m: Any) -> Any:
    """Registers of a thread for factors of blocks, as far as they are not among those that every kernel has."""
    if gemm.blocks is None:
        return 0
    return (tiles_m - 1) * 8 + (4 if gemm.blocks[1] > 1 else bn // 8 + 8)


def factors_of_warp(gemm: Gemm, bn: Any, tiles_m: Any) -> Any:
    """Places for a warp's factors of a block of K: of A's rows or blocks, then of B's columns or blocks."""
    rows, columns = gemm.blocks or (0, 0)
    return (tiles_m * 16 if rows == 1 else 4) + (bn if columns == 1 else 4)


def factor_ring(gemm: Gemm) -> int:
    """Blocks of K whose factors are in shared memory, or on their way to it."""
    return 4 if gemm.blocks is not None and gemm.blocks[1] == 1 else 8


def factor_bytes(gemm: Gemm, bn: Any, tiles_m: Any) -> Any:
    """Bytes of shared memory for a warp's factors."""
    return factors_of_warp(gemm, bn, tiles_m) * factor_ring(gemm) * 4 if gemm.blocks else 0


def factor_macros(gemm: Gemm, c: Mapping[str, Any]) -> dict[str, int | str]:
    if not gemm.blocks:
        return {}
    blocks = {f"BLOCK_{name}": rows for name, rows in zip("AB", gemm.blocks, strict=True)}
    return {**blocks, "FACTORS": factors_of_warp(gemm, c["BN"], c["TILES_M"]), "FACTOR_RING": factor_ring(gemm)}


def block_scales() -> tuple[Arg, ...]:
    """Factors of blocks, and how far they are apart: in batches, along rows and along K."""
    names = ("scale_a", "scale_b")
    apart = [f"{name}_{along}" for name in names for along in ("matrix", "row", "step")]
    return (*map(TensorArg, names), *(ScalarArg("i64", name) for name in apart))
