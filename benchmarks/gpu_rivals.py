"""Whom our GEMM kernels on an NVIDIA GPU are measured against: cuBLASLt, torch, and a kernel in Triton."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from deepgen.baselines.cublaslt import CublasLt
from deepgen.vocabulary import DeepgenError
from gpu_bench import Bench

Call = Callable[[], Any]


def rivals(bench: Bench, *, with_triton: bool) -> tuple[dict[str, Call], dict[str, str]]:
    """Those that serve the problem and get it right, ready to be timed; and why the others are not among them."""
    found: dict[str, Call] = {}
    absent: dict[str, str] = {}
    makers: dict[str, Callable[[], Call]] = {
        "cublaslt": lambda: CublasLt().prepare(bench.problem, bench.places, 1),
        "torch": lambda: _torch(bench),
    }
    if with_triton:
        makers["triton"] = lambda: _triton(bench)
    for name, make in makers.items():
        try:
            call = make()
            if not bench.right(call):
                raise DeepgenError(f"it is off by {bench.error(call):.1e}")
            found[name] = call
        except Exception as error:  # other people's libraries raise what they like
            absent[name] = f"{type(error).__name__}: {str(error)[:160]}"
    return found, absent


def _torch(bench: Bench) -> Call:
    """torch's own product, into C where it can."""
    torch, p = bench.torch, bench.problem
    torch.backends.cuda.matmul.allow_tf32 = p.a == "tf32"
    a, b, c = bench.left, bench.right_side, bench.c
    if p.a.startswith("f8") or p.a == "i8":
        if p.batch > 1:
            raise DeepgenError("torch has no batches of 8-bit products")
        if p.a == "i8":
            return lambda: torch._int_mm(a[0], b[0])
        one = torch.ones((), device="cuda")
        return lambda: torch._scaled_mm(a[0], b[0], one, one, out_dtype=c.dtype, use_fast_accum=p.fast_sums)
    if p.batch == 1:
        return lambda: torch.mm(a[0], b[0], out=c[0])
    return lambda: torch.bmm(a, b, out=c)


def _triton(bench: Bench) -> Call:
    """The faster of its two kernels, each tuned by Triton."""
    from triton_gemm import calls

    timed: list[tuple[float, int, Call]] = []
    wrong: list[str] = []
    for number, (name, call) in enumerate(calls(bench).items()):
        try:
            if not bench.right(call):
                raise DeepgenError("a wrong result")
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__} {str(error)[:120]}")
            continue
        timed.append((statistics.median(bench.time(call, 8)), number, call))
    if not timed:
        raise DeepgenError("; ".join(wrong))
    return min(timed)[2]
