"""Instructions of a product of 256 x 256 x 256 on RISC-V, counted under qemu: ours, tuned, and what others need.

    python benchmarks/riscv_gemm.py [--trials 60] [--roots FOLDER]

Counts are raw and weighted by the table `lmul`: both are proxies, not times. FOLDER holds packages of Debian 13,
unpacked with `dpkg -x`: in FOLDER/gcc those of this machine that gcc-14-riscv64-linux-gnu needs (with its cpp, libc6,
libgmp10, libmpfr6, libmpc3, libisl23, libzstd1, zlib1g), in FOLDER/openblas those for riscv64 of libopenblas0-pthread,
libc6, libgfortran5, libgcc-s1 and libatomic1. Without them gcc and OpenBLAS are left out.
Writes benchmarks/results/riscv_gemm.json.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import deepgen
from common import run_main, save
from deepgen import targets
from deepgen.operators import gemm
from deepgen.run.measure import Task, open_runner
from deepgen.run.riscv.counts import Counts
from deepgen.run.riscv.place import COUNTS
from deepgen.run.riscv.qemu import Qemu
from deepgen.targets import Riscv
from deepgen.targets.riscv.costs import TABLES
from deepgen.toolchains import build_once, required
from deepgen.vocabulary import Arg, DeepgenError, Kernel, LaunchPlan, ScalarArg, Source, Step, TensorArg

RESULTS = Path(__file__).parent / "results" / "riscv_gemm.json"
SIZE = 256
OPERATOR = gemm(SIZE, SIZE, SIZE)
COSTS = TABLES["lmul"]
HEAD = "void plain(const float *restrict A, const float *restrict B, float *restrict C, long M, long N, long K)"
LOOPS = {
    "rows of B": """
    for (long i = 0; i < M; i++) {
        for (long j = 0; j < N; j++) C[i * N + j] = 0;
        for (long k = 0; k < K; k++)
            for (long j = 0; j < N; j++) C[i * N + j] += A[i * K + k] * B[k * N + j];
    }
""",
    "dot products": """
    for (long i = 0; i < M; i++)
        for (long j = 0; j < N; j++) {
            float sum = 0;
            for (long k = 0; k < K; k++) sum += A[i * K + k] * B[k * N + j];
            C[i * N + j] = sum;
        }
""",
}
OPENBLAS = """
#include <stdio.h>
#include <stdlib.h>
void cblas_sgemm(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *, int);
enum { S = %(size)d };
static float a[S * S], b[S * S], c[S * S];
int main(void) {
    for (int i = 0; i < S * S; i++) a[i] = (float)(i * 7 %% 13 - 6), b[i] = (float)(i * 5 %% 11 - 5);
    for (int run = 0; run < 2; run++) {
        if (run) __asm__ volatile("slti x0, x0, 0x123" ::: "memory");
        cblas_sgemm(101, 111, 111, S, S, S, 1, a, S, b, S, 0, c, S);
        if (run) __asm__ volatile("slti x0, x0, 0x124" ::: "memory");
    }
    for (int i = 0; i < S; i += 5)
        for (int j = 0; j < S; j++) {
            float sum = 0;
            for (int k = 0; k < S; k++) sum += a[i * S + k] * b[k * S + j];
            if (sum != c[i * S + j]) return 3;
        }
    return 0;
}
"""


def row(who: str, how: str, instructions: int, weighted: float) -> dict[str, Any]:
    return {"who": who, "how": how, "instructions": instructions, "weighted": weighted}


def measured(kernel: Kernel, target: Riscv) -> tuple[int, float]:
    """Raw and weighted counts of a kernel that is right."""
    runner = open_runner(Task(OPERATOR, target))
    try:
        found = runner.measure(kernel, build_once(kernel, target))
    finally:
        runner.close()
    if not found.ok:
        raise DeepgenError(f"{kernel.name}: {found.verdict} {found.detail}")
    told: dict[str, Any] = dict(found.conditions)
    return int(told["instructions"]), float(told["cycles"])


def plain(text: str, extra: tuple[Source, ...] = ()) -> Kernel:
    args: list[Arg] = [*map(TensorArg, "ABC"), *(ScalarArg("i64", size) for size in "MNK")]
    return Kernel("plain", "c", (Source("plain.c", text), *extra), (), LaunchPlan((Step("plain", tuple(args)),)))


def by_clang(target: Riscv, loops: str) -> Kernel:
    return plain(f"{HEAD} {{ {loops} }}")


def by_gcc(root: Path) -> Callable[[Riscv, str], Kernel]:
    """gcc's compiler proper runs with the libraries of its own release; its assembly is linked like any other."""
    loader = next(root.glob("usr/lib/ld-linux*.so.*"))
    compiler = next(root.glob("usr/libexec/gcc-cross/riscv64-linux-gnu/*/cc1"))
    libraries = ":".join(str(folder) for folder in root.glob("usr/lib/*-linux-gnu"))

    def kernel(target: Riscv, loops: str) -> Kernel:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            (place / "plain.c").write_text(f"{HEAD} {{ {loops} }}")
            flags = ("-O3", f"-march={target.march}", "-mabi=lp64d", "-mrvv-max-lmul=dynamic")
            argv = (str(loader), "--library-path", libraries, str(compiler), "-quiet", *flags, "plain.c", "-o", "gcc.s")
            subprocess.run(argv, cwd=place, check=True)
            text = (place / "gcc.s").read_text()
        return plain('__asm__(".include \\"gcc.s\\"");', (Source("gcc.s", text),))

    return kernel


