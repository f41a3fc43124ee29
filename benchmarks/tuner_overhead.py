"""What the tuner itself costs a trial, and whether that grows with the study.

The simulated device builds and measures in no time, so that all that is left is the tuner: asking, emitting, queues,
journal. The strategy's own thinking is measured apart and subtracted.

    python benchmarks/tuner_overhead.py [--trials 10000] [--json FILE]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import deepgen as dg
from common import save
from deepgen import search
from deepgen.search import Setting, Strategy
from deepgen.tuning import Progress
from deepgen.vocabulary import Trial

BAR_MS = 5.0
BINS = 10


class Clocked:
    """A strategy that counts its own seconds."""

    def __init__(self, inner: Strategy) -> None:
        self.inner = inner
        self.seconds = 0.0

    def ask(self, n: int) -> list[dict[str, Any]]:
        started = time.perf_counter()
        configs = self.inner.ask(n)
        self.seconds += time.perf_counter() - started
        return configs

    def tell(self, trial: Trial) -> None:
        started = time.perf_counter()
        self.inner.tell(trial)
        self.seconds += time.perf_counter() - started


def measure(trials: int) -> list[dict[str, float]]:
    """Milliseconds a trial, without the strategy's, in each tenth of the study."""
    clocks: list[Clocked] = []
    make = search.make

    def clocked(name: str, setting: Setting) -> Strategy:
        clocks.append(Clocked(make(name, setting)))
        return clocks[-1]

    marks: list[tuple[int, float, float]] = []

    def watch(progress: Progress) -> None:
        if progress.phase == "searching" and clocks:
            marks.append((progress.done, time.perf_counter(), clocks[0].seconds))

    search.make = clocked
    try:
        with tempfile.TemporaryDirectory() as folder:
            engine = dg.LocalEngine(jobs=2, cache=Path(folder) / "cache")
            dg.tune(
                dg.gemm(256, 256, 256),
                target="sim",
                strategy="random",  # thinks least, so that little has to be subtracted
                trials=trials,
                out=folder,
                engine=engine,
                watch=watch,
            )
    finally:
        search.make = make
    return [bin_of(marks, trials * i // BINS, trials * (i + 1) // BINS) for i in range(BINS)]


def bin_of(marks: list[tuple[int, float, float]], low: int, high: int) -> dict[str, float]:
    inside = [m for m in marks if low <= m[0] <= high]
    (first, begin, thought), (last, end, thinking) = inside[0], inside[-1]
    count = max(1, last - first)
    strategy = (thinking - thought) / count * 1e3
    return {"from": low, "to": high, "strategy_ms": strategy, "overhead_ms": (end - begin) / count * 1e3 - strategy}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/tuner_overhead.json"))
    options = parser.parse_args()
    rows = measure(options.trials)
    table = Table(
        "trials", "overhead, ms a trial", "strategy, ms a trial", title="Tuner overhead on the simulated device"
    )
    for row in rows:
        table.add_row(f"{row['from']}-{row['to']}", f"{row['overhead_ms']:.2f}", f"{row['strategy_ms']:.2f}")
    Console().print(table)
    worst = max(row["overhead_ms"] for row in rows)
    growth = rows[-1]["overhead_ms"] / rows[0]["overhead_ms"]
    print(f"worst {worst:.2f} ms (bar: under {BAR_MS:g} ms), last tenth / first tenth: {growth:.2f}")
    save(options.json, {"bins": rows, "worst_ms": worst, "bar_ms": BAR_MS, "last_over_first": growth})


if __name__ == "__main__":
    main()
