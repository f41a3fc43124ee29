"""Operands that need more than the copy engine: rows it cannot load, which a launch copies first; factors of blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from deepgen.kernels.shared import NOTHING
from deepgen.operators import Gemm
from deepgen.vocabulary import Arg, ScalarArg, Step, TensorArg, WorkspaceArg, dtype

LINE_BYTES = 16  # the copy engine requires line strides to be multiples of this
PITCH_BYTES = 64  # lines of a copy start at multiples of this, so that fetches are not split
_THREADS, _CHUNKS = 256, 1024  # threads per block, as in realign.h; chunks of 16 bytes


@lru_cache(64)  # called for every config that is ranked
def realigned(gemm: Gemm) -> str:
    """Letters of the operands whose lines, or matrices, are not multiples of 16 bytes apart."""
    scalars, whole = gemm.scalars(), LINE_BYTES // dtype(gemm.a).bytes
    apart = {letter: [scalars[f"ld{letter}"], *([scalars[f"stride_{letter}"]] * (gemm.batch > 1))] for letter in "ab"}
    return "".join(letter for letter, distances in apart.items() if any(int(n) % whole for n in distances))


@lru_cache(64)
def divided(gemm: Gemm) -> str:
    """Letters of the operands whose lines begin within 64 bytes: the copy engine fetches each in two parts."""
    whole = PITCH_BYTES // dtype(gemm.a).bytes
    return "".join(letter for letter in "ab" if int(gemm.scalars()[f"ld{letter}"]) % whole)


def fetched_at_once(gemm: Gemm, letter: str) -> str:
    """Bytes that the cache fetches from memory at once. Of lines that begin within 64 bytes more than 128 take longer,
    by 9 to 11 %."""
    return "128" if letter in divided(gemm) else "256"


def copy_bytes(gemm: Gemm, letter: str) -> int:
    """The widest asynchronous copy that lines allow; 0 if none."""
    scalars, size = gemm.scalars(), dtype(gemm.a).bytes
    apart = [scalars[f"ld{letter}"], *([scalars[f"stride_{letter}"]] * (gemm.batch > 1))]
    return next((n for n in (16, 8, 4) if all(int(distance) * size % n == 0 for distance in apart)), 0)


@lru_cache(64)  # called for every config that is ranked
def asynchronous(gemm: Gemm) -> str:
    """Letters of the operands that producers may copy asynchronously, in place of the copy engine."""
    letters = "".join(letter for letter in "ab" if letter in realigned(gemm) + divided(gemm))
    if gemm.blocks or gemm.pair != "none":
        return ""
    return letters if all(copy_bytes(gemm, letter) for letter in letters) else ""


def copied(gemm: Gemm, config: Mapping[str, Any]) -> str:
    """Letters of the operands that are copied first; producers load the others themselves."""
    return realigned(gemm) if config.get("REALIGN", "copy") == "copy" else ""


def loaded(gemm: Gemm, config: Mapping[str, Any]) -> str:
    """Letters of the operands that all producers load, through registers or asynchronously."""
    way = config.get("REALIGN", "copy")
    return realigned(gemm) if way == "load" else asynchronous(gemm) if way == "async" else ""


def asked(gemm: Gemm, config: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of an asynchronous copy of each operand that producers copy so."""
    return {one: copy_bytes(gemm, one) for one in asynchronous(gemm)} if config.get("REALIGN") == "async" else {}


def copies_required(gemm: Gemm, config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Requirements of asynchronous copies on other shapes: they are aligned."""
    for letter, wide in asked(gemm, config).items():
        whole, name = wide // dtype(gemm.a).bytes, letter.upper()
        if whole > 1:
            yield f"ld{letter} % {whole} == 0", f"lines of {name} that are multiples of {wide} bytes"
            apart = f"batch == 1 or stride_{letter} % {whole} == 0"
            yield apart, f"matrices of {name} that lie multiples of {wide} bytes apart"


def copy_name(letter: str) -> str:
    """The name of the workspace that holds the copy."""
    return f"aligned_{letter}"


def along_k(gemm: Gemm, letter: str) -> bool:
    return gemm.layout[0] == "n" if letter == "a" else gemm.layout[1] == "t"


def pitch(gemm: Gemm, letter: str) -> str:
    """Bytes between lines of a copy."""
    return f"ceil_div({_line(gemm, letter)}, {PITCH_BYTES}) * {PITCH_BYTES}"


def lines(gemm: Gemm, letter: str) -> str:
    return _outer(letter) if along_k(gemm, letter) else "K"


def copying_step(gemm: Gemm, letters: str) -> Step:
    blocks, args = [], []
    for letter in "ab":
        if letter not in letters:
            args += _absent()
            continue
        args += _arguments(gemm, letter)
        blocks.append(
            f"ceil_div(ceil_div({_line(gemm, letter)}, {LINE_BYTES}) * {lines(gemm, letter)} * batch, {_CHUNKS})"
        )
    return Step("realign", (*args, ScalarArg("i32", "batch")), (" + ".join(blocks), 1, 1), (_THREADS, 1, 1))


def _arguments(gemm: Gemm, letter: str) -> list[Arg]:
    size, each = dtype(gemm.a).bytes, pitch(gemm, letter)
    return [
        TensorArg(letter.upper()),
        WorkspaceArg(copy_name(letter), f"{each} * {lines(gemm, letter)} * batch", align=128),
        ScalarArg("i32", _line(gemm, letter)),
        ScalarArg("i32", lines(gemm, letter)),
        ScalarArg("i64", f"ld{letter} * {size}"),
        ScalarArg("i64", f"stride_{letter} * {size}"),
        ScalarArg("i32", each),
    ]


def _absent() -> list[Arg]:
    whole = ScalarArg("i32", 0)
    return [NOTHING, NOTHING, whole, whole, NOTHING, NOTHING, whole]


def _line(gemm: Gemm, letter: str) -> str:
    """Bytes of a line."""
    return f"({'K' if along_k(gemm, letter) else _outer(letter)} * {dtype(gemm.a).bytes})"


def _outer(letter: str) -> str:
    return "M" if letter == "a" else "N"


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
