"""What a call of a loaded kernel costs, against another source tree of deepgen.

Each tree runs in a process of its own; the two take turns, round by round. A ratio is the median of several pairs of
processes, each the median of its rounds. The kernel does next to nothing, so that the time is that of the way to it.

    python benchmarks/loaded_calls.py --before CHECKOUT [--target cuda:native] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias, cast

from common import run_main, save
from deepgen.operators import gemm
from deepgen.vocabulary import Arg, Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg

Rounds: TypeAlias = "list[dict[str, dict[str, float]]]"  # by tree and way, seconds of a call
Call: TypeAlias = Callable[..., Any]
HERE = Path(__file__).parents[1]
OPERATOR = gemm(4, 4, 4)
_SIZES = ("M", "N", "K", "batch", "lda", "ldb", "ldc", "stride_a", "stride_b", "stride_c")
_PLACES = ", ".join(f"p[{3 + place}]" for place in range(len(_SIZES)))
_C = f"""
#include <stdint.h>
void entry(const float *A, const float *B, float *C, {", ".join(f"int64_t {name}" for name in _SIZES)}) {{
    C[0] = A[0] * B[0];
}}
void entry_block(const int64_t *p) {{
    entry((const float *)p[0], (const float *)p[1], (float *)p[2], {_PLACES});
}}
"""
_GPU = f"""
extern "C" __global__ void entry(const float *A, const float *B, float *C,
                                 {", ".join(f"long long {name}" for name in _SIZES)}) {{
    C[0] = A[0] * B[0];
}}
"""


def kernel(language: str) -> Kernel:
    args: tuple[Arg, ...] = (*map(TensorArg, ("A", "B", "C")), *(ScalarArg("i64", size) for size in _SIZES))
    source = Source("entry.c", _C) if language == "c" else Source("entry.cu", _GPU)
    return Kernel(
        "nearly_nothing", language, (source,), ("-O2",) if language == "c" else (), LaunchPlan((Step("entry", args),))
    )


def load(language: str, binary: Path) -> Call:
    """As the tree that this process imports does it."""
    made = kernel(language)
    if find_spec("deepgen.run.call") is None:  # a tree from before there was a runtime
        older: Any = import_module("deepgen.library")
        return cast(Call, (older.LoadedKernel if language == "c" else older.LoadedGpuKernel)(made, OPERATOR, binary))
    from deepgen import targets
    from deepgen.run.call import loaded

    return loaded.load(made, OPERATOR, targets.resolve("cpu" if language == "c" else f"{language}:native"), binary)


def arrays(language: str) -> tuple[Any, Any, Any]:
    if language == "c":
        import numpy as np

        return np.ones((4, 4), np.float32), np.ones((4, 4), np.float32), np.empty((4, 4), np.float32)
    import torch

    return tuple(torch.ones(4, 4, device="cuda") for _ in range(3))


def child(language: str, binary: Path, calls: int) -> None:
    """Takes one measurement for each line that comes in."""
    call, (a, b, out) = load(language, binary), arrays(language)
    ways: dict[str, Callable[[], Any]] = {"out=": lambda: call(a, b, out=out), "new output": lambda: call(a, b)}
    for way in ways.values():
        way()
    for _ in sys.stdin:
        taken = {}
        for name, way in ways.items():
            started = time.perf_counter()
            for _ in range(calls):
                way()
            taken[name] = (time.perf_counter() - started) / calls
            if language != "c":
                import torch

                torch.cuda.synchronize()
        print(json.dumps(taken), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, required=True, help="root of the other source tree")
    parser.add_argument("--target", default="cpu", help="cpu, cuda:native or hip:native")
    parser.add_argument("--pairs", type=int, default=8, help="pairs of fresh processes [8]")
    parser.add_argument("--rounds", type=int, default=40, help="of each pair [40]")
    parser.add_argument("--calls", type=int, default=500, help="calls of each way in a round")
    parser.add_argument("--json", type=Path, default=None, help="where the figures are written")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child[0], Path(args.child[1]), args.calls)
        return
    from deepgen import targets
    from deepgen.toolchains import build_once

    target = targets.resolve(args.target)
    language = args.target.partition(":")[0] if args.target.startswith(("cuda", "hip")) else "c"
    binary = build_once(kernel(language), target).binary
    trees = {"before": args.before.resolve(), "now": HERE}
    own = [str(Path(__file__)), "--before", str(args.before), "--calls", str(args.calls), "--child", language, binary]
    pairs = [_pair(own, trees, args.rounds) for _ in range(args.pairs)]
    results = {way: _summary(pairs, way) for way in pairs[0][0]["now"]}
    for way, told in results.items():
        ratios = " ".join(f"{ratio:.3f}" for ratio in told["ratios"])
        print(f"{way:12} before {told['before_us']:7.3f} us   now {told['now_us']:7.3f} us   ratio {told['ratio']:.3f}")
        print(f"{'':12} of each pair of processes: {ratios}")
    if args.json:
        save(args.json, {"target": args.target, "calls": results})


def _pair(own: list[str], trees: dict[str, Path], rounds: int) -> Rounds:
    """Both trees in fresh processes, in turns."""
    running = {
        name: subprocess.Popen(
            [sys.executable, *own],
            env={**os.environ, "PYTHONPATH": str(tree / "src")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, tree in trees.items()
    }
    taken = [_round(running, number) for number in range(rounds + 1)][1:]  # the first one warms up
    for process in running.values():
        process.communicate()
    return taken


def _round(running: dict[str, Any], number: int) -> dict[str, dict[str, float]]:
    """One measurement of each side; who is first changes from round to round."""
    sides = list(running) if number % 2 else list(reversed(running))
    told = {}
    for side in sides:
        process = running[side]
        process.stdin.write("go\n")
        process.stdin.flush()
        told[side] = json.loads(process.stdout.readline())
    return told


def _summary(pairs: list[Rounds], way: str) -> dict[str, Any]:
    """A process may be slow for as long as it lives, wherever its memory lies: the median of the pairs counts."""
    ratios = [median(each["now"][way] / each["before"][way] for each in rounds) for rounds in pairs]
    return {
        "before_us": median(each["before"][way] for rounds in pairs for each in rounds) * 1e6,
        "now_us": median(each["now"][way] for rounds in pairs for each in rounds) * 1e6,
        "ratio": median(ratios),
        "ratios": sorted(ratios),
    }


if __name__ == "__main__":
    run_main(main)
