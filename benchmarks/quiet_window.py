"""How much a baseline's time moves when compilers run beside it, and how much of that the quiet window takes back.

Three settings, taken in turn several times so that slow drifts of the machine hit all of them alike: no builds, builds
running on every core, and the same builds held still by the quiet window that finals use.

    python benchmarks/quiet_window.py [--size 1024] [--turns 6] [--json FILE]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from common import run_main, save
from deepgen import baselines, generators, targets
from deepgen.operators import gemm
from deepgen.run.measure.base import Contender, Task
from deepgen.targets import host
from deepgen.tuning.engines import LocalEngine, Session
from deepgen.vocabulary import Kernel

ROUNDS = 15
SETTINGS = ("idle", "builds", "quiet")


def fresh_kernels(size: int) -> list[Kernel]:
    """Kernels that the cache cannot know: real builds, each with a flag of its own."""
    operator, target = gemm(size, size, size), targets.resolve("x86:native")
    family = generators.find(operator, target)
    kernel = family.emit(operator, target, family.default(operator, target))
    return [replace(kernel, flags=(*kernel.flags, f"-DUNUSED_{i}=1")) for i in range(2000)]


def baseline_seconds(session: Session, name: str, seed: int) -> list[float]:
    return list(session.compare([Contender(name)], ROUNDS, seed)[0].samples)


def take_turn(
    session: Session, name: str, turn: int, kernels: Iterator[Kernel], samples: dict[str, list[float]]
) -> None:
    samples["idle"] += baseline_seconds(session, name, turn)
    for number in range(60):
        session.submit(number, next(kernels))
    samples["builds"] += baseline_seconds(session, name, turn)
    with session.quiet():
        samples["quiet"] += baseline_seconds(session, name, turn)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/quiet_window.json"))
    options = parser.parse_args()
    task = Task(gemm(options.size, options.size, options.size), targets.resolve("x86:native"))
    kernels = iter(fresh_kernels(options.size))
    samples: dict[str, dict[str, list[float]]] = {}
    for turn in range(options.turns):
        for name in baselines.find(task.operator, task.target):
            with tempfile.TemporaryDirectory() as folder:
                engine = LocalEngine(jobs=2 * host.usable_cores(), cache=Path(folder))
                with engine.open(task) as session:
                    # Closing the session drops the builds that are still waiting: each turn starts from rest.
                    take_turn(session, name, turn, kernels, samples.setdefault(name, {s: [] for s in SETTINGS}))
    table = Table("baseline", "idle, ms", "builds running", "quiet window", title="Median of a baseline beside builds")
    rows = []
    for name, by_setting in samples.items():
        idle = median(by_setting["idle"])
        moved = {s: median(by_setting[s]) / idle - 1.0 for s in ("builds", "quiet")}
        rows.append({"baseline": name, "idle_seconds": idle, **{f"{s}_shift": v for s, v in moved.items()}})
        table.add_row(name, f"{idle * 1e3:.2f}", f"{moved['builds']:+.1%}", f"{moved['quiet']:+.1%}")
    Console().print(table)
    save(options.json, rows)


if __name__ == "__main__":
    run_main(main)
