"""GEMM of a few rows or columns with a large matrix, every byte of which is read once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepgen.kernels.gemm.mma_gemm import formats
from deepgen.kernels.gemm.skinny_gemm.lower import lower, plan, sides
from deepgen.kernels.gemm.skinny_gemm.space import LAUNCH, choose, seconds, skinny_space
from deepgen.kernels.shared import gpu_kernel, served
from deepgen.operators import Gemm, Operator
from deepgen.space import Space
from deepgen.targets import Cuda, Target
from deepgen.vocabulary import Kernel

_OWN = ("gemm_skinny.cu", "large.h", "problem.h", "dialect_mma.h")
_MOST_THIN, _MOST_PLAIN, _MOST_WIDENED = 64, 16, 32
# Operands that are contiguous along rows are transposed in registers, which leaves fewer of them for sums.
_MOST_TRANSPOSED = {"f32": 0, "tf32": 32, "f16": 32, "bf16": 32, "i8": 8, "f8e4m3": 8, "f8e5m2": 8}
_LEAST_LARGE, _LEAST_K = 1024, 512


class SkinnyGemm:
    """The large matrix streams through registers once: f16, bf16, tf32, i8, 8-bit floats, f32; sm_80 and later."""

    name = "skinny_gemm"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        plain = isinstance(operator, Gemm) and (operator.a, operator.b, operator.acc, operator.c) == ("f32",) * 4
        if not plain or not isinstance(target, Cuda) or not target.has("cp_async"):
            reason = formats.refused(operator, target)
            if reason is not None:
                return reason
        assert isinstance(operator, Gemm)
        if (reason := formats.refused_result(operator)) is not None:
            return reason
        if operator.a != operator.b:
            return "A and B must have the same format"
        side = sides(operator)
        most = _MOST_PLAIN if plain else _MOST_THIN
        if side.thin > most:
            return f"M or N must be at most {most}"
        if side.thin > _MOST_WIDENED and not side.thin_along and formats.widened(*served(operator, target, Gemm, Cuda)):
            return f"M or N must be at most {_MOST_WIDENED} where it is not contiguous along K in {operator.a}"
        if side.large < _LEAST_LARGE or operator.k < _LEAST_K:
            return f"the large matrix must have at least {_LEAST_LARGE} rows and {_LEAST_K} steps of K"
        if not side.large_along:
            most = _MOST_TRANSPOSED[operator.a]
            if side.thin > most:
                return f"M or N must be at most {most} where the large matrix is not contiguous along K in {operator.a}"
        return None

    def space(self, operator: Operator, target: Target) -> Space:
        return skinny_space(self.name, *served(operator, target, Gemm, Cuda))

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        gemm, _ = served(operator, target, Gemm, Cuda)
        lowered, files = lower(gemm, config), formats.result_sources(gemm, __name__, _OWN)
        return gpu_kernel(self.name, "cuda", files, lowered.macros, plan(gemm, config, lowered))

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        return choose(*served(operator, target, Gemm, Cuda))

    def modelled_seconds(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> float | None:
        return None if self.refuses(operator, target) else seconds(*served(operator, target, Gemm, Cuda), config)

    def least_seconds(self, operator: Operator, target: Target) -> float:
        return LAUNCH * 1e-6
