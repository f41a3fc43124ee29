"""GEMM on tensor cores by warp-wide products: what the family in `gemm_mma.cu` serves, and its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepgen.generators.templates.mma import formats
from deepgen.generators.templates.mma.defaults import choose
from deepgen.generators.templates.mma.lower import lower, plan
from deepgen.generators.templates.mma.space import mma_space
from deepgen.operators import Gemm, Operator
from deepgen.space import Space
from deepgen.targets import Cuda, Target
from deepgen.vocabulary import Kernel

_OWN = ("gemm_mma.cu", "problem.h", "operands.h", "share.h", "dialect_mma.h")
_DIALECT = ("dialect.h", "dialect_cuda.h")  # the SIMT family's


class MmaGemm:
    """Products by warps, matrix loads, copies ahead: f16, bf16, tf32, i8, 8-bit floats; all layouts."""

    name = "mma_gemm"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        return formats.refused(operator, target)

    def space(self, operator: Operator, target: Target) -> Space:
        return mma_space(self.name, *_served(operator, target))

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        gemm, _ = _served(operator, target)
        lowered = lower(gemm, config)
        simt = "deepgen.generators.templates.simt"
        return Kernel(
            name=self.name,
            language="cuda",
            sources=(*(formats.read(__package__, n) for n in _OWN), *(formats.read(simt, n) for n in _DIALECT)),
            flags=("-std=c++17", *(f"-D{name}={value}" for name, value in lowered.macros.items())),
            plan=plan(gemm, config, lowered),
        )

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        return choose(*_served(operator, target))


def _served(operator: Operator, target: Target) -> tuple[Gemm, Cuda]:
    assert isinstance(operator, Gemm) and isinstance(target, Cuda), "ask refuses() first"
    return operator, target
