"""Shapes that nobody tuned: a library of the suite's GEMMs against studies of their own and the vendor's library.

The shapes are drawn by a seed. For each, the kernel that the library chooses, the winner of a short study of that shape
and all baselines are timed side by side. Wanted: within 1.08 of the own study in the geometric mean, at least 80% of
the shapes served by a kernel of ours, and never behind the vendor's library by more than 3%.

    python benchmarks/library_unseen.py [--target cuda:native --dtype bf16 --layout nt] [--work DIR] [--time-limit 540]

Studies, the library and results stay in the work folder: the same command goes on where a time limit ended it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np

import deepgen as dg
from common import conditions, run_main
from deepgen import baselines, targets
from deepgen.libraries import Library
from deepgen.libraries.adding import entry_of
from deepgen.libraries.check import Runners, contender_of, opened, time_across
from deepgen.measure.base import Contender, Policy, Task
from deepgen.operators import Gemm
from deepgen.targets import Target
from deepgen.tuning import Study

HERE = Path(__file__).resolve().parent
SUITES = HERE.parent / "data" / "suites.json"
SEED, COUNT = 23, 20
ROUNDS = 20
NEAR, SERVED, BEHIND = 1.08, 0.8, 1.03


class Over(Exception):
    """The time limit is reached."""


def shapes(options: argparse.Namespace, runner: str) -> list[Gemm]:
    """Sizes are drawn evenly on a logarithmic scale, in multiples of 16: lines of 16 bytes in every format."""
    low, high = (64, 8192) if runner == "gpu" else (32, options.largest)
    rng = np.random.default_rng(options.seed)
    drawn = np.exp(rng.uniform(log(low), log(high), (options.count, 3)))
    return [_gemm(options, *(int(16 * max(1, round(size / 16))) for size in row)) for row in drawn]


def suite(options: argparse.Namespace, runner: str) -> list[Gemm]:
    rows = json.loads(SUITES.read_text())[runner]["gemm"]
    return [_gemm(options, *row) for row in rows if runner == "gpu" or max(row) <= 4 * options.largest]


def _gemm(options: argparse.Namespace, m: int, n: int, k: int) -> Gemm:
    return dg.gemm(m, n, k, dtype=options.dtype, layout=options.layout)


def tuned(operator: Gemm, target: Target, seconds: float, folder: Path, threads: int | None) -> Study:
    """A study within a time budget. One that has its finals is taken as it is."""
    for path in sorted(folder.glob("*/journal.sqlite")):
        study = Study.open(path.parent)
        if study.operator == operator and study.finals() is not None:
            return study
    words: dict[str, Any] = {"trials": 100_000, "time_budget": seconds, "threads": threads, "transfer": False}
    return dg.tune(operator, target=target, out=folder, **words)


def race(library: Library, operator: Gemm, study: Study, target: Target, runners: Runners) -> dict[str, Any]:
    """The chosen kernel, the study's winner and the baselines, side by side."""
    choice = library.choose(operator, target)
    entry, kernel, artifact = entry_of(study)
    contenders = [Contender("own study", kernel, artifact)]
    if choice.entry is not None:
        contenders.append(replace(contender_of(library, choice.entry), name="library"))
    names = baselines.find(operator, target)
    task = Task(operator, target, policy=Policy(cold=entry.cold, threads=entry.threads))
    measured = runners.on(task).compare([*contenders, *map(Contender, names)], ROUNDS, 0)
    found = zip([*(c.name for c in contenders), *names], measured, strict=True)
    seconds = {name: m.seconds for name, m in found if m.ok and m.seconds}
    vendor = min((seconds[name] for name in names if name in seconds), default=None)
    served = seconds.get("library" if choice.entry is not None else choice.vendor or "", vendor)
    return {
        "shape": [operator.m, operator.n, operator.k],
        "how": choice.how,
        "entry": None if choice.entry is None else choice.entry.name,
        "predicted": choice.seconds,
        "seconds": seconds,
        "to_own_study": None if served is None else served / seconds["own study"],
        "to_vendor": None if served is None or vendor is None else served / vendor,
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    ratios = [row["to_own_study"] for row in rows if row["to_own_study"]]
    vendors = [row["to_vendor"] for row in rows if row["to_vendor"]]
    ours = [row for row in rows if row["entry"] is not None]
    return {
        "shapes": len(rows),
        "to_own_study": exp(sum(map(log, ratios)) / len(ratios)) if ratios else None,
        "served_by_ours": len(ours) / len(rows) if rows else None,
        "worst_to_vendor": max(vendors, default=None),
        "wanted": {"to_own_study": NEAR, "served_by_ours": SERVED, "worst_to_vendor": BEHIND},
    }


def line(row: Mapping[str, Any]) -> str:
    shape = "x".join(map(str, row["shape"]))
    times = " ".join(f"{name} {value * 1e6:.1f}" for name, value in row["seconds"].items())
    own = "-" if row["to_own_study"] is None else f"{row['to_own_study']:.3f}"
    vendor = "-" if row["to_vendor"] is None else f"{row['to_vendor']:.3f}"
    return f"{shape:>16} {row['how']:<9} to own study {own}, to vendor {vendor}; us: {times}"


def main() -> None:
    options = _options()
    target = targets.resolve(options.target)
    ends = time.monotonic() + options.time_limit
    work: Path = options.work
    results = work / "results.json"
    rows = json.loads(results.read_text())["results"] if results.exists() else []
    library = dg.library(work / "library")

    def go_on() -> None:
        if time.monotonic() > ends:
            raise Over

    try:
        for operator in suite(options, target.runner):
            if any(entry.operator == operator for entry in library.list()):
                continue
            go_on()
            study = tuned(operator, target, options.suite_seconds, work / "suite", options.threads)
            print(f"tuned {operator.describe()}: {library.add(study)}", flush=True)
        if len(library.content().times) < len(suite(options, target.runner)):
            go_on()
            print(f"timed all kernels at {time_across(library)} shapes", flush=True)
        with opened() as runners:
            for operator in shapes(options, target.runner):
                if any(row["shape"] == [operator.m, operator.n, operator.k] for row in rows):
                    continue
                go_on()
                runners.close()  # the study measures on the same device
                study = tuned(operator, target, options.own_seconds, work / "own", options.threads)
                rows.append(race(library, operator, study, target, runners))
                print(line(rows[-1]), flush=True)
                told = {"conditions": conditions(), "summary": summary(rows), "results": rows}
                results.write_text(json.dumps(told, indent=1) + "\n")
    except Over:
        print("the time limit is reached: run the same command again")
    print(json.dumps(summary(rows), indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--layout", default="nn")
    parser.add_argument("--count", type=int, default=COUNT, help="of shapes that are drawn")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--largest", type=int, default=1024, help="the largest size that is drawn on a processor")
    parser.add_argument("--suite-seconds", type=float, default=20.0, help="of tuning, for each shape of the suite")
    parser.add_argument("--own-seconds", type=float, default=20.0, help="of tuning, for each drawn shape")
    parser.add_argument("--threads", type=int, help="of kernels and baselines on a processor, at most")
    parser.add_argument("--time-limit", type=float, default=float("inf"), help="seconds; then the same command goes on")
    parser.add_argument("--work", type=Path, default=Path("library_unseen"), help="where everything is kept")
    return parser.parse_args()


if __name__ == "__main__":
    run_main(main)
