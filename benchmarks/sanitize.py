"""compute-sanitizer over samples of GEMM families: out-of-bounds accesses, races, uninitialised reads.

Kernels with every way to share K run on odd sizes under the checkers, each compared with numpy, in formats that numpy
has. Without torch, so that only our kernels are checked. Writes the checkers' output.

    PYTHONPATH=src python benchmarks/sanitize.py
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deepgen import targets
from deepgen.generators import Generator, by_name
from deepgen.operators import Gemm, gemm
from deepgen.run.call.gpu_kernel import GpuKernel
from deepgen.targets import Cuda
from deepgen.targets.gpu_driver import CUDA, Driver
from deepgen.toolchains import Cache, build_once
from harness import H200, parser, run_main, save

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
    "sm90_gemm": [
        gemm(130, 136, 261, dtype="f16", layout="nt"),
        gemm(37, 141, 153, dtype="f16", layout="nn", batch=2),
        gemm(61, 77, 130, dtype="i8", layout="nt"),
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
MOST = {"f32": 1e-5, "tf32": 2e-3, "f16": 2e-3, "i8": 0.0}  # relative to the norm of the result
EACH = {"simt_gemm": 4, "mma_gemm": 2, "sm90_gemm": 2, "skinny_gemm": 3}


def sample(target: Cuda, names: list[str]) -> Iterator[tuple[Generator, Gemm, dict[str, Any]]]:
    for name in names:
        family = by_name(name)
        for problem in PROBLEMS[name]:
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
    shapes = {t.name: (t.shape, t.dtype.name) for t in problem.tensors()}
    bound = loaded.bind(places, problem.scalars(), lambda _, size: driver.alloc(size), shapes)
    got = np.zeros_like(host["C"])
    for _ in range(2):  # the second run starts with the counters as the first one left them
        bound.run.run(0)
        driver.synchronize()
    driver.to_host(got.ctypes.data, places["C"], got.nbytes)
    left, right = host["A"].astype(np.float64), host["B"].astype(np.float64)
    left = left.swapaxes(-1, -2) if problem.layout[0] == "t" else left
    want = left @ (right.swapaxes(-1, -2) if problem.layout[1] == "t" else right)
    return bool(np.linalg.norm(got - want) <= MOST[problem.a] * np.linalg.norm(want))


def inside(cache: Path, names: list[str]) -> int:
    """The part that runs under the checkers."""
    driver = Driver(CUDA)
    target = targets.resolve("cuda:native")
    assert isinstance(target, Cuda), "cuda:native is a CUDA target"
    right = []
    for family, problem, config in sample(target, names):
        kernel = family.emit(problem, target, config)
        built = build_once(kernel, target, cache=Cache(cache))
        right.append(run(driver, problem, GpuKernel.read(driver, kernel, built.binary)))
    print(f"{sum(right)} of {len(right)} kernels are correct", flush=True)
    return 0 if all(right) else 1


@dataclass(frozen=True)
class Watched:
    """A tool's output, exit status, and duration in seconds."""

    tool: str
    exit: int | None
    text: str
    seconds: float


def watched(tool: str, command: list[str], seconds: float) -> Watched:
    started = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        ended, text = done.returncode, (done.stdout + done.stderr)[-1500:]
    except (OSError, subprocess.TimeoutExpired) as error:
        ended, text = None, str(error)[:500]
    return Watched(tool, ended, text, round(time.monotonic() - started, 1))


def main() -> int:
    words = parser(__doc__, json=H200 / "sanitizer.json")
    words.add_argument("--inside", type=Path, metavar="CACHE", help="be the part that is watched")
    words.add_argument("--tool", action="append", choices=TOOLS, help="repeatedly [all]")
    words.add_argument("--seconds", type=float, default=60.0, help="for each tool [60]")
    options = words.options()
    if options.inside:
        return inside(options.inside, options.chosen(PROBLEMS))
    checker = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    rows = []
    with tempfile.TemporaryDirectory() as cache:  # built by the first run, reused by the others
        for tool in ("none", *(options.tool or TOOLS)):
            before = [] if tool == "none" else [checker, "--tool", tool, "--error-exitcode", str(FAILED)]
            only = [word for name in options.only for word in ("--only", name)]
            row = watched(tool, [*before, sys.executable, __file__, "--inside", cache, *only], options.seconds)
            last = (row.text.strip().splitlines() or [""])[-1]
            print(f"{tool:10} exit {row.exit}  {row.seconds} s  {last[:50]}", flush=True)
            rows.append(row)
    save(options.json, rows)
    return int(any(row.exit for row in rows))


if __name__ == "__main__":
    run_main(main)
