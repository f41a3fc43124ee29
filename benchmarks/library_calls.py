"""What a call costs from C, through an exported library, beside the same kernel called from Python.

    python benchmarks/library_calls.py [--shape 64x64x64] [--library DIR] [--json FILE]

A library of one kernel is tuned within a few seconds, unless one is given that was tuned at these shapes. Both programs
call the kernel in a loop on the same arrays, so caches are warm; they take turns.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import deepgen as dg
from common import run_main, save
from deepgen.libraries import Library
from deepgen.libraries.c.export import Exported, export
from deepgen.vocabulary import DeepgenError

TURNS = 9
_PROGRAM = """
#include <deepgen_kernels.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int count, char **given) {
    int64_t m = atoll(given[1]), n = atoll(given[2]), k = atoll(given[3]), calls = atoll(given[4]);
    float *a = calloc((size_t)(m * k), 4), *b = calloc((size_t)(k * n), 4), *c = calloc((size_t)(m * n), 4);
    size_t bytes;
    if (deepgen_gemm_f32_nn_workspace(m, n, k, &bytes)) return puts(deepgen_last_error()), 1;
    void *workspace = malloc(bytes);
    double started = 0;
    for (int64_t i = -calls / 10 - 1; i < calls; i++) {
        if (i == 0) started = now();
        if (deepgen_gemm_f32_nn(m, n, k, a, k, b, n, c, n, workspace, bytes)) return puts(deepgen_last_error()), 1;
    }
    printf("%.9g", (now() - started) / (double)calls);
    return 0;
}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", metavar="MxNxK", help="may be repeated")
    parser.add_argument("--library", type=Path, help="a library with winners of these shapes")
    parser.add_argument("--seconds", type=float, default=5.0, help="of tuning, for each shape")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    shapes = [_sizes(text) for text in options.shape or ("32x32x32", "128x128x128", "512x512x512")]
    rows = []
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        library = dg.library(options.library or folder / "library")
        for shape in shapes:
            if options.library is None:
                study = dg.tune(
                    dg.gemm(*shape), target="cpu", time_budget=options.seconds, baselines=False, out=folder / "studies"
                )
                library.add(study)
        exported = export(library, folder / "exported")
        program = _built(exported, folder)
        for shape in shapes:
            rows.append(_race(library, program, shape))
            c, python = (rows[-1][name] * 1e6 for name in ("c", "python"))
            name = "x".join(map(str, shape))
            print(f"{name:>14}: C {c:9.3f} us, Python {python:9.3f} us, ratio {rows[-1]['ratio']:.3f}", flush=True)
    if options.json is not None:
        save(options.json, rows)


def _race(library: Library, program: Path, shape: tuple[int, int, int]) -> dict[str, Any]:
    choice = library.choose(dg.gemm(*shape), "cpu")
    if choice.entry is None:
        raise DeepgenError(f"{choice.operator.describe()} is not served by a kernel: {choice.reason}")
    kernel = choice.load()
    m, n, k = shape
    a, b, out = (np.zeros(s, np.float32) for s in ((m, k), (k, n), (m, n)))
    calls = max(20, min(20_000, int(0.05 / choice.entry.seconds)))
    c, python = [], []
    for _ in range(TURNS):
        done = subprocess.run([str(program), *map(str, (*shape, calls))], capture_output=True, text=True, check=False)
        if done.returncode:
            raise DeepgenError(f"the C program failed: {done.stdout}")
        c.append(float(done.stdout))
        kernel(a, b, out=out)
        started = time.perf_counter()
        for _ in range(calls):
            kernel(a, b, out=out)
        python.append((time.perf_counter() - started) / calls)
    ratio = median(one / other for one, other in zip(c, python, strict=True))
    return {"shape": list(shape), "c": median(c), "python": median(python), "ratio": ratio}


def _built(exported: Exported, folder: Path) -> Path:
    (folder / "calls.c").write_text(_PROGRAM)
    where = exported.folder
    command = ["cc", "-O2", "calls.c", "-o", "calls", f"-I{where / 'include'}", f"-L{where / 'lib'}"]
    command += [f"-l{exported.name}", f"-Wl,-rpath,{where / 'lib'}"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "calls"


def _sizes(text: str) -> tuple[int, int, int]:
    try:
        m, n, k = (int(size) for size in text.split("x"))
    except ValueError:
        raise SystemExit(f"--shape {text}: give it as MxNxK") from None
    return m, n, k


if __name__ == "__main__":
    run_main(main)
