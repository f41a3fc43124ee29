"""compute-sanitizer over samples of GEMM families: out-of-bounds accesses, races, uninitialised reads.

Kernels of every way to share K run on odd sizes, each checked against numpy; the checkers watch. Of the SIMT family and
those on warp-wide products, in formats that numpy has. Without torch, so that only our kernels are looked at. Writes
what they said to OUT/sanitizer.json.

    PYTHONPATH=src python benchmarks/h200/sanitize.py --out benchmarks/h200
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "src")]

from deepgen import targets  # noqa: E402
from deepgen.generators import Generator, by_name  # noqa: E402
from deepgen.operators import Gemm, gemm  # noqa: E402
from deepgen.run.call.gpu_kernel import GpuKernel  # noqa: E402
from deepgen.targets import Cuda  # noqa: E402
from deepgen.targets.gpu_driver import CUDA, Driver  # noqa: E402
from gpu_bench import DTYPES, Builder  # noqa: E402

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
FAILED = 86
PROBLEMS = {
    "simt_gemm": [
        gemm(m, n, k, batch=batch, layout="nt")
        for m, n, k, batch in ((130, 136, 72, 1), (96, 200, 640, 1), (64, 64, 64, 3))
    ],
    "mma_gemm": [
        gemm(130, 136, 264, dtype="f16", layout="nt"),
        gemm(37, 41, 1053, dtype="f16", layout="nn", batch=2),
        gemm(96, 200, 640, dtype="i8", layout="tn"),
        gemm(66, 70, 260, dtype="tf32", layout="tt"),
    ],
    "skinny_gemm": [
        gemm(8, 1104, 1024, dtype="f16", layout="nt"),
        gemm(1031, 5, 777, dtype="f16", layout="nt", batch=2),
        gemm(20, 1032, 600, dtype="f16", layout="nn"),
        gemm(7, 1040, 528, dtype="i8", layout="nn"),
        gemm(40, 1040, 1040, dtype="i8", layout="nt"),
        gemm(13, 1030, 516, dtype="tf32", layout="nt"),
        gemm(6, 1026, 522, layout="nt"),
    ],
}
NUMPY = {"f32": np.float32, "tf32": np.float32, "f16": np.float16, "i8": np.int8, "i32": np.int32}
EACH = {"simt_gemm": 4, "mma_gemm": 2, "skinny_gemm": 3}


def sample(target: Cuda) -> Iterator[tuple[Generator, Gemm, dict[str, Any]]]:
    for name, problems in PROBLEMS.items():
        family = by_name(name)
        for problem in problems:
            yield family, problem, dict(family.default(problem, target))
            space = family.space(problem, target)
            fixups = dict.fromkeys(c["FIXUP"] for c in space.sample(40, 1) if "FIXUP" in c)
            for some in [space.restrict({"FIXUP": [fixup]}) for fixup in fixups] or [space]:
                yield from ((family, problem, dict(c)) for c in some.sample(EACH[name], 2))


def run(driver: Driver, problem: Gemm, loaded: GpuKernel) -> bool:
    dice = np.random.default_rng(1)
    host = {t.name: np.asarray(dice.integers(-128, 128, t.shape), NUMPY[t.dtype.name]) for t in problem.tensors()}
    if problem.a != "i8":
        host = {name: dice.standard_normal(array.shape).astype(array.dtype) for name, array in host.items()}
    places = {name: driver.alloc(array.nbytes) for name, array in host.items()}
    for name, array in host.items():
        driver.to_device(places[name], array.ctypes.data, array.nbytes)
    bound = loaded.bind(places, problem.scalars(), lambda _, size: driver.alloc(size))
    got = np.zeros_like(host["C"])
    for _ in range(2):  # the second run finds the counters as the first one left them
        bound.run.run(0)
        driver.synchronize()
    driver.to_host(got.ctypes.data, places["C"], got.nbytes)
    left, right = host["A"].astype(np.float64), host["B"].astype(np.float64)
    left = left.swapaxes(-1, -2) if problem.layout[0] == "t" else left
    want = left @ (right.swapaxes(-1, -2) if problem.layout[1] == "t" else right)
    return bool(np.linalg.norm(got - want) <= DTYPES[problem.a][1] * np.linalg.norm(want))


def inside(cache: Path) -> int:
    """The part that the checkers watch."""
    driver = Driver(CUDA)
    target = targets.resolve("cuda:native")
    assert isinstance(target, Cuda), "cuda:native is a CUDA target"
    work = [(problem, family.emit(problem, target, config)) for family, problem, config in sample(target)]
    with Builder(target, 16, cache) as builder:
        for _, kernel in work:
            builder.start(kernel)
        right = [run(driver, problem, GpuKernel(driver, kernel, builder.image(kernel))) for problem, kernel in work]
    print(f"{sum(right)} of {len(right)} kernels are right", flush=True)
    return 0 if all(right) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--inside", type=Path, metavar="CACHE", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each tool")
    options = parser.parse_args()
    if options.inside:
        return inside(options.inside)
    checker = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    told: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as cache:  # what the first run builds, the others find
        for tool in ("none", *TOOLS):
            before = [] if tool == "none" else [checker, "--tool", tool, "--error-exitcode", str(FAILED)]
            told[tool] = watched([*before, sys.executable, __file__, "--inside", cache], options.seconds)
            lines = told[tool]["said"].strip().splitlines() or [""]
            print(f"{tool:10} exit {told[tool]['exit']}  {told[tool]['seconds']} s  {lines[-1][:120]}", flush=True)
    (options.out / "sanitizer.json").write_text(json.dumps(told, indent=1) + "\n")
    return 0


def watched(command: list[str], seconds: float) -> dict[str, Any]:
    started = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        told: dict[str, Any] = {"exit": done.returncode, "said": (done.stdout + done.stderr)[-1500:]}
    except (OSError, subprocess.TimeoutExpired) as error:
        told = {"exit": None, "said": str(error)[:500]}
    return {**told, "seconds": round(time.monotonic() - started, 1)}


if __name__ == "__main__":
    sys.exit(main())
