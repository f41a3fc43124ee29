"""What a call costs from C, through an exported library, beside the same kernel called from Python.

    python benchmarks/library_calls.py [--shape 64x64x64] [--library DIR] [--json FILE]

A library of one kernel is tuned within a few seconds, unless one is given that was tuned at these shapes. Both programs
call the kernel in a loop on the same arrays, so caches are warm; they take turns.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import deepgen as dg
from deepgen.libraries import Library
from deepgen.libraries.c.export import Exported, export
from deepgen.vocabulary import DeepgenError
from harness import Timed, alternate, parser, per_call, run_main, save, table
from harness.cases import shape

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
    words = parser(__doc__)
    words.add_argument("--shape", action="append", metavar="MxNxK", help="may be repeated")
    words.add_argument("--library", type=Path, help="a library with winners of these shapes")
    words.add_argument("--seconds", type=float, default=5.0, help="of tuning, for each shape")
    options = words.options()
    shapes = [shape(text)[1:] for text in options.shape or ("32x32x32", "128x128x128", "512x512x512")]
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        library = dg.library(options.library or folder / "library")
        for sizes in shapes:
            if options.library is None:
                study = dg.tune(
                    dg.gemm(*sizes), target="cpu", time_budget=options.seconds, baselines=False, out=folder / "studies"
                )
                library.add(study)
        exported = export(library, folder / "exported")
        program = _built(exported, folder)
        rows = [_race(library, program, sizes, options.seed) for sizes in shapes]
    print(table(("shape", "Python", "C", "ratio", "99% interval"), [(row.name, *row.cells) for row in rows]))
    save(options.json, rows)


def _race(library: Library, program: Path, sizes: tuple[int, int, int], seed: int) -> Timed:
    choice = library.choose(dg.gemm(*sizes), "cpu")
    if choice.entry is None:
        raise DeepgenError(f"{choice.operator.describe()} is not served by a kernel: {choice.reason}")
    kernel = choice.load()
    m, n, k = sizes
    a, b, out = (np.zeros(s, np.float32) for s in ((m, k), (k, n), (m, n)))
    calls = max(20, min(20_000, int(0.05 / choice.entry.seconds)))

    def from_c() -> float:
        done = subprocess.run([str(program), *map(str, (*sizes, calls))], capture_output=True, text=True, check=False)
        if done.returncode:
            raise DeepgenError(f"the C program failed: {done.stdout}")
        return float(done.stdout)

    taken = alternate({"C": from_c, "Python": per_call(lambda: kernel(a, b, out=out), calls)}, TURNS, seed=seed)
    return taken.beside("C", "Python", "x".join(map(str, sizes)))


def _built(exported: Exported, folder: Path) -> Path:
    (folder / "calls.c").write_text(_PROGRAM)
    where = exported.folder
    command = ["cc", "-O2", "calls.c", "-o", "calls", f"-I{where / 'include'}", f"-L{where / 'lib'}"]
    command += [f"-l{exported.name}", f"-Wl,-rpath,{where / 'lib'}"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "calls"


if __name__ == "__main__":
    run_main(main)
