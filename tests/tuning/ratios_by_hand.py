"""Are ratios to numpy and torch right, or withheld, on a quiet machine and a busy one? Studies beside timing by hand.

taskset -c 0,2 python tests/tuning/ratios_by_hand.py [--burners] [--runs 30] [--start 0]

Each run tunes a small GEMM with a few trials, in a new study. If the result has a ratio, each side is also called by
hand in a separate process, in alternating bursts, and the ratio must be the same: within 25% with `--burners`, a
process that computes on every core, where a withheld ratio is right as well; within 10% on a quiet machine, where 27 of
30 must have one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from subprocess import PIPE
from typing import Any

import numpy as np

import deepgen as dg
from deepgen.report.words import SMALL
from deepgen.run.measure.base import Policy
from deepgen.targets.host import usable_cores

SHAPES = ((200, 200, 200), (16, 19, 35), (128, 256, 96), (454, 1296, 238))
OURS = "ours, arrays of"
BURST_SECONDS, BURSTS, ROUNDS, IDLE_SECONDS = 10e-3, 12, 5, 0.3


@dataclass(frozen=True)
class Ratio:
    """A baseline's time over ours; None where it was withheld."""

    name: str
    study: float | None
    hand: float | None = None

    def wrong(self, allowed: float) -> bool:
        return self.study is not None and self.hand is not None and abs(self.study / self.hand - 1.0) > allowed


def bursts_by_hand(name: str, folder: str) -> None:
    """Calls as in a program: for every line of input a series of bursts, whose median is printed."""
    study = dg.Study.open(folder)
    a, b = study.operator.inputs(0).values()
    out, call = np.empty((a.shape[0], b.shape[1]), a.dtype), np.matmul
    if "torch" in name:
        import torch

        call = torch.mm  # as the baseline does: matmul dispatches to it, which takes 3 us more
        a, b, out = (torch.from_numpy(array).clone() for array in (a, b, out))
    if OURS in name:
        call = study.best().load()  # type: ignore[assignment]
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
    seconds. Before each side runs, all are idle for a while: threads of OpenBLAS and OpenMP spin for up to 0.2 s after
    their last call, on the cores of the next one.
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


def run(number: int, out: Path) -> list[Ratio]:
    """The ratio to each baseline."""
    operator, policy = dg.gemm(*SHAPES[number % len(SHAPES)]), Policy(calm_seconds=0.0, race_seconds=3.0)
    words: dict[str, Any] = {"target": "cpu", "trials": 2, "strategy": "random", "seed": number, "keep_top": 1}
    study = dg.tune(operator, baselines=["numpy", "torch"], policy=policy, out=out / str(number), **words)
    finals = study.read().finals
    assert finals is not None, "the study has ended"
    rated = {}
    for row in finals.baselines:
        if not row.noisy and (bursts := row.bursts) is not None:
            called = bursts.call is not None and bursts.kernel.seconds < SMALL
            rated[row.name] = (bursts.call if called and bursts.call else bursts.kernel).ratio
    # Ours has the same arrays as each library: torch's begin at cache lines, numpy's 16 bytes behind.
    seconds = by_hand([side for name in rated for side in (name, f"{OURS} {name}")], study.folder) if rated else {}
    hand = {
        name: median(theirs / ours for theirs, ours in zip(seconds[name], seconds[f"{OURS} {name}"], strict=True))
        for name in rated
    }
    print(operator.describe(), {name: f"{median(taken) * 1e6:.2f} us" for name, taken in seconds.items()}, flush=True)
    return [Ratio(row.name, rated.get(row.name), hand.get(row.name)) for row in finals.baselines]


def main() -> int:
    if sys.argv[1:2] == ["--hand"]:
        bursts_by_hand(*sys.argv[2:4])
        return 0
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--burners", action="store_true", help="beside a process that computes on every core")
    words.add_argument("--runs", type=int, default=30)
    words.add_argument("--start", type=int, default=0, help="number of the first run, which chooses shape and seed")
    options = words.parse_args()
    allowed, rated, right, wrong = 0.25 if options.burners else 0.10, 0, 0, 0
    with tempfile.TemporaryDirectory() as folder, ExitStack() as burners:
        for _ in range(usable_cores() if options.burners else 0):
            burner = subprocess.Popen([sys.executable, "-c", "while True: sum(range(100_000))"])
            burners.callback(burner.kill)
        for number in range(options.start, options.start + options.runs):
            ratios = run(number, Path(folder))
            rated += all(one.study is not None for one in ratios)
            off = [one for one in ratios if one.wrong(allowed)]
            right, wrong = right + (not off and any(one.study for one in ratios)), wrong + len(off)
            print(*ratios, "WRONG" if off else "", flush=True)
    print(f"{options.runs} runs, {rated} with ratios to all, {right} with right ones only, {wrong} ratios wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
