"""compute-sanitizer over a sample of the SIMT GEMM family: out-of-bounds accesses, races, uninitialised reads.

Kernels of every way to share K and both ways to hold tiles run on odd sizes, each checked against numpy; the checkers
watch. Without torch, so that only our kernels are looked at. Writes what they said to OUT/sanitizer.json.

    PYTHONPATH=src python benchmarks/h200/sanitize.py --out benchmarks/h200
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "src")]

from deepgen import targets  # noqa: E402
from deepgen.generators.templates.simt.simt_gemm import SimtGemm  # noqa: E402
from deepgen.measure.gpu_driver import CUDA, Driver  # noqa: E402
from deepgen.measure.gpu_kernel import GpuKernel  # noqa: E402
from deepgen.operators import Gemm, gemm  # noqa: E402
from deepgen.targets import Cuda  # noqa: E402
from gpu_bench import Builder  # noqa: E402

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
SHAPES = ((130, 136, 72, 1), (96, 200, 640, 1), (64, 64, 64, 3))
EACH, FAILED = 4, 86


def sample(target: Cuda) -> Iterator[tuple[Gemm, dict[str, Any]]]:
    family = SimtGemm()
    for m, n, k, batch in SHAPES:
        problem = gemm(m, n, k, batch=batch, layout="nt")
        yield problem, dict(family.default(problem, target))
        space = family.space(problem, target)
        for fixup in dict.fromkeys(c["FIXUP"] for c in space.sample(40, 1)):
            yield from ((problem, dict(c)) for c in space.restrict({"FIXUP": [fixup]}).sample(EACH, 2))


def run(driver: Driver, problem: Gemm, loaded: GpuKernel) -> bool:
    dice = np.random.default_rng(1)
    scalars = problem.scalars()
    host = {t.name: dice.standard_normal(t.shape).astype(np.float32) for t in problem.tensors()}
    places = {name: driver.alloc(array.nbytes) for name, array in host.items()}
    for name, array in host.items():
        driver.to_device(places[name], array.ctypes.data, array.nbytes)
    bound = loaded.bind(places, scalars, lambda _, size: driver.alloc(size))
    got = np.full_like(host["C"], np.nan)
    for _ in range(2):  # the second run finds the counters as the first one left them
        bound.run.run(0)
        driver.synchronize()
    driver.to_host(got.ctypes.data, places["C"], got.nbytes)
    want = host["A"].astype(np.float64) @ host["B"].astype(np.float64).swapaxes(-1, -2)
    return bool(np.linalg.norm(got - want) < 1e-5 * np.linalg.norm(want))


def inside() -> int:
    """The part that the checkers watch."""
    driver = Driver(CUDA)
    target = targets.resolve("cuda:native")
    assert isinstance(target, Cuda), "cuda:native is a CUDA target"
    family = SimtGemm()
    work = [(problem, family.emit(problem, target, config)) for problem, config in sample(target)]
    with Builder(target, 16) as builder:
        for _, kernel in work:
            builder.start(kernel)
        right = [run(driver, problem, GpuKernel(driver, kernel, builder.image(kernel))) for problem, kernel in work]
    print(f"{sum(right)} of {len(right)} kernels are right", flush=True)
    return 0 if all(right) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--inside", action="store_true")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each tool")
    options = parser.parse_args()
    if options.inside:
        return inside()
    checker = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    told: dict[str, Any] = {}
    for tool in ("none", *TOOLS):
        before = [] if tool == "none" else [checker, "--tool", tool, "--error-exitcode", str(FAILED)]
        started = time.monotonic()
        try:
            done = subprocess.run(
                [*before, sys.executable, __file__, "--inside"],
                capture_output=True, text=True, timeout=options.seconds, check=False,
            )  # fmt: skip
            told[tool] = {"exit": done.returncode, "said": (done.stdout + done.stderr)[-1500:]}
        except (OSError, subprocess.TimeoutExpired) as error:
            told[tool] = {"exit": None, "said": str(error)[:500]}
        told[tool]["seconds"] = round(time.monotonic() - started, 1)
        lines = told[tool]["said"].strip().splitlines() or [""]
        print(f"{tool:10} exit {told[tool]['exit']}  {told[tool]['seconds']} s  {lines[-1][:120]}", flush=True)
    (options.out / "sanitizer.json").write_text(json.dumps(told, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
