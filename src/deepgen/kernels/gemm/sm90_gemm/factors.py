"""Factors of blocks: where they are in memory, in shared memory and in registers (`factors.h`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepgen.operators import Gemm
from deepgen.vocabulary import Arg, ScalarArg, TensorArg

_RING = 8  # blocks of K whose factors are in shared memory, or on their way to it


def factor_registers(gemm: Gemm, tiles_m: Any) -> Any:
    """Registers of a thread for factors of blocks, as far as they are not among those that every kernel has."""
    return (tiles_m - 1) * 8 + 4 if gemm.blocks else 0


def factor_places(gemm: Gemm, bn: Any, tiles_m: Any) -> Any:
    """Places for a block's factors: of a warp's rows and blocks of columns, or of a warpgroup's rows and columns."""
    rows, columns = gemm.blocks or (0, 0)
    if columns == 1:
        return tiles_m * 64 + bn
    return (tiles_m * 16 if rows == 1 else 4) + 4


def factor_bytes(gemm: Gemm, bn: Any, tiles_m: Any) -> Any:
    """Bytes of shared memory for factors, for each warp."""
    sharing = 4 if gemm.blocks and gemm.blocks[1] == 1 else 1
    return factor_places(gemm, bn, tiles_m) * _RING * 4 // sharing if gemm.blocks else 0


def factor_macros(gemm: Gemm, c: Mapping[str, Any]) -> dict[str, int | str]:
    if not gemm.blocks:
        return {}
    blocks = {f"BLOCK_{name}": rows for name, rows in zip("AB", gemm.blocks, strict=True)}
    return {**blocks, "FACTORS": factor_places(gemm, c["BN"], c["TILES_M"]), "FACTOR_RING": _RING}


def block_scales() -> tuple[Arg, ...]:
    """Factors of blocks, and how far they are apart: in batches, along rows and along K."""
    names = ("scale_a", "scale_b")
    apart = [f"{name}_{along}" for name in names for along in ("matrix", "row", "step")]
    return (*map(TensorArg, names), *(ScalarArg("i64", name) for name in apart))