def by_openblas(root: Path, target: Riscv) -> Counts:
    """OpenBLAS as it is installed, told which kernels to use: it does not find them under qemu by itself."""
    library = next(root.glob("usr/lib/riscv64-linux-gnu/openblas-pthread/libopenblas.so.0"))
    clang = required("clang", "OpenBLAS cannot be called")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        emulator = Qemu(target, place)
        (place / "call.c").write_text(OPENBLAS % {"size": SIZE})
        linked = ("-fuse-ld=lld", str(library), "-Wl,--allow-shlib-undefined", "-o", "call")
        subprocess.run(
            (clang, "--target=riscv64-linux-gnu", "-march=rv64gcv", "-O1", "call.c", *linked), cwd=place, check=True
        )
        core = f"OPENBLAS_CORETYPE=RISCV64_ZVL{target.vlen}B"
        options = ("-E", core, "-E", "OPENBLAS_NUM_THREADS=1")
        loader = (str(next(root.glob("usr/lib/ld-linux-riscv64*.so.*"))), "--library-path")
        loaded = (*loader, f"{library.parent}:{root}/usr/lib/riscv64-linux-gnu", "./call")
        with emulator.counter.counting(place) as counting:
            subprocess.run((emulator.path, *emulator.processor, *options, *counting, *loaded), cwd=place, check=True)
        return Counts.from_text((place / COUNTS).read_text())


def ours(target: Riscv, trials: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    with tempfile.TemporaryDirectory() as out:
        study = deepgen.tune(OPERATOR, target=target, trials=trials, out=out, transfer=False, second_look=False)
        right = [trial for trial in study.trials() if trial.ok]
        best = study.best().trial
    told = [dict(trial.measurement.conditions) for trial in right]
    rows = [
        {"who": "deepgen", "how": how, "instructions": found["instructions"], "weighted": found["cycles"]}
        for how, found in (
            ("the winner", dict(best.measurement.conditions)),
            ("the worst valid of the search", max(told, key=lambda one: float(str(one["cycles"])))),
        )
    ]
    return rows, dict(best.config)


def at(target: Riscv, trials: int, roots: Path | None) -> dict[str, Any]:
    rows, config = ours(target, trials)
    compilers: dict[str, Callable[[Riscv, str], Kernel]] = {"clang -O3": by_clang}
    if roots is not None:
        compilers["gcc 14 -O3 -mrvv-max-lmul=dynamic"] = by_gcc(roots / "gcc")
    for who, make in compilers.items():
        for how, loops in LOOPS.items():
            rows.append(row(who, how, *measured(make(target, loops), target)))
    if roots is not None:
        counts = by_openblas(roots / "openblas", target)
        how = f"sgemm, core type RISCV64_ZVL{target.vlen}B"
        rows.append(row("OpenBLAS", how, counts.instructions, counts.cycles(COSTS)))
    winner = rows[0]
    for one in rows:
        one["over_ours"] = {key: one[key] / winner[key] for key in ("instructions", "weighted")}
    return {"target": target.name, "config": config, "rows": rows}


def show(results: list[dict[str, Any]]) -> None:
    for one in results:
        title = f"{OPERATOR.describe()} on {one['target']}: instructions in millions, counted under qemu, not times"
        table = Table("who", "how", "raw", "over ours", "weighted by LMUL", "over ours", title=title)
        for told in one["rows"]:
            raw, weighted = told["instructions"] / 1e6, told["weighted"] / 1e6
            over = told["over_ours"]
            table.add_row(
                told["who"], told["how"], f"{raw:.2f}", f"{over['instructions']:.2f}", f"{weighted:.2f}",
                f"{over['weighted']:.2f}",
            )  # fmt: skip
        Console(width=140).print(table)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--trials", type=int, default=60)
    arguments.add_argument("--roots", type=Path)
    given = arguments.parse_args()
    results = []
    for bits in (128, 256):
        target = targets.resolve(f"riscv:rv64gcv_zvl{bits}b")
        assert isinstance(target, Riscv)
        results.append(at(target, given.trials, given.roots and given.roots.absolute()))
    show(results)
    save(RESULTS, {"operator": OPERATOR.to_json(), "trials": given.trials, "costs": COSTS.name, "results": results})


if __name__ == "__main__":
    run_main(main)
