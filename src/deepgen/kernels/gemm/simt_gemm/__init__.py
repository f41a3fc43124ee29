"""GEMM on the plain arithmetic units of GPUs, written once for CUDA and HIP."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from deepgen.kernels.gemm.simt_gemm.defaults import choose, various
from deepgen.kernels.gemm.simt_gemm.lower import implied, lower, plan
from deepgen.kernels.gemm.simt_gemm.model import least_seconds, seconds
from deepgen.kernels.gemm.simt_gemm.space import BandedGemm, product_of, simt_space
from deepgen.kernels.shared import gpu_kernel, language_of, resolved, sources
from deepgen.operators import Gemm, Operator
from deepgen.space import Space
from deepgen.targets import Gpu, Target
from deepgen.vocabulary import Kernel, Source

_SHARED = ("gemm_simt.cu", "tiles.h", "work.h", "epilogue.h", "schedule.h")
_OWN = ("operands.h", "entry.h")
_SERVED = {  # (A and B, sums): C
    ("f32", "f32"): ("f32",),
    ("f64", "f64"): ("f64",),
    ("tf32", "f32"): ("tf32", "f32"),  # stored and multiplied as f32 here
    ("f16", "f32"): ("f16", "f32"),
    ("bf16", "f32"): ("bf16", "f32"),
    ("i8", "i32"): ("i32",),
}


class SimtGemm:
    """Block, warp and thread tiles, staged copies, split-K and stream-K: any sizes, all layouts, CUDA and HIP."""

    name = "simt_gemm"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, Gpu):
            return "it supports GPUs only"
        product = product_of(operator)
        if product is None:
            return "it supports gemm, and expressions of a product of which a band of diagonals is kept"
        return self._unable(product)

    def _unable(self, operator: Gemm) -> str | None:
        if operator.a != operator.b or operator.c not in _SERVED.get((operator.a, operator.acc), ()):
            return "it computes f32, tf32 and f64, and f16, bf16 and i8 with wider sums"
        if operator.c == "i32" and not (operator.alpha.is_integer() and operator.beta.is_integer()):
            return "for integer types alpha and beta must be integers"
        if operator.bias or operator.activation != "none" or operator.scales != "none" or operator.epilogue:
            return "it has no bias, activation or scales yet"
        return None

    def space(self, operator: Operator, target: Target) -> Space:
        return simt_space(self.name, *_served(operator, target))

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        gemm, gpu = _served(operator, target)
        lowered = lower(gemm, config, gpu.warp, dots(gpu))
        banded = isinstance(gemm, BandedGemm)
        files = source_files(__name__, _OWN, banded=banded)
        implications = () if banded else implied(gemm, config, lowered.macros)
        return gpu_kernel(self.name, language_of(gpu), files, lowered.macros, plan(gemm, config, lowered), implications)

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        return choose(*_served(operator, target))

    def ranked(self, operator: Operator, target: Target) -> Iterator[Mapping[str, Any]]:
        return various(*_served(operator, target))

    def modelled_seconds(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> float | None:
        return seconds(*_served(operator, target), config)

    def least_seconds(self, operator: Operator, target: Target) -> float:
        return least_seconds(*_served(operator, target))


def _served(operator: Operator, target: Target) -> tuple[Gemm, Gpu]:
    gemm = product_of(operator)
    assert gemm is not None and isinstance(target, Gpu), "ask refuses() first"
    return gemm, target


def source_files(package: str, own: Iterable[str], *, banded: bool) -> tuple[Source, ...]:
    """The main loop with these files of a package beside it, with what bands of diagonals need, or without."""
    files = (*sources(__name__, (*_SHARED, *(["band.h"] if banded else []))), *sources(package, own))
    return tuple(replace(file, text=resolved(file.text, {"BANDED": banded})) for file in files)


def dots(gpu: Gpu) -> dict[str, int]:
    """For each dtype, the number of products that one instruction adds up."""
    counts = {"i8": 4} if gpu.has("dp4a") or gpu.has("dot4") else {}
    return {**counts, "f16": 2} if gpu.has("dot2") else counts
