"""What large journals and many studies cost: bytes of a long study, `status` over many, `resume` in a huge space.

    python benchmarks/journal_scale.py [--trials 30684] [--studies 1000] [--json FILE] [--before FILE]

Seconds are of the clock and of the processor: on a machine that others use, only the latter say something. `--before`
names the file of an earlier run, which is shown beside.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import deepgen as dg
from deepgen.kernels.sim import SimTiles
from deepgen.operators import Operator
from deepgen.space import Space
from deepgen.targets import Target
from deepgen.tuning.study import journal as journals
from deepgen.tuning.study.journal import FILE, Journal
from deepgen.vocabulary import Json, Measurement, Trial, Verdict
from harness import parser, run_main, save
from space_cases import tiling

BARS = {"journal, MB": 40.0, "status, s": 1.0, "resume, s": 2.0}
BATCH = 500
OPERATOR = dg.gemm(64, 64, 64)


class Huge(SimTiles):
    """The simulated device's kernels, over a space of 3e24 configs."""

    name = "huge"

    def __init__(self) -> None:
        self._space = tiling()

    def space(self, operator: Operator, target: Target) -> Space:
        return self._space

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        return self._space.at(0)


def journal_megabytes(trials: int, scratch: Path) -> float:
    """Trials with a hundred samples each, as they are measured on a processor."""
    folder = scratch / "long"
    rng = random.Random(0)
    with Journal(folder, write=True) as journal:
        journal.define({})
        for first in range(0, trials, BATCH):
            batch = [_trial(i, rng) for i in range(first, min(first + BATCH, trials))]
            proposal = vars(journals)["Proposal"]  # earlier trees kept it in this module
            journal.ask(first, len(batch), [proposal(t.id, t.rank, dict(t.config)) for t in batch])
            journal.finish(batch)
    return (folder / FILE).stat().st_size / 1e6


def _trial(number: int, rng: random.Random) -> Trial:
    usual = rng.uniform(1e-4, 1e-2)
    samples = tuple(round(usual * (1.0 + abs(rng.gauss(0.0, 0.05))), 9) * 1.0000000000000002 for _ in range(100))
    conditions: dict[str, Json] = {
        "cold": True, "flush": "lines", "runs_checked": 102, "reproducible": True, "restless_threads": False,
        "call_seconds": rng.uniform(1e-6, 2e-6), "load": round(rng.uniform(0.0, 4.0), 2), "builds": 0,
        "stolen_share": round(rng.random(), 4), "others_share": round(rng.random(), 4),
    }  # fmt: skip
    measured = Measurement(Verdict.CORRECT, "", samples, rng.random(), {}, conditions)
    config = {"MR": 6, "NR": 4, "KC": 256, "NC": 512, "PACK_B": "block", "UNROLL": 4, "THREADS": rng.choice([1, 2])}
    facts: dict[str, Json] = {
        "code_bytes": rng.randrange(9999),
        "cpu_seconds": round(rng.random(), 3),
        "build_seconds": rng.random(),
    }
    return Trial(number, rng.randrange(10**9), config, f"{rng.getrandbits(256):064x}", measured, facts)


def status_seconds(studies: int, scratch: Path) -> tuple[float, float]:
    home = scratch / "many"
    engine = dg.LocalEngine(jobs=2, cache=scratch / "cache")
    study = dg.tune(OPERATOR, target="sim:noise=0.01", trials=20, out=scratch / "one", engine=engine)
    for number in range(studies):
        shutil.copytree(study.folder, home / "deepgen-studies" / f"study-{number}")
    command = [sys.executable, "-m", "deepgen", "status", "--json"]
    return _timed(command, home)


def _timed(command: list[str], folder: Path) -> tuple[float, float]:
    """Seconds of the clock and of the processor, the lesser of two runs."""
    best = (float("inf"), float("inf"))
    for _ in range(2):
        clock, before = time.perf_counter(), os.times()
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        after = os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        best = min(best[0], time.perf_counter() - clock), min(best[1], used)
    return best


def resume_seconds(scratch: Path) -> tuple[float, float]:
    """Going on with a study of 200 trials, up to where the first new trial would be asked for."""
    engine = dg.LocalEngine(jobs=2, cache=scratch / "cache")
    options: dict[str, Any] = {"target": "sim:noise=0.01", "trials": 200, "out": scratch / "huge", "engine": engine}
    dg.tune(OPERATOR, generator=Huge(), **options)
    generator = Huge()
    clock, used = time.perf_counter(), time.process_time()
    dg.tune(OPERATOR, generator=generator, **options)
    return time.perf_counter() - clock, time.process_time() - used


def main() -> None:
    words = parser(__doc__)
    words.add_argument("--trials", type=int, default=30684)
    words.add_argument("--studies", type=int, default=1000)
    words.add_argument("--before", type=Path)
    options = words.options()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        results: dict[str, Any] = {"journal, MB": round(journal_megabytes(options.trials, scratch), 1)}
        for name, seconds in (
            ("status", status_seconds(options.studies, scratch)),
            ("resume", resume_seconds(scratch)),
        ):
            results[f"{name}, s"], results[f"{name}, processor s"] = (round(s, 2) for s in seconds)
    before = json.loads(options.before.read_text())["results"] if options.before else {}
    table = Table("what", "before", "now", "bar")
    for name, value in results.items():
        table.add_row(name, str(before.get(name, "-")), str(value), str(BARS.get(name, "-")))
    Console().print(table)
    save(options.json, {**results, "before": before} if before else results)


if __name__ == "__main__":
    run_main(main)
