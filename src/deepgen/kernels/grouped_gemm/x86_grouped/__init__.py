"""Grouped GEMM on x86 with AVX2 or AVX-512: the tiles of `x86_gemm`, and tasks that divide the experts' products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from deepgen.kernels.gemm import x86_gemm
from deepgen.kernels.gemm.x86_gemm.space import FLOAT
from deepgen.kernels.grouped_gemm import as_batch
from deepgen.kernels.shared import defines, served, sources
from deepgen.operators import Gemm, Operator
from deepgen.operators.grouped_gemm import SCALES, GroupedGemm
from deepgen.space import Space
from deepgen.targets import X86, Target
from deepgen.vocabulary import Arg, Kernel, LaunchPlan, ScalarArg, Step, TensorArg, WorkspaceArg

_FORMATS = ("f32", "bf16", "f16", "f8e4m3", "f8e5m2")
_RESULTS = ("f32", "bf16", "f16")
_SIZES = ("E", "M", "N", "K", "lda", "ldb", "ldc", "stride_b", "stride_c")
_WIDENED, _SUMS = 1 << 17, 1 << 16  # numbers of a thread, as in grouped_fma.c
# What one expert's product has no use for: the rows of the next one are not known, and parts of K would be added up.
_NEVER: dict[str, list[str] | list[bool]] = {"PARTITION": ["m", "n"], "NEXT": ["none"], "HUGE_PAGES": [False]}


class X86Grouped:
    """f32, and operands of fewer bits that are widened to f32: all layouts and factors."""

    name = "x86_grouped"

    def __init__(self) -> None:
        self._products = x86_gemm.X86Gemm()

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, X86):
            return "it supports x86 targets only"
        if not isinstance(operator, GroupedGemm):
            return "it supports grouped_gemm only"
        if operator.a not in _FORMATS or operator.c not in _RESULTS or operator.acc != "f32":
            return f"it computes {', '.join(_FORMATS)} in f32; results are {', '.join(_RESULTS)}"
        if "f16" in (operator.a, operator.c) and not target.has("f16c"):
            return "it needs F16C for f16"
        return self._products.refuses(_product(operator), target)

    def space(self, operator: Operator, target: Target) -> Space:
        space = self._products.space(_product(served(operator, target, GroupedGemm, X86)[0]), target)
        knobs = {knob.name: knob.values for knob in space.knobs}
        limits = {
            name: [one for one in values if one in knobs[name]] for name, values in _NEVER.items() if name in knobs
        }
        space = space.restrict(limits)
        space.name = self.name
        return space

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        grouped, cpu = served(operator, target, GroupedGemm, X86)
        kernel = self._products.emit(_product(grouped), target, config)
        (workspace,) = (arg for arg in kernel.plan.steps[0].args if isinstance(arg, WorkspaceArg))
        arguments: tuple[Arg, ...] = (
            *(TensorArg(name) for name in ("A", "B", "C", "offsets")),
            TensorArg("scale") if grouped.scales != "none" else ScalarArg("i64", 0),
            replace(workspace, bytes=_workspace(grouped, cpu, config, workspace.bytes)),
            *(ScalarArg("i64", name) for name in _SIZES),
            ScalarArg("i32", config["THREADS"]),
        )
        macros = {
            "GRADIENT": int(grouped.gradient),
            "TURNED": int(grouped.layout == "nt"),
            "FORMAT": _FORMATS.index(grouped.a),
            "RESULT": _RESULTS.index(grouped.c),
            "FACTORS": SCALES.index(grouped.scales),
        }
        plan = LaunchPlan((Step("deepgen_grouped", arguments),))
        flags = tuple("-DHELP=0" if flag.startswith("-DHELP=") else flag for flag in kernel.flags)
        files = (*sources(__name__, ("grouped_fma.c",)), *kernel.sources)
        return replace(kernel, name=self.name, sources=files, flags=(*flags, *defines(macros)), plan=plan)

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        """One expert may have all rows: tasks then divide its columns."""
        grouped, _ = served(operator, target, GroupedGemm, X86)
        config = dict(self._products.default(_product(grouped), target))
        config |= {name: values[0] for name, values in _NEVER.items() if name in config and name != "PARTITION"}
        if config["THREADS"] == 1:
            return config
        config.pop("CURVE", None)
        space = self.space(operator, target)
        alone = {name: value for name, value in config.items() if name not in ("PARTITION", "TASKS")} | {"THREADS": 1}
        shared = [config | {"PARTITION": "m" if config["SWAP"] else "n", "TASKS": tasks} for tasks in (2, 1)]
        return next((one for one in shared if not space.explain(one)), alone)


def _product(operator: GroupedGemm) -> Gemm:
    """In f32, without factors: those of the results are applied afterwards."""
    return replace(as_batch(operator), a="f32", b="f32", c="f32", scales="none", fast_sums=False)


def _workspace(grouped: GroupedGemm, cpu: X86, config: Mapping[str, Any], slots: str | int) -> str | int:
    staged = grouped.c != "f32" or grouped.scales != "none"
    wide, threads = grouped.a != "f32", config["THREADS"]
    more = FLOAT * threads * (_SUMS * staged + _WIDENED * wide)
    if not wide:
        return f"{slots} + {more}" if more else slots
    lanes = 1 if config["KIND"] == "dot" else cpu.vector_bytes // FLOAT
    unit = config["MR"] if config["SWAP"] else config["NR"] * lanes
    return f"{slots} + {more} + {FLOAT * threads * unit} * K + {FLOAT} * M * K"
