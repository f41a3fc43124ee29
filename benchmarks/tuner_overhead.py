"""What the tuner itself costs a trial, what its strategy does, and whether that grows with the study.

The simulated device builds and measures in no time, so that all that is left is the tuner: asking, emitting, queues,
journal. The strategy's own thinking is measured apart, by the clock and as processor time of its thread, and
subtracted from the tuner's.

    python benchmarks/tuner_overhead.py [--strategy random] [--trials 10000] [--json FILE]
    python benchmarks/tuner_overhead.py --strategy model --trials 200 --device-ms 10 [--jobs 16]
    python benchmarks/tuner_overhead.py --families [--trials 200] [--batch 1] [--only sm90]

With --device-ms a trial takes so long on the device, and it is said how much of the time the device waited while the
strategy thought. With --families, what `model` costs a trial in the spaces of all families, as processor time of one
thread, in asks of --batch configs: no kernel is built, and times are made up from the configs' knobs.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import math
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import deepgen as dg
from deepgen import generators, targets
from deepgen.run.measure.sim import SimRunner
from deepgen.tuning import Progress, search
from deepgen.tuning.search import Setting, Strategy
from deepgen.vocabulary import Measurement, Trial, Verdict, digest
from harness import Options, parser, run_main, save, table

BAR_MS = 5.0
BINS = 10


class Clocked:
    """A strategy that counts its own seconds."""

    def __init__(self, inner: Strategy) -> None:
        self.inner = inner
        self.seconds = 0.0
        self.processor_seconds = 0.0
        self.spans: list[tuple[float, float]] = []

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
        self.spans.append((started, time.perf_counter()))
        self.seconds += self.spans[-1][1] - started
        self.processor_seconds += time.thread_time() - before


class Mark(NamedTuple):
    """A moment of the search."""

    done: int
    at: float
    strategy: float  # seconds that it thought until now, by the clock
    processor: float  # and of processor time


class Bin(NamedTuple):
    """Milliseconds a trial in a part of the study."""

    trials: str
    overhead_ms: float
    strategy_ms: float
    strategy_processor_ms: float


def measure(strategy: str, trials: int, device_ms: float, jobs: int) -> tuple[list[Bin], float]:
    """Milliseconds a trial, the tuner's without the strategy's, in each tenth of the study; and the share of the time
    in which the device had nothing to do while the strategy thought."""
    target: Any = targets.resolve("sim")
    runs: list[tuple[float, float]] = []
    clocks: list[Clocked] = []
    make, measured = search.make, SimRunner.measure

    def timed(*arguments: Any, **named: Any) -> Measurement:
        started = time.perf_counter()
        result = measured(*arguments, **named)
        runs.append((started, time.perf_counter()))
        return result

    def clocked(strategy: str | search.StrategyKind, setting: Setting) -> Strategy:
        clocks.append(Clocked(make(strategy, setting)))
        return clocks[-1]

    marks: list[Mark] = []

    def watch(progress: Progress) -> None:
        if progress.phase == "searching" and clocks:
            clock = clocks[0]
            marks.append(Mark(progress.done, time.perf_counter(), clock.seconds, clock.processor_seconds))

    search.make, SimRunner.measure = clocked, timed  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as folder:
            engine = dg.LocalEngine(jobs=jobs, cache=Path(folder) / "cache")
            dg.tune(
                dg.gemm(256, 256, 256),
                target=replace(target, measure_seconds=device_ms * 1e-3),
                strategy=strategy,
                trials=trials,
                out=folder,
                engine=engine,
                watch=watch,
            )
    finally:
        search.make, SimRunner.measure = make, measured  # type: ignore[method-assign]
    bins = [bin_of(marks, trials * i // BINS, trials * (i + 1) // BINS) for i in range(BINS)]
    return bins, waited(runs[:trials], clocks[0].spans)


def waited(runs: list[tuple[float, float]], thoughts: list[tuple[float, float]]) -> float:
    """The share of the time from the first run to the last one's end in which none ran while the strategy thought."""
    gaps = [(end, start) for (_, end), (start, _) in pairwise(runs)]
    both = sum(max(0.0, min(end, until) - max(start, since)) for start, end in gaps for since, until in thoughts)
    return both / (runs[-1][1] - runs[0][0])


