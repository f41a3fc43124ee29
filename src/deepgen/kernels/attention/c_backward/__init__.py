"""The backward pass of attention in portable C, for any CPU: correct rather than fast, and always in the same order."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from deepgen.kernels.attention import backward_macros, backward_requires, strided
from deepgen.kernels.shared import defines, served, sources, thread_counts
from deepgen.operators import AttentionBackward, Operator
from deepgen.space import Space
from deepgen.targets import Cpu, Target
from deepgen.vocabulary import Kernel, LaunchPlan, ScalarArg, Step, TensorArg, WorkspaceArg

_FORMATS = {"f32": 32, "bf16": 17}
_WIDEST = 512
_OWN, _SHARED = ("backward.c", "cpu_pool.h", "x86_pool.h", "x86_call.h"), ("numbers.h",)


class CBackward:
    """A thread for all heads that share one of K; lanes are columns: f32 and bf16, all options."""

    name = "c_backward"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, Cpu):
            return "it supports CPUs only"
        if not isinstance(operator, AttentionBackward):
            return "it supports attention's backward pass only"
        if operator.dtype not in _FORMATS:
            return "it computes f32 and bf16"
        if operator.width != operator.v_width or operator.width > _WIDEST:
            return f"it supports heads of q and v that are equally wide, up to {_WIDEST}"
        return None

    def space(self, operator: Operator, target: Target) -> Space:
        _, cpu = served(operator, target, AttentionBackward, Cpu)
        s = Space(self.name)
        s.knob("QUERIES", [1, 2, 4])
        s.knob("THREADS", thread_counts(cpu.cores))
        return s

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        _, cpu = served(operator, target, AttentionBackward, Cpu)
        return {"QUERIES": 2, "THREADS": cpu.cores}

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        backward, cpu = served(operator, target, AttentionBackward, Cpu)
        lanes = cpu.vector_bytes // 4
        wide = ceil(backward.width / lanes) * lanes
        macros = {
            "FORMAT": _FORMATS[backward.dtype],
            "VECTOR_BYTES": cpu.vector_bytes,
            "QUERIES": config["QUERIES"],
            **backward_macros(backward),
        }
        files = (*sources(__name__, _OWN), *sources("deepgen.kernels.softmax.c_softmax", _SHARED))
        at_once = 2 * config["QUERIES"]
        memory = f"{4 * config['THREADS']} * (SK * {4 * wide + at_once} + {at_once * lanes})"
        args = (
            *(arg for name in ("q", "k", "v", "o", "dout") for arg in strided(backward, name)),
            TensorArg("lse"),
            *(arg for name in ("dq", "dk", "dv") for arg in strided(backward, name)),
            WorkspaceArg("room", memory),
            *(ScalarArg("i64", size) for size in ("B", "H", "H // HK", "SQ", "SK", "window")),
            *(ScalarArg("f32", number) for number in ("scale", "softcap")),
            ScalarArg("i32", config["THREADS"]),
        )
        plan = LaunchPlan((Step("deepgen_attention_backward", args),), requires=backward_requires(backward))
        return Kernel(self.name, "c", files, ("-std=gnu11", "-pthread", *defines(macros)), plan)
