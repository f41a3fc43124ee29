"""AMD's libraries through torch for ROCm, which can be told which of them to call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from deepgen.baselines.torch_cpu import bound, unfit
from deepgen.baselines.torch_gpu import gpu_torch, shared
from deepgen.operators import Gemm, Operator
from deepgen.targets import Target
from deepgen.vocabulary import BadInput, Missing


class _Rocm:
    name, called, preferred = "", "", ""

    def missing(self, operator: Operator, target: Target) -> str | None:
        if "hip" not in target.languages:
            return f"{self.called} does not run on {target.name}"
        return unfit(operator) if isinstance(operator, Gemm) else f"{self.called} has no {operator.name}"

    def prepare(self, operator: Operator, tensors: Mapping[str, Any], threads: int) -> Callable[[], None]:
        torch = gpu_torch()
        if not isinstance(operator, Gemm):
            raise BadInput(f"{self.called} has no {operator.name}")
        if torch.version.hip is None:
            raise Missing("a torch for ROCm", blocks=f"{self.called} cannot run", remedy="See pytorch.org.")
        run = bound(torch, operator, {name: shared(torch, tensor) for name, tensor in tensors.items()})

        def call() -> None:
            # A setting of the process, which other contenders have set to theirs.
            torch.backends.cuda.preferred_blas_library(self.preferred)
            run()

        return call


class RocBlas(_Rocm):
    """By the heuristic of the library."""

    name, called, preferred = "rocblas", "rocBLAS", "hipblas"


class HipBlasLt(_Rocm):
    """By the heuristic of the library."""

    name, called, preferred = "hipblaslt", "hipBLASLt", "hipblaslt"
