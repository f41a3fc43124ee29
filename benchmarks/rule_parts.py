"""Where the time of a kernel by rules goes: how long each of its parallel loops takes, by the default config.

    PYTHONPATH=src python benchmarks/rule_parts.py c2d N=1 H=56 W=56 CI=64 CO=64 k=3 pad=1 dtype=i8 --threads 2
    PYTHONPATH=src python benchmarks/rule_parts.py gemm M=512 N=512 K=512 dtype=bf16 --set at_B=block

Copies that are made before a sum are parallel loops of their own. Times are medians over --runs calls, with warm
caches.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
from dataclasses import replace
from typing import Any

import numpy as np

from common import run_main
from deepgen import generators, targets
from deepgen.operators import OPERATORS
from deepgen.run.call.native import NativeKernel
from deepgen.toolchains import build_once
from deepgen.vocabulary import BadInput, Kernel

MOST = 64  # parallel loops
TIMED = f"""
#include <time.h>
double deepgen_parts[{MOST}];
static void timed_run(int n, int threads, pool_work work, void *job) {{
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    pool_run(threads, work, job);
    clock_gettime(CLOCK_MONOTONIC, &to);
    deepgen_parts[n] = (to.tv_sec - from.tv_sec) + (to.tv_nsec - from.tv_nsec) * 1e-9;
}}
"""


def main() -> None:
    asked = _arguments()
    operator = OPERATORS.get(asked.operator).make(dict(map(_word, asked.words)))
    cpu, family = targets.resolve("cpu").limited_to(asked.threads), generators.by_name("rules")
    config = {**family.default(operator, cpu), **dict(map(_word, asked.set))}
    kernel, count = _timed(family.emit(operator, cpu, config))
    binary = build_once(kernel, cpu).binary
    inputs = operator.inputs(0)
    arrays = {t.name: inputs.get(t.name, np.zeros(t.shape, t.dtype.numpy())) for t in operator.tensors()}
    bound = NativeKernel(kernel, binary).bind(
        {name: array.reshape(-1).view(np.uint8) for name, array in arrays.items()}, operator.scalars()
    )
    parts = (ctypes.c_double * MOST).in_dll(ctypes.CDLL(str(binary)), "deepgen_parts")
    times: list[list[float]] = []
    for _ in range(asked.runs):
        bound.run()
        times.append(parts[:count])
    print(operator.describe(), config)
    for n, of in enumerate(zip(*times, strict=True)):
        print(f"part {n}: {statistics.median(of) * 1e6:9.1f} us")


def _timed(kernel: Kernel) -> tuple[Kernel, int]:
    """A kernel that tells how long its parallel loops took, and how many these are."""
    first, *others = kernel.sources
    head, *calls = first.text.replace('#include "parts.h"\n', f'#include "parts.h"\n{TIMED}').split(
        "    pool_run(threads, d"
    )
    if not calls or len(calls) > MOST:
        raise BadInput(f"a kernel with {len(calls)} parallel loops", allowed=f"1 to {MOST}")
    text = head + "".join(f"    timed_run({n}, threads, d{call}" for n, call in enumerate(calls))
    return replace(kernel, sources=(replace(first, text=text), *others)), len(calls)


def _word(given: str) -> tuple[str, Any]:
    name, _, value = given.partition("=")
    return name, int(value) if value.isdigit() else value


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operator")
    parser.add_argument("words", nargs="*", help="such as M=512")
    parser.add_argument("--set", action="append", default=[], help="a knob, such as at_B=block")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=200)
    return parser.parse_args()


if __name__ == "__main__":
    run_main(main)
