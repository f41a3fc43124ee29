"""What limits the kernels that fall short of cuBLASLt: each is timed whole and with parts of it left out.

Of every result of gpu_gemm.py the shapes under par, by the config that won there (Hopper family): whole; without
fetching tiles (the first fill of the stages is multiplied over and over); without products; without storing results;
launched and left at once; and whole on zeros, which costs the same work and less power. cuBLASLt beside them, and the
clock that the kernel itself sees. Parts are left out by editing the emitted text, so that the product has no trace of
this. What is left out changes results: only whole kernels are checked. Writes OUT/ablate.json.
Hardware counters of the same kernels: ablate_counters.py. What both come to: ablate_limiter.py.

    python benchmarks/h200/ablate.py --results benchmarks/h200 --out benchmarks/h200
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "src")]

from common import run_main  # noqa: E402
from deepgen.baselines.cublaslt import CublasLt  # noqa: E402
from deepgen.generators import by_name  # noqa: E402
from deepgen.operators import Gemm  # noqa: E402
from deepgen.targets import Cuda  # noqa: E402
from deepgen.targets.gpu_driver import Driver  # noqa: E402
from deepgen.vocabulary import DeepgenError, Kernel, LaunchPlan, ScalarArg, Source, TensorArg  # noqa: E402
from gpu_bench import (  # noqa: E402
    FLUSH_BYTES,
    Bench,
    Builder,
    Config,
    Loaded,
    conditions,
    gpu_torch,
    interleaved,
    open_device,
    sources,
)
from gpu_known import fitting  # noqa: E402

FAMILY, RUNS = "sm90_gemm", "gemm_*.json"
ROUNDS = 15
Edit = tuple[str, str, str]  # in which source, what, and what takes its place
# Nothing is kept in registers over the kernel: there may be none to spare.
_CLOCK = 'asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles)); asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));'
_READ = f"if (blockIdx.x == 0 && threadIdx.x == 0) {{ i64 cycles, ns, *told = (i64*)bias; {_CLOCK} "
EDITS: dict[str, tuple[Edit, ...]] = {
    "products": (
        ("gemm_sm90.cu", "u64 use_a = ", "int fetched = 0;\n    u64 use_a = "),
        (
            "gemm_sm90.cu",
            "barrier_expect(full, FETCHED_BYTES);",
            "if (fetched++ >= STAGES) { barrier_arrive(full); at.advance(); continue; }\n"
            "            barrier_expect(full, FETCHED_BYTES);",
        ),
    ),
    "copies": (("products.h", "int add) {\n", "int add) {\n    return;\n"),),
    "no_stores": (
        ("hopper.h", "DG_DEVICE void put(const TensorMap* map, u32 from, int x, int y, int z) {\n", "{0}    return;\n"),
        ("epilogue.h", "if (row >= p.m || column >= p.n) return;", "return;"),
    ),
    "launch": (("gemm_sm90.cu", "extern __shared__ char memory[];", "return;\n    {0}"),),
    # A kernel without bias has room for an address: where cycles and nanoseconds are added up.
    "clocked": (
        ("gemm_sm90.cu", "extern __shared__ char memory[];", f"{{0}}\n    {_READ} told[0] = cycles, told[1] = ns; }}"),
        (
            "gemm_sm90.cu",
            "if (CLUSTER_K > 1) cluster_all_done();",
            f"{_READ} told[2] += cycles - told[0], told[3] += ns - told[1]; }}\n    {{0}}",
        ),
    ),
}


@dataclass(frozen=True)
class Case:
    """A shape under par in a run of the benchmark."""

    run: str
    problem: Gemm
    config: Config
    ratio: float

    @property
    def shape(self) -> list[int]:
        return [self.problem.batch, self.problem.m, self.problem.n, self.problem.k]


def edited(kernel: Kernel, edits: tuple[Edit, ...]) -> Kernel:
    """The kernel with parts of its text changed; each must be there once."""
    texts = {s.name: s.text for s in kernel.sources}
    for name, old, new in edits:
        found = texts[name].count(old)
        assert found == 1, f"{name} has {old!r} {found} times: the ablation must follow the source"
        texts[name] = texts[name].replace(old, new.replace("{0}", old))
    return replace(kernel, sources=tuple(Source(name, text) for name, text in texts.items()))


def told_at(kernel: Kernel, address: int) -> Kernel:
    """The kernel with an address in place of the bias, which follows C."""
    step = kernel.plan.steps[0]
    place = step.args.index(TensorArg("C")) + 1
    args = (*step.args[:place], ScalarArg("i64", address), *step.args[place + 1 :])
    plan: LaunchPlan = replace(kernel.plan, steps=(replace(step, args=args),))
    return replace(kernel, plan=plan)


def under_par(folder: Path, par: float, only: list[str] | None = None, most: int | None = None) -> list[Case]:
    """Shapes of the Hopper family under a ratio, in the order of the files; with `most` those furthest under it."""
    found = []
    for file in sorted(folder.glob(RUNS)):
        for row in json.loads(file.read_text())["rows"] if only is None or file.stem in only else ():
            ratio = row["ratio"].get("cublaslt", par)
            if ratio < par and row["family"] == FAMILY:
                found.append(Case(file.stem, Gemm.from_json(row["operator"]), row["config"], ratio))
    kept = sorted(found, key=lambda case: case.ratio)[:most]
    return [case for case in found if case in kept]


class Ablation:
    """Kernels of a case, whole and in part, on the device."""

    def __init__(self, builder: Builder, target: Cuda, driver: Driver, flush: Any) -> None:
        self.builder, self.target, self.driver, self.flush = builder, target, driver, flush

    def kernel(self, case: Case, edits: tuple[Edit, ...] = ()) -> Kernel:
        family = by_name(FAMILY)
        config = next(fitting(family.space(case.problem, self.target), case.config))
        return edited(family.emit(case.problem, self.target, config), edits)

    def start(self, case: Case) -> None:
        for edits in ((), *EDITS.values()):
            self.builder.start(self.kernel(case, edits))

    def load(self, bench: Bench, kernel: Kernel) -> Loaded:
        return Loaded(bench, kernel, self.builder.image(kernel), self.driver)

    def measure(self, case: Case) -> dict[str, Any]:
        bench = Bench(case.problem, self.flush)
        torch = bench.torch
        told = torch.zeros(4, dtype=torch.int64, device="cuda")
        calls: dict[str, Callable[[], Any]] = {"whole": self.load(bench, self.kernel(case))}
        for name, edits in EDITS.items():
            kernel = self.kernel(case, edits)
            calls[name] = self.load(bench, told_at(kernel, told.data_ptr()) if name == "clocked" else kernel)
        calls["cublaslt"] = CublasLt().prepare(case.problem, bench.places, 1)
        for name in ("whole", "clocked", "cublaslt"):
            if not bench.right(calls[name]):
                raise DeepgenError(f"{name} is wrong")
        us, mhz = {}, {}
        for inputs in ("drawn", "zeros"):
            told.zero_()
            taken = interleaved(bench, calls, ROUNDS)
            us[inputs] = {name: statistics.median(some) for name, some in taken.items()}
            cycles, ns = told.tolist()[2:]
            mhz[inputs] = cycles / max(ns, 1) * 1e3
            bench.a.zero_(), bench.b.zero_()
        return {
            "run": case.run,
            "shape": case.shape,
            "config": case.config,
            "ratio": case.ratio,
            "us": us,
            "mhz": mhz,
            "sources": sources((FAMILY,))[FAMILY],
        }


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Which cases are looked at, and where results go."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE, help="the folder of gpu_gemm.py's results")
    parser.add_argument("--runs", nargs="*", help="names of result files without their ending; all by default")
    parser.add_argument("--par", type=float, default=1.0, help="shapes under this ratio are looked at")
    parser.add_argument("--most", type=int, help="of these the ones furthest under it")
    parser.add_argument("--cache", type=Path, help="a folder of built kernels that other runs share")
    parser.add_argument("--out", type=Path, default=HERE)
    return parser


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--cores", type=int, default=16)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch = gpu_torch()
    cases = under_par(options.results, options.par, options.runs, options.most)
    rows = []
    with open_device(options.cores, options.cache) as (builder, target, driver):
        flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        ablation = Ablation(builder, target, driver, flush)
        for case in cases:
            ablation.start(case)
        for case in cases:
            try:
                rows.append(ablation.measure(case))
            except DeepgenError as error:
                print("not looked into:", case.run, case.problem.describe(), str(error)[:300], flush=True)
                continue
            us, zeros = rows[-1]["us"]["drawn"], rows[-1]["us"]["zeros"]
            words = " ".join(f"{name} {us[name]:.1f}/{zeros[name]:.1f}" for name in us)
            print(case.run, rows[-1]["shape"], words, {k: round(v) for k, v in rows[-1]["mhz"].items()}, flush=True)
            torch.cuda.empty_cache()
            found = {"conditions": {**conditions(), "l2": "cold", "rounds": ROUNDS}, "rows": rows}
            (options.out / "ablate.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    run_main(main)
