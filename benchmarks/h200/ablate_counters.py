"""Hardware counters of the kernels that ablate.py looks at, and of cuBLASLt's beside them, read by ncu.

ncu runs this file again (`--inside`), which calls each kernel once between marks; caches are emptied before each,
clocks are left alone. Writes OUT/ablate_counters.json, or says why there are none.

    python benchmarks/h200/ablate_counters.py --results benchmarks/h200 --out benchmarks/h200
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "src")]

from ablate import Ablation, under_par  # noqa: E402

from deepgen.baselines.cublaslt import CublasLt  # noqa: E402
from gpu_bench import FLUSH_BYTES, Bench, open_device  # noqa: E402

OURS = "gemm"  # how the family's kernels are called
METRICS = {
    "ns": "gpu__time_duration.sum",
    "cycles": "sm__cycles_elapsed.max",
    "hz": "sm__cycles_elapsed.avg.per_second",
    "tensor_pct": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "l2_pct": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_pct": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_read": "dram__bytes_read.sum",
    "dram_written": "dram__bytes_write.sum",
    "l2_reads": "lrc__lts2lrc_sectors_op_read.sum",  # of 32 bytes, that the L2 cache served
    "sm_reads": "lrc__xbar2gpc_sectors_op_read.sum",  # that arrived: several multiprocessors may share one of the above
}


def inside(results: Path, runs: list[str] | None, par: float) -> None:
    """What ncu watches: ours and cuBLASLt's of each case in turn."""
    import torch

    builder, target, driver = open_device(16)
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    ablation, cases = Ablation(builder, target, driver, flush), list(under_par(results, par, runs))
    for case in cases:
        builder.start(ablation.kernel(case))
    profiler: Any = torch.cuda.profiler
    for case in cases:
        bench = Bench(case.problem, flush)
        ours = ablation.load(bench, ablation.kernel(case))
        theirs = CublasLt(fast_sums=case.fast_sums).prepare(case.problem, bench.places, 1)
        assert bench.right(ours), f"{case.run} {case.problem.describe()}: ours is wrong"
        torch.cuda.synchronize()
        profiler.start()
        ours()
        theirs()
        torch.cuda.synchronize()
        profiler.stop()
        torch.cuda.empty_cache()
    os._exit(0)  # without waiting for builds


def read(text: str) -> list[dict[str, Any]]:
    """ncu's table: a line of names, one of units, and one for each kernel."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    named = list(csv.DictReader(lines))[1:]
    return [{"kernel": row["Kernel Name"], **{k: _number(row.get(m, "")) for k, m in METRICS.items()}} for row in named]


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:  # a counter that this chip does not have
        return None


def paired(kernels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By case: ours, and the longest of those that cuBLASLt ran after it."""
    out: list[dict[str, Any]] = []
    for kernel in kernels:
        if kernel["kernel"].partition("(")[0] == OURS:
            out.append({"ours": kernel})
        elif kernel["ns"] >= out[-1].get("cublaslt", {"ns": 0.0})["ns"]:
            out[-1]["cublaslt"] = kernel
    return out


def count(results: Path, runs: list[str] | None, par: float) -> list[dict[str, Any]]:
    """A row for each case. Raises what ncu said where it read no counters."""
    again = [sys.executable, __file__, "--inside", "--results", str(results), "--par", str(par)]
    again += ["--runs", *runs] if runs else []
    ncu = shutil.which("ncu") or "/usr/local/cuda/bin/ncu"
    asked = [ncu, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"]
    asked += ["--profile-from-start", "off", "--metrics", ",".join(METRICS.values())]
    done = subprocess.run([*asked, *again], capture_output=True, text=True, check=False)
    cases, found = list(under_par(results, par, runs)), paired(read(done.stdout))
    if len(found) != len(cases):
        raise RuntimeError(f"no counters: {(done.stdout + done.stderr)[-3000:]}")
    return [{"run": c.run, "shape": c.shape, "config": c.config, **f} for c, f in zip(cases, found, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE, help="the folder of gpu_gemm.py's results")
    parser.add_argument("--runs", nargs="*", help="names of result files without their ending; all by default")
    parser.add_argument("--par", type=float, default=1.0, help="shapes under this ratio are looked at")
    parser.add_argument("--inside", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE)
    options = parser.parse_args()
    if options.inside:
        inside(options.results, options.runs, options.par)
    rows = count(options.results, options.runs, options.par)
    for row in rows:
        for who in ("ours", "cublaslt"):
            words = " ".join(f"{k} {v:.4g}" for k, v in row[who].items() if isinstance(v, float))
            print(row["run"], row["shape"], who, words, row[who]["kernel"][:60])
    (options.out / "ablate_counters.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
