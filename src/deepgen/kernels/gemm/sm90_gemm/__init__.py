"""GEMM on Hopper's tensor cores: the bulk copy engine feeds warpgroup matrix instructions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from deepgen.kernels.gemm.sm90_gemm.defaults import choose, various
from deepgen.kernels.gemm.sm90_gemm.lower import BY_LINES, lower, plan
from deepgen.kernels.gemm.sm90_gemm.model import LAUNCH, seconds
from deepgen.kernels.gemm.sm90_gemm.products import products_header
from deepgen.kernels.gemm.sm90_gemm.realign import copied, loaded
from deepgen.kernels.gemm.sm90_gemm.space import sm90_space
from deepgen.kernels.shared import defines, served, sources
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
        return None

    def space(self, operator: Operator, target: Target) -> Space:
        return sm90_space(self.name, *served(operator, target, Gemm, Cuda))

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        gemm, gpu = served(operator, target, Gemm, Cuda)
        lowered = lower(gemm, config)
        products = Source("products.h", products_header(gemm, config["BN"]))
        copies, loads = bool(copied(gemm, config)), bool(loaded(gemm, config))
        lines = config["STORE"] in BY_LINES
        more = {"realign.h": copies, "lines.h": loads, "loaders.h": loads, "store_lines.h": lines}
        more["shifted.h"] = copies or loads
        files = (*_SOURCES, *(name for name, needed in more.items() if needed))
        return Kernel(
            name=self.name,
            language="cuda",
            sources=(*sources(__name__, files), products),
            flags=("-std=c++17", *defines(lowered.macros)),
            plan=plan(gemm, config, lowered, gpu.multiprocessors),
        )

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        return choose(*served(operator, target, Gemm, Cuda))

    def ranked(self, operator: Operator, target: Target) -> Iterator[Mapping[str, Any]]:
        return various(*served(operator, target, Gemm, Cuda))

    def modelled_seconds(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> float | None:
        return seconds(*served(operator, target, Gemm, Cuda), config)

    def least_seconds(self, operator: Operator, target: Target) -> float:
        return LAUNCH * 1e-6
