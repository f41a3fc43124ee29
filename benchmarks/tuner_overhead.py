"""What the tuner itself costs a trial, what its strategy does, and whether that grows with the study.

The simulated device builds and measures in no time, so that all that is left is the tuner: asking, emitting, queues,
journal. The strategy's own thinking is measured apart, by the clock and as processor time of its thread, and
subtracted from the tuner's.

    python benchmarks/tuner_overhead.py [--strategy random] [--trials 10000] [--json FILE]
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import deepgen as dg
from deepgen.tuning import Progress, search
from deepgen.tuning.search import Setting, Strategy
from deepgen.vocabulary import Trial
from harness import parser, run_main, save, table

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


@dataclass(frozen=True)
class Bin:
    """Milliseconds a trial in a part of the study."""

    first: int
    last: int
    strategy_ms: float
    strategy_processor_ms: float
    overhead_ms: float


def measure(strategy: str, trials: int) -> list[Bin]:
    """Milliseconds a trial, the tuner's without the strategy's, in each tenth of the study."""
    clocks: list[Clocked] = []
    make = search.make

    def clocked(strategy: str | search.StrategyKind, setting: Setting) -> Strategy:
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


def bin_of(marks: list[Mark], low: int, high: int) -> Bin:
    inside = [m for m in marks if low <= m.done <= high]
    first, last = inside[0], inside[-1]
    each = 1e3 / max(1, last.done - first.done)
    strategy = (last.strategy - first.strategy) * each
    return Bin(low, high, strategy, (last.processor - first.processor) * each, (last.at - first.at) * each - strategy)


def main() -> None:
    words = parser(__doc__)
    # Random thinks least, so that little has to be subtracted.
    words.add_argument("--strategy", choices=["random", "model"], default="random")
    words.add_argument("--trials", type=int, default=10_000)
    options = words.options()
    rows = measure(options.strategy, options.trials)
    print(f"ms a trial on the simulated device, strategy {options.strategy}")
    heads = ("trials", "overhead", "strategy", "of processor time")
    cells = [(f"{r.first}-{r.last}", r.overhead_ms, r.strategy_ms, r.strategy_processor_ms) for r in rows]
    print(table(heads, cells))
    worst = max(row.overhead_ms for row in rows)
    growth = rows[-1].overhead_ms / rows[0].overhead_ms
    print(f"overhead: worst {worst:.2f} ms (bar: under {BAR_MS:g} ms), last tenth / first tenth: {growth:.2f}")
    amortised = mean(row.strategy_ms for row in rows)
    print(f"strategy: {amortised:.2f} ms a trial over all (bar: under {BAR_MS:g} ms)")
    summary = {"worst_ms": worst, "strategy_amortised_ms": amortised, "bar_ms": BAR_MS, "last_over_first": growth}
    save(options.json, {"strategy": options.strategy, "bins": rows, **summary})


if __name__ == "__main__":
    run_main(main)
