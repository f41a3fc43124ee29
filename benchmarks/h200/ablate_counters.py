"""Hardware counters of the kernels that ablate.py looks at, and of cuBLASLt's beside them, read by ncu.

ncu runs this file again (`--inside`), which calls each kernel once between marks; caches are emptied before each,
clocks are left alone. Writes OUT/ablate_counters.json, or says why there are none.

    python benchmarks/h200/ablate_counters.py --results benchmarks/h200 --out benchmarks/h200
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "src")]

from ablate import Ablation, Case, arguments, under_par  # noqa: E402

from common import run_main  # noqa: E402
from deepgen.baselines.cublaslt import CublasLt  # noqa: E402
from deepgen.vocabulary import DeepgenError  # noqa: E402
from gpu_bench import FLUSH_BYTES, Bench, gpu_torch, open_device  # noqa: E402

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


def inside(cases: list[Case], cache: Path | None) -> None:
    """What ncu watches: ours and cuBLASLt's of each case in turn."""
    torch = gpu_torch()
    profiler: Any = torch.cuda.profiler
    with open_device(16, cache) as (builder, target, driver):
        flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        ablation = Ablation(builder, target, driver, flush)
        for case in cases:
            builder.start(ablation.kernel(case))
        for case in cases:
            bench = Bench(case.problem, flush)
            ours = ablation.load(bench, ablation.kernel(case))
            theirs = CublasLt().prepare(case.problem, bench.places, 1)
            if not bench.right(ours):
                raise DeepgenError(f"{case.run} {case.problem.describe()}: ours is wrong")
            torch.cuda.synchronize()
            profiler.start()
            ours()
            theirs()
            torch.cuda.synchronize()
            profiler.stop()
            torch.cuda.empty_cache()


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


def count(cases: list[Case], again: list[str]) -> list[dict[str, Any]]:
    """A row for each case, which this file called again with these words finds, too. Raises what ncu said instead."""
    ncu = shutil.which("ncu") or "/usr/local/cuda/bin/ncu"
    asked = [ncu, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"]
    asked += ["--profile-from-start", "off", "--target-processes", "application-only"]
    asked += ["--metrics", ",".join(METRICS.values())]
    words = [sys.executable, __file__, "--inside", *again]
    try:
        done = subprocess.run([*asked, *words], capture_output=True, text=True, check=False)
    except OSError as error:
        raise DeepgenError(f"no counters: {error}") from None
    found = paired(read(done.stdout))
    if len(found) != len(cases):
        raise DeepgenError(f"no counters: {(done.stdout + done.stderr)[-3000:]}")
    return [{"run": c.run, "shape": c.shape, "config": c.config, **f} for c, f in zip(cases, found, strict=True)]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = under_par(options.results, options.par, options.runs, options.most)
    if options.inside:
        inside(cases, options.cache)
        return
    rows = count(cases, sys.argv[1:])
    for row in rows:
        for who in ("ours", "cublaslt"):
            words = " ".join(f"{k} {v:.4g}" for k, v in row[who].items() if isinstance(v, float))
            print(row["run"], row["shape"], who, words, row[who]["kernel"][:60])
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "ablate_counters.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    run_main(main)