def bin_of(marks: list[Mark], low: int, high: int) -> Bin:
    inside = [m for m in marks if low <= m.done <= high]
    first, last = inside[0], inside[-1]
    each = 1e3 / max(1, last.done - first.done)
    strategy = (last.strategy - first.strategy) * each
    processor = (last.processor - first.processor) * each
    return Bin(f"{low}-{high}", (last.at - first.at) * each - strategy, strategy, processor)


# A family is measured on the first of these that it serves.
OPERATORS = (
    *(dg.gemm(16 if skinny else 4096, 4096, 4096, dtype=d, layout="nt") for d in ("bf16", "i8") for skinny in (0, 1)),
    *(dg.gemm(1024, 1024, 1024, layout=layout) for layout in ("nt", "nn")),
    dg.operator("softmax", rows=512, cols=4096),
    dg.operator("conv2d", N=1, H=28, W=28, CI=32, CO=64, k=3, pad=1),
)
TARGETS = ("cuda:sm_90a", "x86:amx", "x86:avx512_vnni", "x86:avx512", "riscv:rv64gcv_zvl256b", "arm:neon", "vta", "sim")


def served(name: str) -> tuple[str, Any, Any, Any]:
    generator = generators.by_name(name)
    cases = ((operator, targets.resolve(place)) for operator in OPERATORS for place in TARGETS)
    return name, generator, *next(case for case in cases if generator.refuses(*case) is None)


def families(options: Options) -> None:
    rows, clock = [], time.thread_time
    for name, generator, operator, target in map(served, options.chosen((*generators.FAMILIES.own, "vta"))):
        default, began = generator.default(operator, target), clock()
        space = generator.space(operator, target)
        size, opened = space.size().count, clock()
        strategy = Clocked(search.make("model", Setting(space, 0, (default,))))
        number, asked = 0, strategy.ask(1)
        first = 1e3 * (clock() - opened)
        while asked and number < options.trials:
            for config in asked:  # each knob's value slows it down by something of its own
                parts = [int(digest([knob, str(value)], 8), 16) / 16**8 for knob, value in sorted(config.items())]
                measured = Measurement(Verdict.CORRECT, samples=(1e-3 * math.exp(mean(parts)),))
                strategy.tell(Trial(number, space.rank(config), config, "", measured))
                number += 1
            asked = strategy.ask(options.batch)
        each = 1e3 * strategy.processor_seconds / number
        rows.append((name, target.name, f"{size:.3g}", number, 1e3 * (opened - began), first, each))
    heads = ("family", "target", "configs", "trials", "space, ms", "first ask, ms", "ms a trial")
    print(table(heads, rows))
    save(options.json, {"batch": options.batch, "heads": heads, "rows": rows})


def main() -> None:
    words = parser(__doc__)
    words.add_argument("--families", action="store_true")
    words.add_argument("--batch", type=int, default=1)
    words.add_argument("--device-ms", type=float, default=0.0)
    words.add_argument("--jobs", type=int, default=2)
    # Random thinks least, so that little has to be subtracted.
    words.add_argument("--strategy", choices=["random", "model"], default="random")
    words.add_argument("--trials", type=int)
    options = words.options()
    options.trials = options.trials or (200 if options.families else 10_000)
    if options.families:
        families(options)
        return
    rows, idle = measure(options.strategy, options.trials, options.device_ms, options.jobs)
    print(f"ms a trial on the simulated device, strategy {options.strategy}")
    heads = ("trials", "overhead", "strategy", "of processor time")
    print(table(heads, rows))
    worst = max(row.overhead_ms for row in rows)
    growth = rows[-1].overhead_ms / max(rows[0].overhead_ms, 1e-9)
    print(f"overhead: worst {worst:.2f} ms (bar: under {BAR_MS:g} ms), last tenth / first tenth: {growth:.2f}")
    print(f"the device had nothing to do while the strategy thought: {idle:.2%} of the time")
    amortised = mean(row.strategy_ms for row in rows)
    print(f"strategy: {amortised:.2f} ms a trial over all (bar: under {BAR_MS:g} ms)")
    summary = {
        "worst_ms": worst,
        "strategy_amortised_ms": amortised,
        "bar_ms": BAR_MS,
        "last_over_first": growth,
        "idle": idle,
    }
    save(options.json, {"strategy": options.strategy, "bins": [row._asdict() for row in rows], **summary})


if __name__ == "__main__":
    run_main(main)
