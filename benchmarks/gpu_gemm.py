"""GEMM on an NVIDIA GPU: a family of ours, torch, and the best of cuBLASLt, interleaved and with a cold L2.

The shapes are the 21 GEMM and 5 batched ones of data/suites.json, layout nt, standard-normal inputs. Ours starts from
known configs (`h200/<family>_<dtype>_configs.json`, or none) and is tuned for `--tune` seconds in all. cuBLASLt is
given 64 MiB and is the fastest of all algorithms that its heuristic returns for 64 requested. Every result is checked
against float64, before timing and after. Needs torch, numpy and cuda-bindings; no installation of deepgen.

    python benchmarks/gpu_gemm.py --tune 130 --out benchmarks/h200
    python benchmarks/gpu_gemm.py --family sm90_gemm --dtype bf16 --tune 130 --out benchmarks/h200
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "h200"), str(HERE.parent / "src")]

import simt_candidates as simt  # noqa: E402

from deepgen.baselines.cublaslt import CublasLt  # noqa: E402
from deepgen.generators import by_name  # noqa: E402
from deepgen.generators.base import Generator  # noqa: E402
from deepgen.measure.gpu_driver import Driver  # noqa: E402
from deepgen.operators import Gemm  # noqa: E402
from deepgen.targets import Cuda  # noqa: E402
from deepgen.vocabulary import DeepgenError, Kernel  # noqa: E402
from gpu_bench import DTYPES, FLUSH_BYTES, Bench, Builder, Config, Loaded, Shape, key_of, open_device, operator  # noqa: E402

SUITES = HERE.parent / "data/suites.json"
ROUNDS, LEAST_GEOMEAN, LEAST = 31, 1.10, 0.95
FINALISTS = 4


def shapes() -> list[Shape]:
    suite = json.loads(SUITES.read_text())["gpu"]
    return [(1, m, n, k) for m, n, k in suite["gemm"]] + [tuple(s) for s in suite["batched_gemm"]]


class Tuner:
    """Finds our best kernel for a shape: known configs, then what a model or chance proposes, then around the best."""

    def __init__(self, family: Generator, builder: Builder, target: Cuda, driver: Driver) -> None:
        self.family, self._builder, self._target, self._driver = family, builder, target, driver

    def kernel(self, problem: Gemm, config: Config) -> Kernel:
        return self.family.emit(problem, self._target, config)

    def start(self, problem: Gemm, config: Config) -> Future[bytes]:
        return self._builder.start(self.kernel(problem, config))

    def proposed(self, shape: Shape, problem: Gemm, known: list[Config], most: int) -> list[Config]:
        if self.family.name == "simt_gemm":
            found = simt.candidates(shape, most)
        else:
            space = self.family.space(problem, self._target)
            found = [dict(c) for c in (self.family.default(problem, self._target), *space.sample(most, 1))]
        return list({key_of(c): c for c in (*known, *found)}.values())

    def around(self, problem: Gemm, config: Config) -> list[Config]:
        if self.family.name == "simt_gemm":
            return [c for c in (*simt.turned(config), *simt.neighbours(config)) if simt.valid(c)]
        return [dict(c) for c in self.family.space(problem, self._target).neighbors(config)]

    def best(self, bench: Bench, first: list[Config], seconds: float) -> tuple[list[tuple[float, Config]], int]:
        """The best configs with their microseconds, and how many were tried."""
        ends, seen = time.monotonic() + seconds, set[str]()
        found: list[tuple[float, Config]] = []
        least = min(len(first), FINALISTS)
        batch = first
        while batch:
            for c in batch:
                self.start(bench.problem, c)
            for c in batch:
                if len(seen) >= least and time.monotonic() > ends:
                    batch = []
                    break
                seen.add(key_of(c))
                us = self._microseconds(bench, c, found[0][0] if found else 0.0)
                if us is not None:
                    found.append((us, c))
                    found.sort(key=lambda pair: pair[0])
            else:
                if time.monotonic() > ends:
                    break
                near = {key_of(c): c for _, good in found[:3] for c in self.around(bench.problem, good)}
                batch = [c for key, c in near.items() if key not in seen][:40]
        finals = []
        for _, c in found[:FINALISTS]:
            run = self.load(bench, c)
            finals.append((statistics.median(bench.time(run, 20)), c))
            run.close()
        return sorted(finals, key=lambda pair: pair[0]) + found[FINALISTS:12], len(seen)

    def load(self, bench: Bench, config: Config) -> Loaded:
        kernel = self.kernel(bench.problem, config)
        return Loaded(bench, kernel, self._builder.start(kernel).result(), self._driver)

    def _microseconds(self, bench: Bench, c: Config, beat: float) -> float | None:
        try:
            run = self.load(bench, c)
        except (RuntimeError, DeepgenError) as error:
            print("not built:", bench.shape, str(error)[:100])
            return None
        if not bench.right(run):
            print("wrong result:", bench.shape, c)
            return None
        us = statistics.median(bench.time(run, 12, beat))
        run.close()
        return us


def interleaved(bench: Bench, calls: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Microseconds of single calls, in random order within each round, each with a cold L2."""
    torch = bench.torch
    taken: dict[str, list[float]] = {name: [] for name in calls}
    order, dice = list(calls), random.Random(1)
    for _ in range(ROUNDS):
        dice.shuffle(order)
        for name in order:
            bench.flush.zero_()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            calls[name]()
            end.record()
            end.synchronize()
            taken[name].append(begin.elapsed_time(end) * 1e3)
    return taken


