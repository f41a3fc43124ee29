"""Are ratios to numpy and torch right on a busy machine, or withheld? Results of tuning beside a timing by hand.

    python benchmarks/busy_ratios.py [--burners] [--runs 30] [--json benchmarks/results/busy_ratios.json]

Each run tunes a small GEMM anew with a few trials. If the result has a ratio, each side is also called by hand in a
separate process, in alternating bursts, and the ratio must be the same: within 25% with a burner process on every core,
where "too noisy to tell" is right as well; within 10% on a quiet machine, where 27 of 30 must have one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from subprocess import PIPE
from typing import Any

import numpy as np

import deepgen as dg
from deepgen.report.words import SMALL
from deepgen.run.measure.base import Policy
from deepgen.targets.host import usable_cores
from harness import parser, run_main, save

SHAPES = ((200, 200, 200), (16, 19, 35), (128, 256, 96), (454, 1296, 238))
BURST_SECONDS, BURSTS, ROUNDS, IDLE_SECONDS = 10e-3, 12, 5, 0.3


def bursts_by_hand(name: str, folder: str) -> None:
    """Calls as in a program: for every line of input a series of bursts, whose median is printed."""
    study = dg.Study.open(folder)
    a, b = study.operator.inputs(0).values()
    out, call = np.empty((a.shape[0], b.shape[1]), a.dtype), np.matmul
    if name == "ours":
        call = study.best().load()  # type: ignore[assignment]
    elif name == "torch":
        import torch

        call = torch.mm  # as the baseline does: matmul dispatches to it, which takes 3 us more
        a, b, out = (torch.from_numpy(array).clone() for array in (a, b, out))
    count = 1
    for _ in sys.stdin:
        taken = []
        for _ in range(BURSTS):
            started = time.perf_counter()
            for _ in range(count):
                call(a, b, out=out)
            taken.append((time.perf_counter() - started) / count)
            count = max(1, round(BURST_SECONDS / min(taken)))
        print(median(taken[BURSTS // 4 :]), flush=True)


def by_hand(names: Sequence[str], folder: Path) -> dict[str, list[float]]:
    """The seconds of each side, round by round.

    Each has a separate process, and they alternate: cores of a shared machine change their speed by a third within
    seconds, so two consecutive timings would differ by that. Before each side runs, all are idle for a while: threads
    of OpenBLAS and OpenMP spin for up to 0.2 s after their last call, on the cores of the next one.
    """
    threads = {f"{library}_NUM_THREADS": str(usable_cores()) for library in ("OMP", "MKL", "OPENBLAS")}
    words: dict[str, Any] = {"env": {**os.environ, **threads}, "text": True, "stdin": PIPE, "stdout": PIPE}
    sides = {name: subprocess.Popen([sys.executable, __file__, "--hand", name, str(folder)], **words) for name in names}
    taken: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(1 + ROUNDS):
        for name, side in sides.items():
            assert side.stdin is not None and side.stdout is not None, "both are pipes"
            time.sleep(IDLE_SECONDS)
            print(file=side.stdin, flush=True)
            taken[name].append(float(side.stdout.readline()))
    for side in sides.values():
        side.communicate()
    return {name: seconds[1:] for name, seconds in taken.items()}  # the first round warms up


def run(number: int, out: Path, allowed: float) -> list[dict[str, Any]]:
    """A row for each baseline."""
    operator, policy = dg.gemm(*SHAPES[number % len(SHAPES)]), Policy(calm_seconds=0.0, race_seconds=3.0)
    words: dict[str, Any] = {"target": "cpu", "trials": 2, "strategy": "random", "seed": number, "keep_top": 1}
    study = dg.tune(operator, baselines=["numpy", "torch"], policy=policy, out=out, **words)
    told: list[dict[str, Any]] = study.summary()["baselines"]  # type: ignore[assignment]
    rows = [{"shape": operator.describe(), "name": row["name"], "noisy": row["noisy"]} for row in told]
    rated = [row["name"] for row in told if not row["noisy"]]
    seconds = by_hand([*rated, "ours"], study.folder) if rated else {}
    for row, of_study in zip(rows, told, strict=True):
        if row["name"] in rated:
            bursts = of_study["bursts"]
            ratio = bursts["call" if bursts["kernel"]["seconds"] < SMALL else "kernel"]["ratio"]
            hand = median(theirs / ours for theirs, ours in zip(seconds[row["name"]], seconds["ours"], strict=True))
            wrong = abs(ratio / hand - 1.0) > allowed
            row |= {"ratio": ratio, "by_hand": hand, "wrong": wrong, "bursts": bursts}
            row |= {"seconds_by_hand": [seconds[row["name"]], seconds["ours"]]}
        print(row, flush=True)
    return rows


def main() -> None:
    if sys.argv[1:2] == ["--hand"]:
        bursts_by_hand(*sys.argv[2:4])
        return
    words = parser(__doc__)
    words.add_argument("--burners", action="store_true", help="beside a process that computes on every core")
    words.add_argument("--runs", type=int, default=30)
    options = words.options()
    burner, deadline = [sys.executable, "-c", "while True: sum(range(100_000))"], options.deadline()
    burners = [subprocess.Popen(burner) for _ in range(usable_cores() if options.burners else 0)]
    try:
        with tempfile.TemporaryDirectory() as folder:
            allowed = 0.25 if burners else 0.10
            runs = [run(i, Path(folder), allowed) for i in range(options.runs) if not deadline.over]
    finally:
        for one in burners:
            one.kill()
    rated = sum(not any(row["noisy"] for row in rows) for rows in runs)
    wrong = sum(row.get("wrong", False) for rows in runs for row in rows)
    print(f"{len(runs)} runs, {rated} with ratios to both, {wrong} ratios wrong")
    save(options.json, {"runs": runs, "burners": len(burners), "rated": rated, "wrong": wrong})


if __name__ == "__main__":
    run_main(main)
