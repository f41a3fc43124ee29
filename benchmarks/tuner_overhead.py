"""What the tuner itself costs a trial, what its strategy does, and whether that grows with the study.

The simulated device builds and measures in no time, so that all that is left is the tuner: asking, emitting, queues,
journal. The strategy's own thinking is measured apart, by the clock and as processor time of its thread, and
subtracted from the tuner's.

    python benchmarks/tuner_overhead.py [--strategy random] [--trials 10000] [--json FILE]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table

import deepgen as dg
from common import run_main, save
from deepgen.tuning import Progress, search
from deepgen.tuning.search import Setting, Strategy
from deepgen.vocabulary import Trial

BAR_MS = 5.0
BINS = 10


class Clocked:
    """A strategy that counts its own seconds."""

    def __init__(self, inner: Strategy) -> None:
        self.inner = inner
        self.seconds = 0.0
        self.processor_seconds = 0.0

    def ask(self, n: int) -> list[dict[str, Any]]:
        with self._counting():
            return self.inner.ask(n)

    def tell(self, trial: Trial) -> None:
        with self._counting():
            self.inner.tell(trial)

    @contextmanager
    def _counting(self) -> Iterator[None]:
        started, before = time.perf_counter(), time.thread_time()
        yield
        self.seconds += time.perf_counter() - started
        self.processor_seconds += time.thread_time() - before


@dataclass(frozen=True)
class Mark:
    """A moment of the search."""

    done: int
    at: float
    strategy: float  # seconds that it thought until now, by the clock
    processor: float  # and of processor time


def measure(strategy: str, trials: int) -> list[dict[str, float]]:
    """Milliseconds a trial, the tuner's without the strategy's, in each tenth of the study."""
    clocks: list[Clocked] = []
    make = search.make

    def clocked(strategy: str | search.Kind, setting: Setting) -> Strategy:
        clocks.append(Clocked(make(strategy, setting)))
        return clocks[-1]

    marks: list[Mark] = []

    def watch(progress: Progress) -> None:
        if progress.phase == "searching" and clocks:
            clock = clocks[0]
            marks.append(Mark(progress.done, time.perf_counter(), clock.seconds, clock.processor_seconds))

    search.make = clocked
    try:
        with tempfile.TemporaryDirectory() as folder:
            engine = dg.LocalEngine(jobs=2, cache=Path(folder) / "cache")
            dg.tune(
                dg.gemm(256, 256, 256),
                target="sim",
                strategy=strategy,
                trials=trials,
                out=folder,
                engine=engine,
                watch=watch,
            )
    finally:
        search.make = make
    return [bin_of(marks, trials * i // BINS, trials * (i + 1) // BINS) for i in range(BINS)]


def bin_of(marks: list[Mark], low: int, high: int) -> dict[str, float]:
    inside = [m for m in marks if low <= m.done <= high]
    first, last = inside[0], inside[-1]
    each = 1e3 / max(1, last.done - first.done)
    return {
        "from": low,
        "to": high,
        "strategy_ms": (last.strategy - first.strategy) * each,
        "strategy_processor_ms": (last.processor - first.processor) * each,
        "overhead_ms": ((last.at - first.at) - (last.strategy - first.strategy)) * each,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    # Random thinks least, so that little has to be subtracted.
    parser.add_argument("--strategy", choices=["random", "model"], default="random")
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--json", type=Path, help="[benchmarks/results/tuner_overhead.json, or _model.json]")
    options = parser.parse_args()
    rows = measure(options.strategy, options.trials)
    columns = ["trials", "overhead, ms a trial", "strategy, ms a trial", "of processor time"]
    table = Table(*columns, title=f"Tuner overhead on the simulated device, strategy {options.strategy}")
    for row in rows:
        figures = (row[name] for name in ("overhead_ms", "strategy_ms", "strategy_processor_ms"))
        table.add_row(f"{row['from']}-{row['to']}", *(f"{figure:.2f}" for figure in figures))
    Console().print(table)
    worst = max(row["overhead_ms"] for row in rows)
    growth = rows[-1]["overhead_ms"] / rows[0]["overhead_ms"]
    print(f"overhead: worst {worst:.2f} ms (bar: under {BAR_MS:g} ms), last tenth / first tenth: {growth:.2f}")
    amortised = mean(row["strategy_ms"] for row in rows)
    print(f"strategy: {amortised:.2f} ms a trial over all (bar: under {BAR_MS:g} ms)")
    results = {
        "strategy": options.strategy,
        "bins": rows,
        "worst_ms": worst,
        "strategy_amortised_ms": amortised,
        "bar_ms": BAR_MS,
        "last_over_first": growth,
    }
    default = "tuner_overhead.json" if options.strategy == "random" else f"tuner_overhead_{options.strategy}.json"
    save(options.json or Path("benchmarks/results") / default, results)


if __name__ == "__main__":
    run_main(main)
