"""GEMM on tensor cores by warp-wide products, sm_80 and later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepgen.kernels.gemm.mma_gemm import formats
from deepgen.kernels.gemm.mma_gemm.defaults import LAUNCH, choose, seconds
from deepgen.kernels.gemm.mma_gemm.space import lower, mma_space, plan
from deepgen.kernels.shared import gpu_kernel, served
from deepgen.operators import Gemm, Operator
from deepgen.space import Space
from deepgen.targets import Cuda, Target
from deepgen.vocabulary import Kernel

_OWN = ("gemm_mma.cu", "problem.h", "operands.h", "share.h", "dialect_mma.h", "work.h")


class MmaGemm:
    """Products by warps, matrix loads, prefetched copies: f16, bf16, tf32, i8, 8-bit floats; all layouts."""

    name = "mma_gemm"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        return formats.refused(operator, target)

    def space(self, operator: Operator, target: Target) -> Space:
        return mma_space(self.name, *served(operator, target, Gemm, Cuda))

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        gemm, _ = served(operator, target, Gemm, Cuda)
        lowered, files = lower(gemm, config), formats.result_sources(gemm, __name__, _OWN)
        return gpu_kernel(self.name, "cuda", files, lowered.macros, plan(gemm, config, lowered))

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        return choose(*served(operator, target, Gemm, Cuda))

    def modelled_seconds(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> float | None:
        return seconds(*served(operator, target, Gemm, Cuda), config)

    def least_seconds(self, operator: Operator, target: Target) -> float:
        return LAUNCH * 1e-6
