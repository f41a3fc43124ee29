"""Shared by the tests of the bf16 and 8-bit families: operators, and kernels that run on any CPU."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources

from deepgen.operators import Gemm, gemm
from deepgen.vocabulary import Kernel, Source


def bf16(m: int, n: int, k: int, **other: object) -> Gemm:
    return gemm(m, n, k, dtype="bf16", **other)


def integers(m: int, n: int, k: int, a: str = "i8", b: str = "i8", **other: object) -> Gemm:
    return gemm(m, n, k, dtype="i8", **{"a": a, "b": b, **other})


def emulated(kernel: Kernel) -> Kernel:
    """The same source with its dot products in plain C, which is slow to compile with optimisation."""
    text = resources.files("deepgen.kernels.shared").joinpath("emulate.h").read_text()
    return replace(
        kernel, sources=(*kernel.sources, Source("emulate.h", text)), flags=(*kernel.flags, "-DEMULATE", "-O1")
    )
