"""f32 GEMM by multiply-adds on an NVIDIA GPU: ours, torch, and the best of cuBLASLt, interleaved and with a cold L2.

The shapes are the 21 GEMM and 5 batched ones of data/suites.json, layout nt, standard-normal inputs. Ours starts from
the configs in h200/simt_configs.json and is tuned around them for `--tune` seconds in all. cuBLASLt is given 64 MiB and
the fastest of all algorithms that its heuristic returns for 64 requested. Every result is checked against float64,
before timing and after. Needs torch, numpy and cuda-bindings; no installation of deepgen.

    python benchmarks/gpu_gemm.py --tune 130 --out benchmarks/h200
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "h200"), str(HERE.parent / "src")]

from simt_sweep import Bench, Builder, Config, Loaded, Shape, neighbours, operator, turned, valid  # noqa: E402

from deepgen.baselines.cublaslt import CublasLt  # noqa: E402

CONFIGS = HERE / "h200/simt_configs.json"
SUITES = HERE.parent / "data/suites.json"
ROUNDS, LEAST_GEOMEAN, LEAST = 31, 1.10, 0.95
TOLERANCE = 1e-5  # of the norm of the difference from float64, over the norm; f32 lands below 2e-6
FLUSH_BYTES = 256 << 20


def shapes() -> list[Shape]:
    suite = json.loads(SUITES.read_text())["gpu"]
    return [(1, m, n, k) for m, n, k in suite["gemm"]] + [tuple(s) for s in suite["batched_gemm"]]


class Tuner:
    """Finds our best kernel for a shape: the known configs, then all that differ from the best by one knob."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder

    def start(self, shape: Shape, configs: list[Config]) -> None:
        for c in configs:
            self._builder.start(operator(shape), c)

    def best(self, bench: Bench, configs: list[Config], seconds: float) -> tuple[Config, int]:
        ends, seen = time.monotonic() + seconds, set[str]()
        found: list[tuple[float, Config]] = []
        for some in (configs, None, None):
            batch = some or [c for c in self._around(found) if json.dumps(c, sort_keys=True) not in seen]
            self.start(bench.shape, batch)
            for c in batch:
                if some is None and time.monotonic() > ends:
                    break
                seen.add(json.dumps(c, sort_keys=True))
                us = self._microseconds(bench, c, found[0][0] if found else 0.0)
                if us is not None:
                    found.append((us, c))
                    found.sort(key=lambda pair: pair[0])
        finals = [(statistics.median(bench.time(self.load(bench, c), 20)), i) for i, (_, c) in enumerate(found[:3])]
        return found[min(finals)[1]][1], len(seen)

    @staticmethod
    def _around(found: list[tuple[float, Config]]) -> list[Config]:
        return [c for _, best in found[:2] for c in (*turned(best), *neighbours(best)) if valid(c)]

    def load(self, bench: Bench, c: Config) -> Loaded:
        gemm = operator(bench.shape)
        return Loaded(bench, gemm, c, self._builder.start(gemm, c).result()[0])

    def _microseconds(self, bench: Bench, c: Config, beat: float) -> float | None:
        try:
            run = self.load(bench, c)
        except RuntimeError:
            return None
        if not right(bench, run):
            print("wrong result:", bench.shape, c)
            return None
        us = statistics.median(bench.time(run, 12, beat))
        run.close()
        return us


def right(bench: Bench, call: Callable[[], Any]) -> bool:
    bench.c.fill_(float("nan"))
    call()
    return bench.error() < TOLERANCE


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


def measure(shape: Shape, tuner: Tuner, configs: list[Config], seconds: float, flush: Any) -> dict[str, Any]:
    bench, gemm = Bench(shape, flush), operator(shape)
    config, tried = tuner.best(bench, configs, seconds)
    tensors = {
        name: SimpleNamespace(address=t.data_ptr()) for name, t in zip("ABC", (bench.a, bench.b, bench.c), strict=True)
    }
    calls: dict[str, Callable[[], Any]] = {
        "ours": tuner.load(bench, config),
        "torch": bench.peer,
        "cublaslt": CublasLt().prepare(gemm, tensors, 1),
    }
    before = {name: right(bench, call) for name, call in calls.items()}
    taken = interleaved(bench, calls)
    after = {name: right(bench, call) for name, call in calls.items()}
    us = {name: statistics.median(samples) for name, samples in taken.items()}
    return {
        "shape": list(shape),
        "us": us,
        "low": {name: min(samples) for name, samples in taken.items()},
        "tflops": {name: gemm.flops() / value / 1e6 for name, value in us.items()},
        "ratio": us["cublaslt"] / us["ours"],
        "ratio_torch": us["torch"] / us["ours"],
        "correct": {name: before[name] and after[name] for name in calls},
        "config": config,
        "tried": tried,
    }


def conditions(torch: Any) -> dict[str, Any]:
    query = "name,driver_version,clocks.sm,clocks.mem,power.draw,power.limit,temperature.gpu"
    asked = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip().split(", ")
    return {"torch": torch.__version__, "cuda": torch.version.cuda, **dict(zip(query.split(","), told, strict=False))}


def show(rows: list[dict[str, Any]]) -> dict[str, Any]:
    names = ("ours", "torch", "cublaslt")
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


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "h200")
    parser.add_argument("--tune", type=float, default=130.0, help="seconds for all shapes; 0: the known configs only")
    parser.add_argument("--cores", type=int, default=16)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    major, minor = torch.cuda.get_device_capability()
    tuner = Tuner(Builder(f"sm_{major}{minor}" + ("a" if major >= 9 else ""), options.cores))
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    known = json.loads(CONFIGS.read_text())
    todo = shapes()
    for shape in todo:
        tuner.start(shape, known[str(list(shape))])
    seen = {"begin": conditions(torch)}
    rows = []
    for shape in todo:
        rows.append(measure(shape, tuner, known[str(list(shape))], options.tune / len(todo), flush))
        print(shape, f"{rows[-1]['ratio']:.3f}", flush=True)
        torch.cuda.empty_cache()
    seen["end"] = conditions(torch)
    summary = show(rows)
    told = {"command": " ".join(sys.argv), "conditions": seen, "summary": summary, "rows": rows}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "simt_gemm.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
