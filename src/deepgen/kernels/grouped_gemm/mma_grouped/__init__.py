"""Grouped GEMM on tensor cores by warp-wide products: `mma_gemm`, whose blocks find their experts by the offsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from deepgen.kernels.gemm import mma_gemm
from deepgen.kernels.gemm.mma_gemm import LAUNCH, MmaGemm, candidates, formats, seconds
from deepgen.kernels.gemm.mma_gemm.space import lower, mma_space
from deepgen.kernels.grouped_gemm import as_batch
from deepgen.kernels.shared import NOTHING, gpu_kernel, served, source_text, sources
from deepgen.operators import Operator
from deepgen.operators.grouped_gemm import GroupedGemm
from deepgen.space import Space
from deepgen.targets import Cuda, Target
from deepgen.vocabulary import Kernel, LaunchPlan, Source, Step, TensorArg, dtype

_SHARED = ("gemm_mma.cu", "problem.h", "operands.h", "share.h", "dialect_mma.h")


class MmaGrouped:
    """Products by warps, a tile of one expert's rows in each block: f16, bf16, tf32, 8-bit floats; all layouts."""

    name = "mma_grouped"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(operator, GroupedGemm):
            return "it supports grouped_gemm only"
        return MmaGemm().refuses(as_batch(operator), target)

    def space(self, operator: Operator, target: Target) -> Space:
        """K is not divided: where tiles are few, experts' weights are most of what is read."""
        grouped, gpu = served(operator, target, GroupedGemm, Cuda)
        return mma_space(self.name, as_batch(grouped), gpu).restrict({"FIXUP": "none"})

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        grouped, _ = served(operator, target, GroupedGemm, Cuda)
        product = as_batch(grouped)
        lowered = lower(product, config)
        # Any tile may be an expert's last, and any of its steps.
        edge = "EDGE_K" if grouped.gradient else "EDGE_M"
        own: dict[str, int | str] = {
            edge: 1,
            "GRADIENT": int(grouped.gradient),
            "SCALE_STRIDE": {"expert": "1", "column": "p.n"}.get(grouped.scales, "0"),
        }
        files = (*sources(mma_gemm.__name__, _SHARED), Source("work.h", source_text(__name__, "grouped_work.h")))
        args = formats.arguments(product, NOTHING, TensorArg("offsets"), 1)
        bm, bn = config["BM"], config["BN"]
        rows = f"ceil_div(M, {bm}) * E" if grouped.gradient else f"((M + E * {bm - 1}) // {bm})"
        grid = (f"{rows} * ceil_div(N, {bn})", 1, 1)
        step = Step("gemm", args, grid, (lowered.threads, 1, 1), shared_bytes=lowered.shared_bytes)
        plan = LaunchPlan((step,), requires=tuple(_requires(grouped, config, {**lowered.macros, **own})))
        return gpu_kernel(self.name, "cuda", files, {**lowered.macros, **own}, plan)

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        grouped, gpu = served(operator, target, GroupedGemm, Cuda)
        space, product = self.space(grouped, gpu), as_batch(grouped)
        some = [config for config in candidates(product, gpu) if config["FIXUP"] == "none"]
        ranked = sorted(some, key=lambda config: self.modelled_seconds(grouped, gpu, config) or 0.0)
        return next(config for config in ranked if not space.explain(config))

    def modelled_seconds(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> float | None:
        grouped, gpu = served(operator, target, GroupedGemm, Cuda)
        product = as_batch(grouped)
        if not grouped.gradient:  # half of an expert's last tile has no rows, on average
            product = replace(product, m=product.m + config["BM"] // 2)
        return seconds(product, gpu, config)

    def least_seconds(self, operator: Operator, target: Target) -> float:
        return LAUNCH * 1e-6


def _requires(grouped: GroupedGemm, config: Mapping[str, Any], macros: Mapping[str, Any]) -> list[formats.Requirement]:
    product = as_batch(grouped)
    out = [
        (f"{letter} % {config['B' + letter]} == 0", f"{letter} that is a multiple of {config['B' + letter]}")
        for letter in ("MN" if grouped.gradient else "NK")
        if not macros[f"EDGE_{letter}"]
    ]
    store = int(macros["STORE"])
    if store > 1 and macros["EDGE_N"]:
        out.append((f"N % {store} == 0", f"N that is a multiple of {store}"))
    widths = {"A": macros["COPY_A"], "B": macros["COPY_B"], "C": store * dtype(grouped.c).bytes}
    return [*out, *formats.alignment_required(product, widths)]
