"""How far lowering goes: GEMM in f32 by a schedule written by hand, beside the family c_gemm at its default.

Both are timed in turns, warm; the ratio is the median of the rounds' ratios, c_gemm's time over that of the schedule.
On one thread the time is the processor's, which other programs disturb less.

    python benchmarks/rule_gemm_by_hand.py [--sizes 512,512,512 500,509,300] [--threads 1] [--rounds 60] [--json FILE]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import deepgen as dg
from common import run_main, save
from deepgen.compiler.passes.lower import lower
from deepgen.compiler.schedule.steps import (
    Annotate,
    CacheRead,
    ComputeAt,
    Layout,
    Reorder,
    RFactor,
    Schedule,
    SetScope,
    Split,
)
from deepgen.compiler.text import c
from deepgen.kernels.gemm.c_gemm import CGemm
from deepgen.operators import gemm
from deepgen.operators.expr.nodes import Expression
from deepgen.run.call.native import NativeKernel
from deepgen.targets import Cpu, host
from deepgen.toolchains import build_once
from deepgen.vocabulary import Kernel, WorkspaceArg


def expression(m: int, n: int, k: int) -> Expression:
    a, b, over = dg.tensor("A", (m, k)), dg.tensor("B", (k, n)), dg.reduce_axis("k", k)
    return dg.expression(dg.compute("C", (m, n), lambda i, j: dg.sum(a[i, over] * b[over, j], over)), name="gemm")


def schedule(rows: int, columns: int, block: int, depth: int) -> Schedule:
    """Threads take blocks of rows, and go through K in blocks.

    In a block, strips of rows of A and panels of columns of B, both packed, meet in tiles that are summed up in
    registers and then added to C.
    """
    return (
        Split("C", "r0", (depth,)),
        RFactor("C", "r0.0", "sums"),
        SetScope("sums", "register"),
        Split("C", "i0", (block, rows)),
        Split("C", "i1", (columns,)),
        Reorder("C", ("i0.0", "r0.0", "i1.0", "i0.1", "i0.2", "i1.1")),
        Annotate("C", "i0.0", "parallel"),
        Annotate("C", "i0.2", "unroll"),
        Annotate("C", "i1.1", "vector"),
        ComputeAt("sums", "C", "i0.1"),
        Split("sums", "r0.1", (4,)),
        Reorder("sums", ("r0.0", "r0.1.0", "r0.1.1", "i0", "i1")),
        Annotate("sums", "r0.1.1", "unroll"),
        Annotate("sums", "i0", "unroll"),
        Annotate("sums", "i1", "vector"),
        CacheRead("B", "panel", "global", ("sums",)),
        ComputeAt("panel", "C", "i1.0"),
        Annotate("panel", "a1", "vector"),
        CacheRead("A", "strips", "global", ("sums",)),
        ComputeAt("strips", "C", "r0.0"),
        Split("strips", "a0", (rows,)),
        Reorder("strips", ("a0.0", "a1", "a0.1")),
        Layout("strips", (f"0/{rows}", "1", f"0%{rows}")),
    )


def runner(kernel: Kernel, target: Cpu, arrays: dict[str, Any], scalars: dict[str, Any]) -> Callable[[], None]:
    kept: list[Any] = []

    def workspace(_: WorkspaceArg, size: int) -> Any:
        kept.append(np.zeros(size + 64, np.uint8))
        return kept[-1][-kept[-1].ctypes.data % 64 :]

    native = NativeKernel(kernel, build_once(kernel, target).binary)
    bound = native.bind(arrays, scalars, workspace)
    bound.prepare()
    kept += [native, bound]

    def run() -> None:
        kept[-1].run()

    return run


def compare(m: int, n: int, k: int, threads: int, rounds: int) -> dict[str, Any]:
    target, operator = host.processor(), gemm(m, n, k, a="f32", b="f32", c="f32", acc="f32")
    numbers = np.random.default_rng(0)
    arrays = {"A": numbers.random((m, k), np.float32), "B": numbers.random((k, n), np.float32)}
    config = {**CGemm().default(operator, target), "THREADS": threads}
    if threads == 1:
        config = {key: value for key, value in config.items() if key not in ("PARTITION", "TASKS")}
    lanes = target.vector_bytes // 4
    function = lower(
        expression(m, n, k), schedule(8, 2 * lanes, block=32, depth=min(k, 512)), vector_bytes=target.vector_bytes
    )
    kernels = {"c_gemm": CGemm().emit(operator, target, config), "by hand": c.kernel(function, threads)}
    results = {name: np.zeros((m, n), np.float32) for name in kernels}
    calls = {
        name: runner(kernel, target, {**arrays, "C": results[name]}, dict(operator.scalars()))
        for name, kernel in kernels.items()
    }
    clock = time.thread_time if threads == 1 else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 3):
        for name, call in calls.items():
            start = clock()
            call()
            if turn >= 3:
                seconds[name].append(clock() - start)
    np.testing.assert_allclose(results["by hand"], results["c_gemm"], rtol=1e-4)
    ratios = [a / b for a, b in zip(seconds["c_gemm"], seconds["by hand"], strict=True)]
    gflops = {name: 2 * m * n * k / min(times) / 1e9 for name, times in seconds.items()}
    return {"size": [m, n, k], "threads": threads, "gflops, best": gflops, "ratio": median(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["512,512,512", "500,509,300"])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    found = []
    for size in asked.sizes:
        for threads in asked.threads:
            m, n, k = map(int, size.split(","))
            found.append(compare(m, n, k, threads, asked.rounds))
            best = ", ".join(f"{name} {figure:.1f}" for name, figure in found[-1]["gflops, best"].items())
            print(f"{size:>16} on {threads}: GFLOP/s at best {best}; ratio {found[-1]['ratio']:.2f}", flush=True)
    if asked.json:
        save(asked.json, found)


if __name__ == "__main__":
    run_main(main)