def measure(bench: Bench, tuner: Tuner, first: list[Config], seconds: float) -> dict[str, Any]:
    problem = bench.problem
    found, tried = tuner.best(bench, first, seconds)
    config = found[0][1]
    calls: dict[str, Callable[[], Any]] = {
        "ours": tuner.load(bench, config),
        "torch": bench.peer,
        "cublaslt": CublasLt().prepare(problem, bench.places, 1),
    }
    if problem.a.startswith("f8") or problem.a == "i8":
        del calls["torch"]  # its products of eight bits are other ones
    before = {name: bench.right(call) for name, call in calls.items()}
    taken = interleaved(bench, calls)
    after = {name: bench.right(call) for name, call in calls.items()}
    us = {name: statistics.median(samples) for name, samples in taken.items()}
    return {
        "shape": list(bench.shape),
        "us": us,
        "low": {name: min(samples) for name, samples in taken.items()},
        "tflops": {name: problem.flops() / value / 1e6 for name, value in us.items()},
        "ratio": us["cublaslt"] / us["ours"],
        "ratio_torch": us.get("torch", us["cublaslt"]) / us["ours"],
        "correct": {name: before[name] and after[name] for name in calls},
        "config": config,
        "tried": tried,
        "next": [{"us": us, "config": c} for us, c in found[1:]],
    }


def conditions(torch: Any) -> dict[str, Any]:
    query = "name,driver_version,clocks.sm,clocks.mem,power.draw,power.limit,temperature.gpu"
    asked = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip().split(", ")
    return {"torch": torch.__version__, "cuda": torch.version.cuda, **dict(zip(query.split(","), told, strict=False))}


def show(rows: list[dict[str, Any]]) -> dict[str, Any]:
    names = tuple(rows[0]["us"])
    print(f"{'(batch, M, N, K)':>26} " + " ".join(f"{n + ' us':>12}" for n in names) + "  TFLOP/s   ratio")
    for row in rows:
        times = " ".join(f"{row['us'][n]:12.1f}" for n in names)
        wrong = "" if all(row["correct"].values()) else f"  WRONG {row['correct']}"
        print(f"{tuple(row['shape'])!s:>26} {times} {row['tflops']['ours']:8.1f} {row['ratio']:7.3f}{wrong}")
    ratios = [row["ratio"] for row in rows]
    best = [min(row["ratio"], row["ratio_torch"]) for row in rows]
    summary = {
        "geomean": statistics.geometric_mean(ratios),
        "least": min(ratios),
        "geomean_against_the_best_of_both": statistics.geometric_mean(best),
        "least_against_the_best_of_both": min(best),
        "all_correct": all(all(row["correct"].values()) for row in rows),
    }
    reached = summary["geomean"] >= LEAST_GEOMEAN and summary["least"] >= LEAST
    print(f"over the best of cuBLASLt: geometric mean {summary['geomean']:.3f}, least {summary['least']:.3f}")
    print(f"over the better of it and torch: {summary['geomean_against_the_best_of_both']:.3f}, least {min(best):.3f}")
    print(f"the aim of {LEAST_GEOMEAN} and no shape under {LEAST} is {'' if reached else 'not '}reached")
    return summary


def known_configs(file: Path, todo: Iterable[Shape]) -> dict[Shape, list[Config]]:
    known = json.loads(file.read_text()) if file.exists() else {}
    return {shape: known.get(str(list(shape)), []) for shape in todo}


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="simt_gemm")
    parser.add_argument("--dtype", default="f32", choices=DTYPES)
    parser.add_argument("--c", help="dtype of the result, where it is another")
    parser.add_argument("--out", type=Path, default=HERE / "h200")
    parser.add_argument("--tune", type=float, default=130.0, help="seconds for all shapes; 0: the known configs only")
    parser.add_argument("--proposals", type=int, default=30, help="configs added to the known ones")
    parser.add_argument("--default", action="store_true", help="ours is what the family takes without search")
    parser.add_argument("--search", action="store_true", help="only look for configs, and write those down")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of shapes in the suite's order, from 0")
    parser.add_argument("--cores", type=int, default=16)
    options = parser.parse_args()
    builder, target, driver = open_device(options.cores)
    tuner = Tuner(by_name(options.family), builder, target, driver)
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    name = options.family if options.dtype == "f32" else f"{options.family}_{options.dtype}"
    todo = [s for i, s in enumerate(shapes()) if options.only is None or i in options.only]
    problems = {shape: operator(shape, options.dtype, options.c) for shape in todo}
    known = known_configs(HERE / f"h200/{name}_configs.json", todo)
    proposals = options.proposals if options.tune else 0
    first = {s: tuner.proposed(s, problems[s], known[s], proposals) for s in todo}
    if options.default:
        first = {s: [dict(tuner.family.default(problems[s], target))] for s in todo}
        options.tune = 0.0
    for shape in todo:
        for config in first[shape]:
            tuner.start(problems[shape], config)
    if options.search:
        found = {}
        for shape in todo:
            bench = Bench(shape, problems[shape], flush)
            best, tried = tuner.best(bench, first[shape], options.tune / len(todo))
            found[str(list(shape))] = best
            print(shape, tried, " ".join(f"{us:.1f}" for us, _ in best[:4]), flush=True)
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / f"{name}_search.json").write_text(json.dumps(found))
        return
    seen, rows = {"begin": conditions(torch)}, []
    for shape in todo:
        bench = Bench(shape, problems[shape], flush)
        rows.append(measure(bench, tuner, first[shape], options.tune / len(todo)))
        print(shape, f"{rows[-1]['ratio']:.3f}", rows[-1]["tried"], flush=True)
        del bench
        torch.cuda.empty_cache()
    seen["end"] = conditions(torch)
    summary = show(rows)
    told = {"command": " ".join(sys.argv), "conditions": seen, "summary": summary, "rows": rows}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{name}.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
