"""Grouped GEMM in plain C, for any CPU: the tiles of `c_gemm`, and tasks that divide the experts' products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from deepgen.kernels import Rank
from deepgen.kernels.gemm.c_gemm import CGemm
from deepgen.kernels.grouped_gemm import as_batch
from deepgen.kernels.shared import served, sources
from deepgen.operators import Gemm, Operator
from deepgen.operators.grouped_gemm import GroupedGemm
from deepgen.space import Space
from deepgen.targets import Cpu, Target
from deepgen.vocabulary import Arg, Kernel, LaunchPlan, ScalarArg, Step, TensorArg, WorkspaceArg

_NOT_THIN = 17  # rows, for which `c_gemm` has tiles only
_SIZES = ("E", "M", "N", "K", "lda", "ldb", "ldc", "stride_b", "stride_c")


class CGrouped:
    """Register tiles, cache blocks, packing of B, threads: f32 and f64, all layouts."""

    name = "c_grouped"

    def __init__(self) -> None:
        self._products = CGemm()

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, Cpu):
            return "it supports CPUs only"
        if not isinstance(operator, GroupedGemm):
            return "it supports grouped_gemm only"
        return self._products.refuses(_product(operator), target)

    def rank(self, operator: Operator, target: Target) -> Rank:
        return self._products.rank(_product(served(operator, target, GroupedGemm, Cpu)[0]), target)

    def space(self, operator: Operator, target: Target) -> Space:
        space = self._products.space(_product(served(operator, target, GroupedGemm, Cpu)[0]), target)
        space.name = self.name
        return space

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        grouped, _ = served(operator, target, GroupedGemm, Cpu)
        kernel = self._products.emit(_product(grouped), target, config)
        (workspace,) = (arg for arg in kernel.plan.steps[0].args if isinstance(arg, WorkspaceArg))
        arguments: tuple[Arg, ...] = (
            *(TensorArg(name) for name in ("A", "B", "C", "offsets")),
            workspace,
            *(ScalarArg("i64", name) for name in _SIZES),
            ScalarArg("i32", config["THREADS"]),
        )
        plan = LaunchPlan((Step("deepgen_grouped", arguments),))
        flags = (*kernel.flags, f"-DGRADIENT={int(grouped.gradient)}")
        files = (*sources(__name__, ("grouped.c",)), *kernel.sources)
        return replace(kernel, name=self.name, sources=files, flags=flags, plan=plan)

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        """One expert may have all rows: tasks then divide its columns."""
        grouped, _ = served(operator, target, GroupedGemm, Cpu)
        config = dict(self._products.default(_product(grouped), target))
        return config | ({"PARTITION": "m" if grouped.gradient else "n"} if config["THREADS"] > 1 else {})


def _product(operator: GroupedGemm) -> Gemm:
    product = as_batch(operator)
    return replace(product, m=max(product.m, _NOT_THIN))
