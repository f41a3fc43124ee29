"""Softmax in portable C, for any CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepgen.kernels.shared import c_kernel, served, thread_counts
from deepgen.operators import Operator, Softmax
from deepgen.space import Space
from deepgen.targets import Cpu, Target
from deepgen.vocabulary import Arg, Kernel, LaunchPlan, ScalarArg, Step, TensorArg, WorkspaceArg

_SOURCES = ("softmax.c", "numbers.h", "cpu_pool.h", "x86_pool.h", "x86_call.h")
_FORMATS = {"f64": 64, "f32": 32, "f16": 16, "bf16": 17}
_METHODS = ("reread", "kept", "online")
_UNROLLS = (1, 2, 4)
_WORTH_A_THREAD = 1 << 14  # elements, by default


class CSoftmax:
    """Vectors along the columns, one to three passes over a row, threads over rows: any rows and columns."""

    name = "c_softmax"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, Cpu):
            return "it supports CPUs only"
        if not isinstance(operator, Softmax):
            return "it supports softmax only"
        return None

    def space(self, operator: Operator, target: Target) -> Space:
        softmax, cpu = served(operator, target, Softmax, Cpu)
        s = Space(self.name)
        s.knob("METHOD", list(_METHODS))
        s.knob("UNROLL", list(_UNROLLS))
        s.knob("THREADS", _threads(softmax, cpu))
        return s

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        softmax, cpu = served(operator, target, Softmax, Cpu)
        macros = {
            "FORMAT": _FORMATS[softmax.dtype],
            "VECTOR_BYTES": cpu.vector_bytes,
            "METHOD": _METHODS.index(config["METHOD"]),
            "UNROLL": config["UNROLL"],
        }
        return c_kernel(
            self.name,
            __name__,
            _SOURCES,
            macros,
            LaunchPlan((Step("deepgen_softmax", _arguments(softmax, cpu, config)),)),
        )

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        softmax, cpu = served(operator, target, Softmax, Cpu)
        worth = max(1, softmax.rows * softmax.cols // _WORTH_A_THREAD)
        threads = max(n for n in _threads(softmax, cpu) if n <= worth)
        return {"METHOD": "kept", "UNROLL": 2, "THREADS": threads}


def _threads(softmax: Softmax, cpu: Cpu) -> list[int]:
    """At most one thread per row."""
    return [n for n in thread_counts(cpu.cores) if n <= softmax.rows]


def _arguments(softmax: Softmax, cpu: Cpu, config: Mapping[str, Any]) -> tuple[Arg, ...]:
    lanes = cpu.vector_bytes // softmax.arithmetic.bytes
    row = f"ceil_div(cols, {lanes}) * {cpu.vector_bytes}"
    kept: Arg = ScalarArg("i64", 0)
    if config["METHOD"] == "kept":
        kept = WorkspaceArg("kept", f"{config['THREADS']} * {row}")
    return (
        TensorArg("x"),
        TensorArg("y"),
        kept,
        *(ScalarArg("i64", name) for name in ("rows", "cols", "stride_x_0", "stride_y_0")),
        ScalarArg("i32", config["THREADS"]),
    )
