"""Which counters does this machine's GPU give? A short bf16 search, and the counters of its best kernels.

    PYTHONPATH=src python benchmarks/h200/counters_check.py --out benchmarks/h200/counters_check.json

Prints what was counted and what is missing, with the reason; a machine without ncu is told so and is no failure.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "src")]

import deepgen as dg  # noqa: E402
from deepgen.toolchains import survey  # noqa: E402
from deepgen.tuning.counting import count  # noqa: E402

Row = dict[str, Any]


def counted(study: dg.Study, counters: str, top: int, seconds: float) -> Row:
    """The counters of the best kernels, as many as the time is likely to suffice for."""
    started = time.monotonic()
    first = count(study, counters, 1, say=print)
    each = max(time.monotonic() - started, 1e-3)
    fitting = max(1, min(top, int(seconds / each)))
    whole = (
        count(study, counters, fitting, say=print) if fitting > 1 and first.trials[0].measurement.counters else first
    )
    rows = [
        {"trial": t.id, "seconds": t.seconds, "config": dict(t.config), "counters": dict(t.measurement.counters)}
        for t in whole.trials
    ]
    return {"seconds_a_kernel": each, "kernels": rows, "missing": dict(whole.missing)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Count events of a small GEMM study's best kernels.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--target", default="cuda:native")
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--top", type=int, default=12)
    parser.add_argument("--counters", default="default")
    parser.add_argument("--seconds", type=float, default=55.0, help="for all of it")
    given = parser.parse_args()
    began = time.monotonic()
    report: Row = {"ncu": None, "error": None}
    try:
        report["ncu"] = next(
            {"version": tool.version, "path": tool.path, "problem": tool.problem}
            for tool in survey()
            if tool.name == "ncu"
        )
        print("ncu:", report["ncu"])
        with tempfile.TemporaryDirectory() as folder:
            dtype = "bf16" if given.target.startswith("cuda") else "f32"
            study = dg.tune(
                dg.gemm(given.size, given.size, given.size, dtype=dtype, layout="nt"),
                target=given.target,
                trials=given.trials,
                time_budget=given.seconds / 2,
                keep_top=2,
                baselines=False,
                out=folder,
            )
            report["trials"] = len(study.trials())
            report["search_seconds"] = time.monotonic() - began
            left = given.seconds - report["search_seconds"]
            report |= counted(study, given.counters, given.top, left)
    except Exception as error:  # the report is wanted in any case
        report["error"] = f"{type(error).__name__}: {error}"
        traceback.print_exc()
    report["total_seconds"] = time.monotonic() - began
    if report.get("kernels"):
        for name, value in report["kernels"][0]["counters"].items():
            print(f"{name:70} {value:.6g}")
    for event, why in (report.get("missing") or {}).items():
        print(f"missing {event}: {why}")
    print(f"{len(report.get('kernels') or [])} kernels in {report['total_seconds']:.1f} s")
    if given.out is not None:
        given.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
