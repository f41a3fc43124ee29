"""GEMM of 8-bit floats with scales of blocks in plain C, for any CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepgen.kernels.shared import c_kernel, served, thread_counts
from deepgen.operators import Gemm, Operator
from deepgen.operators.gemm import ACTIVATIONS
from deepgen.operators.products import BLOCK
from deepgen.space import Space
from deepgen.targets import Cpu, Riscv, Target
from deepgen.vocabulary import Kernel, LaunchPlan, ScalarArg, Step, TensorArg, WorkspaceArg

_RESULTS = ("f32", "bf16", "f16")
_FRACTIONS = {"f8e4m3": 3, "f8e5m2": 2}  # bits
_WORTH_A_THREAD = 1_000_000  # flops; waking another thread takes as long as computing about this many
_SCALES = [f"scale_{letter}_{along}" for letter in "ab" for along in ("matrix", "row", "step")]
_SIZES = ("M", "N", "K", "batch", "lda", "ldb", "ldc", "stride_a", "stride_b", "stride_c", *_SCALES)


class CScaledGemm:
    """Blocks are widened to f32, times their factors; register tiles, threads; any M, N, K, all layouts."""

    name = "c_scaled_gemm"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, Cpu):
            return "it supports CPUs only"
        if not isinstance(operator, Gemm) or operator.blocks is None:
            return "it supports gemm with scales of blocks only"
        if operator.epilogue:
            return "it has no epilogues as formulas"
        if operator.c == "f16" and isinstance(target, Riscv) and not target.has("zvfh"):
            return "a result in f16 needs a target with zvfh"
        return None if operator.c in _RESULTS else "its results are f32, bf16 or f16"

    def space(self, operator: Operator, target: Target) -> Space:
        _, cpu = served(operator, target, Gemm, Cpu)
        s = Space(self.name)
        rows, vectors = s.knob("MR", [1, 2, 3, 4, 6, 8, 12]), s.knob("NR", [1, 2, 3, 4, 6])
        strips, panels = s.knob("STRIPS", [1, 2, 4, 8, 16, 32]), s.knob("PANELS", [1, 2, 4, 8])
        s.knob("THREADS", thread_counts(cpu.cores))
        s.require(rows * vectors + vectors + 1 <= cpu.vector_registers, "a tile and a row of B fit in registers")
        high, wide = rows * strips, panels * vectors * (cpu.vector_bytes // 4)
        s.require(4 * ((high + wide) * BLOCK + high * wide) <= cpu.l2_bytes, "widened blocks and sums fit in L2")
        return s

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        gemm, cpu = served(operator, target, Gemm, Cpu)
        assert gemm.blocks is not None, "ask refuses() first"
        high = config["MR"] * config["STRIPS"]
        wide = config["NR"] * config["PANELS"] * (cpu.vector_bytes // 4)
        macros = {
            **{name: config[name] for name in ("MR", "NR", "STRIPS", "PANELS")},
            "VECTOR_BYTES": cpu.vector_bytes,
            "A_T": int(gemm.layout[0] == "t"),
            "B_T": int(gemm.layout[1] == "t"),
            "BLOCK_A": gemm.blocks[0],
            "BLOCK_B": gemm.blocks[1],
            "FRACTIONS_A": _FRACTIONS[gemm.a],
            "FRACTIONS_B": _FRACTIONS[gemm.b],
            "C_TYPE": _RESULTS.index(gemm.c),
            "BIAS": int(gemm.bias),
            "ACTIVATION": ACTIVATIONS.index(gemm.activation),
        }
        arguments = (
            *(TensorArg(name) for name in ("A", "B", "scale_a", "scale_b")),
            TensorArg("bias") if gemm.bias else ScalarArg("i64", 0),
            TensorArg("C"),
            WorkspaceArg("widened", config["THREADS"] * 4 * ((high + wide) * BLOCK + high * wide)),
            *(ScalarArg("i64", name) for name in _SIZES),
            *(ScalarArg("f32", name) for name in ("alpha", "beta")),
            ScalarArg("i32", config["THREADS"]),
        )
        files = ("gemm_scaled.c", "cpu_pool.h", "x86_pool.h")
        return c_kernel(self.name, __name__, files, macros, LaunchPlan((Step("deepgen_gemm", arguments),)))

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        gemm, cpu = served(operator, target, Gemm, Cpu)
        rows = 6 if gemm.m > 4 else 4 if gemm.m > 2 else gemm.m
        strips = 8 if gemm.m > 4 * rows else 4 if gemm.m > rows else 1
        threads = cpu.cores if gemm.flops() >= _WORTH_A_THREAD * cpu.cores else 1
        return {"MR": rows, "NR": 2, "STRIPS": strips, "PANELS": 4, "THREADS": threads}
