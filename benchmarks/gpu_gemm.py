"""GEMM on an NVIDIA GPU: the best of our families against cuBLASLt, torch and Triton, interleaved and with a cold L2.

The shapes are the 21 GEMM and 5 batched ones of data/suites.json, standard-normal inputs (i8: uniform over -8..7). Ours
is the best of all families that serve a shape: configs known from earlier runs (gpu_known.py), what the families take
without search, kinds that did well, and neighbours of the best of these (gpu_choices.py). Who of them is timed beside
the rivals is settled in heats before, in which all are interleaved. cuBLASLt is given 64 MiB and is the fastest of all
algorithms that its heuristic returns for 64 requested. Other layouts are timed beside what won in nt, if its results
lie where these go. 8-bit floats are added up on both sides as the tensor cores do it (`fast`), or in f32
(`--exact-sums`; docs/kernels/sm90_gemm.md tells how exact either side is). Every result is checked against float64,
before timing and after. Results are written after each shape. Needs torch, numpy and NVRTC, and Triton for `--triton`;
no installation of deepgen.

    python benchmarks/gpu_gemm.py --dtype bf16 --triton --out benchmarks/h200
    python benchmarks/gpu_gemm.py --dtype f8e4m3 --exact-sums --out benchmarks/h200
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "h200"), str(HERE.parent / "src")]

from common import run_main  # noqa: E402
from deepgen.operators import Gemm  # noqa: E402
from deepgen.targets import Cuda  # noqa: E402
from deepgen.targets.gpu_driver import Driver  # noqa: E402
from deepgen.vocabulary import DeepgenError  # noqa: E402
from gpu_bench import (  # noqa: E402
    DTYPES,
    FLUSH_BYTES,
    Bench,
    Builder,
    Loaded,
    conditions,
    gpu_torch,
    interleaved,
    key_of,
    open_device,
    operator,
    sources,
    suite,
)
from gpu_choices import TENSOR_CORES, Choice, around, first_choices, fixed  # noqa: E402
from gpu_known import RESULTS, Found, found_before, won_before  # noqa: E402
from gpu_rivals import Call, rivals  # noqa: E402
from gpu_summary import show, summary  # noqa: E402

HEATS = ((12, 7), (4, 15))  # how many enter, and rounds: chips slow down as they get warm, so all are interleaved
ROUNDS = 31
TRIED, VARIED = 0.5, 0.75  # of the seconds: from then on a shape that has a config tries no more, and no neighbours


@dataclass
class Row:
    """One shape: what is known of it so far."""

    problem: Gemm
    queue: list[Choice]
    seen: set[str] = field(default_factory=set)
    found: list[tuple[float, int, Choice]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    untried: int = 0  # for want of time

    def ranked(self) -> list[tuple[float, int, Choice]]:
        return sorted(self.found, key=lambda found: found[:2])

    def best(self, count: int) -> list[Choice]:
        return [choice for _, _, choice in self.ranked()[:count]]


class Benchmark:
    """All shapes of one dtype: tried, varied, and timed against the rivals."""

    def __init__(self, options: argparse.Namespace, flush: Any, builder: Builder, target: Cuda, driver: Driver) -> None:
        self.options, self.flush, self.builder, self.target, self.driver = options, flush, builder, target, driver

    def row(self, problem: Gemm, before: list[Found]) -> Row:
        """What is tried first is built from now on."""
        row = Row(problem, first_choices(problem, self.target, before, self.options))
        for choice in row.queue:
            self.start(problem, choice)
        return row

    def start(self, problem: Gemm, choice: Choice) -> None:
        self.builder.start(choice[0].emit(problem, self.target, choice[1]))

    def load(self, bench: Bench, choice: Choice) -> Loaded:
        kernel = choice[0].emit(bench.problem, self.target, choice[1])
        return Loaded(bench, kernel, self.builder.image(kernel), self.driver)

    def try_all(self, row: Row, bench: Bench, ends: float) -> None:
        """Check and time what is in the queue, until there is no more time."""
        for choice in row.queue:
            name = choice[0].name + key_of(choice[1])
            if name in row.seen:
                continue
            if row.found and time.monotonic() > ends:
                row.untried += 1
                continue
            row.seen.add(name)
            try:
                run = self.load(bench, choice)
            except DeepgenError as error:
                row.wrong.append(f"{name}: {str(error)[:200]}")
                continue
            try:
                if bench.right(run):
                    beat = min(row.found)[0] if row.found else 0.0
                    us = statistics.median(bench.time(run, 10, beat))
                    row.found.append((us, len(row.found), choice))
                else:
                    row.wrong.append(f"{name}: a wrong result")
            except RuntimeError as error:  # as torch tells faults of the device, after which nothing runs any more
                raise DeepgenError(f"{bench.problem.describe()}, {name}: {error}") from error
            run.close()
        row.queue = []

    def vary(self, row: Row) -> None:
        """Queue the best with their sizes in the code, and neighbours of the best two; begin to build them."""
        dice = random.Random(1)
        row.queue += [made for choice in row.best(4) if self.options.near and (made := fixed(choice)) is not None]
        for family, config in row.best(2):
            near = [(family, c) for c in around(family, row.problem, self.target, config)]
            near = [(f, c) for f, c in near if f.name + key_of(c) not in row.seen]
            row.queue += dice.sample(near, min(len(near), self.options.near // 2))
        for choice in row.queue:
            self.start(row.problem, choice)

    def timed(self, bench: Bench, calls: Mapping[str, Call], rounds: int) -> dict[str, float]:
        """Median microseconds, while nothing is built."""
        with self.builder.quiet():
            taken = interleaved(bench, dict(calls), rounds)
        return {name: statistics.median(some) for name, some in taken.items()}

    def settle(self, row: Row, bench: Bench) -> tuple[Choice, Loaded]:
        """Who goes to the finals. Settled before them: the fastest of several would look faster than it is."""
        left = {str(i): choice for i, choice in enumerate(row.best(HEATS[0][0]))}
        loaded = {name: self.load(bench, choice) for name, choice in left.items()}
        for entering, rounds in HEATS:
            left = dict(list(left.items())[:entering])
            taken = self.timed(bench, {name: loaded[name] for name in left}, rounds)
            left = dict(sorted(left.items(), key=lambda entry: taken[entry[0]]))
        won = next(iter(left))
        for name, call in loaded.items():
            if name != won:
                call.close()
        return left[won], loaded[won]

    def finish(self, row: Row, bench: Bench) -> dict[str, Any]:
        """The winner and the rivals, interleaved."""
        problem = row.problem
        others, absent = rivals(bench, with_triton=self.options.triton)
        (family, config), ours = self.settle(row, bench)
        default = self.load(bench, (family, dict(family.default(problem, self.target))))
        calls: dict[str, Call] = {"ours": ours, **others, "default": default}
        benches = dict.fromkeys(calls, bench)
        usual = replace(problem, layout="nt")
        nt = won_before(usual, self.target, self.options.out) if usual != problem else None
        if nt is not None:  # the same product in the usual layout, by what won there
            benches["nt"] = Bench(usual, self.flush)
            calls["nt"] = self.load(benches["nt"], nt)
        before = {name: benches[name].right(call) for name, call in calls.items()}
        us = self.timed(bench, calls, ROUNDS)
        errors = {name: benches[name].error(call) for name, call in calls.items()}
        correct = {name: before[name] and benches[name].right(call) for name, call in calls.items()}
        bytes_, flops = problem.least_bytes(), problem.flops()
        floors = {"products": flops / (self.target.peak(problem.a) or 1) / 1e3}
        floors["memory"] = bytes_ / self.target.bandwidth_gbs / 1e3
        bound = max(floors, key=lambda name: floors[name])
        return {
            "shape": [problem.batch, problem.m, problem.n, problem.k],
            "operator": problem.to_json(),
            "family": family.name,
            "config": config,
            "us": us,
            "ratio": {name: value / us["ours"] for name, value in us.items() if name != "ours"},
            "absent": absent,
            "tflops": flops / us["ours"] / 1e6,
            "gbs": bytes_ / us["ours"] / 1e3,
            "roofline": {"bound": bound, "share": floors[bound] / us["ours"]},
            "correct": correct,
            "error": errors,
            "families": self.by_family(row),
            "tried": len(row.found),
            "untried": row.untried,
            "wrong": row.wrong,
            "next": [{"us": us, "family": f.name, "config": c} for us, _, (f, c) in row.ranked()[:6]],
        }

    def by_family(self, row: Row) -> dict[str, dict[str, float]]:
        """Microseconds of each family's best and of its config without search, as they were tried: not interleaved."""
        out: dict[str, dict[str, float]] = {}
        for us, _, (family, config) in reversed(row.ranked()):
            told = out.setdefault(family.name, {})
            told["best"] = us
            if config == family.default(row.problem, self.target):
                told["default"] = us
        return out

    def run(self, rows: list[Row], tell: Callable[[dict[str, Any]], None]) -> None:
        """Twice over the shapes: while others are measured, a shape's neighbours are built."""
        begun, seconds = time.monotonic(), self.options.seconds
        for row in rows:
            self.try_all(row, Bench(row.problem, self.flush), begun + TRIED * seconds)
            if time.monotonic() < begun + TRIED * seconds:
                self.vary(row)
            say(row, "tried", begun)
        for row in rows:
            bench = Bench(row.problem, self.flush)
            self.try_all(row, bench, begun + VARIED * seconds)
            if not row.found:
                print("no config of ours serves", row.problem.describe(), row.wrong[:2], flush=True)
                continue
            try:
                tell(self.finish(row, bench))
            except DeepgenError as error:
                print("not timed:", row.problem.describe(), str(error)[:300], flush=True)
            say(row, "timed", begun)
            bench.torch.cuda.empty_cache()


