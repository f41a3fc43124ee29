"""GEMM on Hopper's tensor cores: the bulk copy engine feeds warpgroup matrix instructions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from deepgen.kernels.gemm.sm90_gemm import paired
from deepgen.kernels.gemm.sm90_gemm.defaults import choose, various
from deepgen.kernels.gemm.sm90_gemm.lower import BY_LINES, lower, plan
from deepgen.kernels.gemm.sm90_gemm.model import LAUNCH, seconds
from deepgen.kernels.gemm.sm90_gemm.operands import copied, loaded
from deepgen.kernels.gemm.sm90_gemm.space import early, sm90_space
from deepgen.kernels.shared import defines, epilogue, resolved, served, sources
from deepgen.operators import Gemm, Operator
from deepgen.space import Space
from deepgen.targets import Cuda, Target
from deepgen.vocabulary import Kernel, Source, dtype

_SOURCES = ("gemm_sm90.cu", "producers.h", "epilogue.h", "schedule.h", "numbers.h", "hopper.h")
_FLOATS = ("bf16", "f16", "f32")
_SERVED = {  # (A and B, sums): C
    ("f16", "f32"): ("f16", "f32"),
    ("bf16", "f32"): ("bf16", "f32"),
    ("tf32", "f32"): ("tf32", "f32"),
    ("f8e4m3", "f32"): _FLOATS,
    ("f8e5m2", "f32"): _FLOATS,
    ("i8", "i32"): ("i32",),
}
# PTX names of formats.
_PTX_NAMES = {"f16": "f16", "bf16": "bf16", "tf32": "tf32", "f8e4m3": "e4m3", "f8e5m2": "e5m2", "i8": "s8", "u8": "u8"}
STEP_BYTES = 32  # of K in one instruction, for any format


class Sm90Gemm:
    """Copy engine, barriers and warpgroup products: f16, bf16, tf32, 8-bit floats and integers on sm_90a."""

    name = "sm90_gemm"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, Cuda) or not target.has("wgmma", "tma", "setmaxnreg"):
            return "it supports cuda:sm_90a only"
        if not isinstance(operator, Gemm):
            return "it supports gemm only"
        if operator.a != operator.b or operator.c not in _SERVED.get((operator.a, operator.acc), ()):
            return "it multiplies f16, bf16, tf32 and 8-bit floats with f32 sums, and i8 with i32 sums"
        if dtype(operator.a).bytes != 2 and operator.layout != "nt":
            return f"{operator.a} is multiplied in layout nt only"
        if operator.acc == "i32":
            if not (operator.alpha.is_integer() and operator.beta.is_integer()):
                return "for integer types alpha and beta must be integers"
            if operator.bias or operator.activation != "none" or operator.scales != "none":
                return "it has no bias, activation or scales for integer types"
        return epilogue.refused(operator, pairs=True) or paired.unfit(operator)

    def space(self, operator: Operator, target: Target) -> Space:
        gemm, gpu = _served(operator, target)
        return (
            sm90_space(self.name, gemm, gpu, asks=True) if gemm.pair == "none" else paired.space(self.name, gemm, gpu)
        )

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        gemm, gpu = _served(operator, target)
        pair = gemm.pair != "none"
        lowered = paired.lowered(gemm, config) if pair else lower(gemm, config)
        products = Source("products.h", products_header(gemm, config["BN"]))
        copies, loads = bool(copied(gemm, config)), bool(loaded(gemm, config))
        lines = config["STORE"] in BY_LINES
        asks = loads and config["REALIGN"] == "async"
        loads &= not asks
        more = {"realign.h": copies, "lines.h": loads, "loaders.h": loads, "store_lines.h": lines}
        more |= {"async_lines.h": asks, "shifted.h": copies or loads}
        more |= {"factors.h": gemm.blocks is not None, "paired.h": pair}
        files = (*_SOURCES, *(name for name, needed in more.items() if needed))
        pieces = early(gemm, config)
        words = {"BLOCK_SCALES": gemm.blocks is not None, "PAIRED": pair, "EARLY": pieces > 0}
        words |= {"AHEAD": config.get("AHEAD", False), "ASYNC_LINES": asks}
        own = sm90_sources(files, words, text=bool(gemm.epilogue))
        return Kernel(
            name=self.name,
            language="cuda",
            sources=(*own, products, *epilogue.chunk_sources(gemm, __name__)),
            flags=("-std=c++17", *defines({**lowered.macros, **epilogue.macros(gemm, pieces)})),
            plan=(paired.planned if pair else plan)(gemm, config, lowered, gpu.multiprocessors),
        )

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        gemm, gpu = _served(operator, target)
        return choose(gemm, gpu) if gemm.pair == "none" else next(paired.ranked(self.name, gemm, gpu))

    def ranked(self, operator: Operator, target: Target) -> Iterator[Mapping[str, Any]]:
        gemm, gpu = _served(operator, target)
        return various(gemm, gpu) if gemm.pair == "none" else paired.ranked(self.name, gemm, gpu)

    def modelled_seconds(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> float | None:
        gemm, gpu = _served(operator, target)
        return seconds(gemm if gemm.pair == "none" else paired.wide(gemm), gpu, config)

    def least_seconds(self, operator: Operator, target: Target) -> float:
        return LAUNCH * 1e-6


_WORDS = ("GROUPED", "BLOCK_SCALES", "PAIRED", "EARLY", "AHEAD", "ASYNC_LINES")  # what only some kernels have


def sm90_sources(names: Iterable[str], words: Mapping[str, bool], *, text: bool = False) -> tuple[Source, ...]:
    """Files of this family with what `words` name, such as rows that belong to experts, and with a text of what follows
    the product, or without."""
    decided = {word: words.get(word, False) for word in _WORDS}
    files = sources(__name__, names, epilogue=text)
    return tuple(replace(file, text=resolved(file.text, decided)) for file in files)


def _served(operator: Operator, target: Target) -> tuple[Gemm, Cuda]:
    """Kernels know one way to write what follows a product in floats: as a text."""
    gemm, gpu = served(operator, target, Gemm, Cuda)
    return epilogue.as_text(gemm), gpu


def products_header(gemm: Gemm, columns: int) -> str:
    """`product(sums, a, b, add)`: 64 rows by `columns`; without `add` the sums start at zero."""
    count = columns // 2
    whole = gemm.acc == "i32"
    letter = "r" if whole else "f"
    k = STEP_BYTES // dtype(gemm.a).bytes
    name = f"wgmma.mma_async.sync.aligned.m64n{columns}k{k}"
    formats = f"{'s32' if whole else 'f32'}.{_PTX_NAMES[gemm.a]}.{_PTX_NAMES[gemm.b]}"
    modes = "" if whole else ", 1, 1"
    if dtype(gemm.a).bytes == 2:  # only these formats can be read with rows innermost
        modes += f", {int(gemm.layout[0] == 't')}, {int(gemm.layout[1] == 'n')}"
    sums = _lines([f"%{i}" for i in range(count)], 16)
    operands = _lines([f'"+{letter}"(d[{i}])' for i in range(count)], 6)
    text = "\n".join(f'        "{line} "' for line in sums)
    outputs = "\n".join(f"          {line}" for line in operands)
    return f"""// The products of a warpgroup: 64 rows of A by {columns} of B, {k} steps of K.
#pragma once
#include "numbers.h"

DG_DEVICE void product({"int" if whole else "float"}* d, u64 a, u64 b, int add) {{
    asm volatile(
        "{{\\n.reg .pred add;\\nsetp.ne.b32 add, %{count + 2}, 0;\\n"
        "{name}.{formats} {{"
{text}
        "}}, %{count}, %{count + 1}, add{modes};\\n}}"
        :
{outputs}
        : "l"(a), "l"(b), "r"(add));
}}
"""


def _lines(words: list[str], most: int) -> list[str]:
    rows = [", ".join(words[i : i + most]) for i in range(0, len(words), most)]
    return [*(row + "," for row in rows[:-1]), rows[-1]]