def say(row: Row, what: str, begun: float) -> None:
    print(row.problem.describe(), f"{what}, {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)


def name_of(options: argparse.Namespace) -> str:
    if options.dtype == "f32":
        return "simt_gemm"
    sums = {True: "_exact", False: "_fast"}[options.exact_sums] if options.dtype.startswith("f8") else ""
    return f"gemm_{options.dtype}_{options.layout}{sums}"


def command(options: argparse.Namespace) -> str:
    """Without paths, which differ from host to host."""
    flags = [f"--{name.replace('_', '-')}" for name in ("exact_sums", "triton") if getattr(options, name)]
    counts = [f"--{name} {getattr(options, name)}" for name in ("known", "modelled", "near")]
    words = [f"--dtype {options.dtype} --layout {options.layout}", *flags, *counts]
    return "python benchmarks/gpu_gemm.py " + " ".join(words)


def write(
    options: argparse.Namespace, seen: dict[str, Any], rows: list[dict[str, Any]], seconds: float
) -> dict[str, Any]:
    """The results, whole or not at all."""
    sums = ("in f32" if options.exact_sums else "fast") if options.dtype.startswith("f8") else "as the dtype has it"
    told: dict[str, Any] = {
        "command": command(options),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "conditions": {**seen, "sums": sums, "l2": "cold", "rounds": ROUNDS, "seconds": seconds},
        "sources": sources(TENSOR_CORES),
        "summary": summary(rows, options.dtype),
        "rows": rows,
    }
    file = options.out / f"{name_of(options)}.json"
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps(told, indent=1) + "\n")
    fresh.replace(file)
    return told


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="f32", choices=DTYPES)
    parser.add_argument("--layout", default="nt", choices=("nn", "nt", "tn", "tt"))
    parser.add_argument("--exact-sums", action="store_true", help="of 8-bit floats: in f32")
    parser.add_argument("--triton", action="store_true", help="time a kernel in Triton, too")
    parser.add_argument("--known", type=int, default=6, help="configs of each family from earlier runs")
    parser.add_argument("--modelled", type=int, default=8, help="configs that the models of small families rank first")
    parser.add_argument("--near", type=int, default=12, help="neighbours of the best that are tried")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of shapes in the suite's order, from 0")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="beyond a part of them less is tried")
    parser.add_argument("--cores", type=int, default=15, help="for building: one is left to who measures")
    parser.add_argument("--cache", type=Path, help="a folder of built kernels that other runs share")
    parser.add_argument("--out", type=Path, default=HERE / "h200")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    options, begun, torch = arguments(argv), time.monotonic(), gpu_torch()
    options.out.mkdir(parents=True, exist_ok=True)
    before = found_before() + (found_before(options.out) if options.out != RESULTS else [])
    seen, done = {"begin": conditions()}, list[dict[str, Any]]()

    def tell(row: dict[str, Any]) -> None:
        """What there is so far is written at once: a run that is stopped keeps its shapes."""
        done.append(row)
        write(options, seen, done, time.monotonic() - begun)

    with open_device(options.cores, options.cache) as (builder, target, driver):
        flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        problems = [operator(s, options.dtype, options.layout, exact_sums=options.exact_sums) for s in suite()]
        todo = [p for i, p in enumerate(problems) if options.only is None or i in options.only]
        benchmark = Benchmark(options, flush, builder, target, driver)
        benchmark.run([benchmark.row(problem, before) for problem in todo], tell)
    if not done:
        raise DeepgenError(f"no shape was timed in {options.dtype} {options.layout}")
    told = write(options, {**seen, "end": conditions()}, done, time.monotonic() - begun)
    show(done, told["summary"])
    print(f"{time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    run_main(main)
