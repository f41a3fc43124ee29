"""GEMM on an NVIDIA GPU: the best of our families against cuBLASLt, torch and Triton, interleaved and with a cold L2.

The shapes are the 21 GEMM and 5 batched ones of data/suites.json, standard-normal inputs (i8: uniform over -8..7). Ours
is the best of all families that serve a shape: configs known from earlier runs (gpu_known.py), what the families take
without search, and neighbours of the best of these. cuBLASLt is given 64 MiB and is the fastest of all algorithms that
its heuristic returns for 64 requested. Other layouts are timed beside what won in nt, if its results lie where these
go. 8-bit floats are added up on both sides as the tensor cores do it (`fast`), or
in f32 (`--exact-sums`). Every result is checked against float64, before timing and after. Needs torch, numpy and
cuda-bindings, and Triton for `--triton`; no installation of deepgen.

    python benchmarks/gpu_gemm.py --dtype bf16 --triton --out benchmarks/h200
    python benchmarks/gpu_gemm.py --dtype f8e4m3 --exact-sums --out benchmarks/h200
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "h200"), str(HERE.parent / "src")]

import simt_candidates as simt  # noqa: E402

from deepgen.generators import by_name  # noqa: E402
from deepgen.generators.base import Generator  # noqa: E402
from deepgen.generators.templates.mma import defaults as mma_model  # noqa: E402
from deepgen.generators.templates.skinny import defaults as skinny_model  # noqa: E402
from deepgen.generators.templates.sm90.defaults import Way  # noqa: E402
from deepgen.generators.templates.sm90.defaults import config as sm90_config  # noqa: E402
from deepgen.measure.gpu_driver import Driver  # noqa: E402
from deepgen.operators import Gemm  # noqa: E402
from deepgen.targets import Cuda  # noqa: E402
from deepgen.vocabulary import DeepgenError  # noqa: E402
from gpu_bench import (  # noqa: E402
    DTYPES,
    FLUSH_BYTES,
    Bench,
    Builder,
    Config,
    Loaded,
    Shape,
    conditions,
    interleaved,
    key_of,
    open_device,
    operator,
    sources,
    suite,
)
from gpu_known import Found, fitting, found_before, known, won_before  # noqa: E402
from gpu_rivals import Call, rivals  # noqa: E402
from gpu_summary import show, summary  # noqa: E402

ROUNDS, FINALISTS = 31, 4
BUILD_SECONDS = 20.0  # beyond which a kernel is not waited for
FAMILIES = {"f32": ("simt_gemm", "skinny_gemm"), "f64": ("simt_gemm",)}
SMALL = 5e9
TURNED = (128, 144, 160, 168, 176, 192)
TENSOR_CORES = ("sm90_gemm", "skinny_gemm", "mma_gemm")
Choice = tuple[Generator, Config]


@dataclass
class Row:
    """One shape: what is known of it so far."""

    problem: Gemm
    queue: list[Choice]
    seen: set[str] = field(default_factory=set)
    found: list[tuple[float, int, Choice]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def ranked(self) -> list[tuple[float, int, Choice]]:
        return sorted(self.found, key=lambda found: found[:2])

    def best(self, count: int) -> list[Choice]:
        return [choice for _, _, choice in self.ranked()[:count]]


class Benchmark:
    """All shapes of one dtype: tried, varied, and timed against the rivals."""

    def __init__(self, options: argparse.Namespace, flush: Any, builder: Builder, target: Cuda, driver: Driver) -> None:
        self.options, self.flush, self.builder, self.target, self.driver = options, flush, builder, target, driver

    def start(self, problem: Gemm, choice: Choice) -> None:
        self.builder.start(choice[0].emit(problem, self.target, choice[1]))

    def load(self, bench: Bench, choice: Choice) -> Loaded:
        kernel = choice[0].emit(bench.problem, self.target, choice[1])
        return Loaded(bench, kernel, self.builder.start(kernel).result(BUILD_SECONDS), self.driver)

    def try_all(self, row: Row, bench: Bench) -> None:
        """Check and time what is in the queue."""
        for choice in row.queue:
            name = choice[0].name + key_of(choice[1])
            if name in row.seen:
                continue
            row.seen.add(name)
            try:
                run = self.load(bench, choice)
            except (RuntimeError, DeepgenError, TimeoutError, FutureTimeoutError) as error:
                row.wrong.append(f"{name}: {str(error)[:200]}")
                continue
            if bench.right(run):
                beat = min(row.found)[0] if row.found else 0.0
                us = statistics.median(bench.time(run, 10, beat))
                row.found.append((us, len(row.found), choice))
            else:
                row.wrong.append(f"{name}: a wrong result")
            run.close()
        row.queue = []

    def vary(self, row: Row) -> None:
        """Queue neighbours of the best, half of them of the very best, and begin to build them."""
        dice = random.Random(1)
        for family, config in row.best(2):
            near = [(family, c) for c in around(family, row.problem, self.target, config)]
            near = [(f, c) for f, c in near if f.name + key_of(c) not in row.seen]
            near = [choice for choice in near if sums_are(choice, row.problem, self.options.exact_sums)]
            row.queue += dice.sample(near, min(len(near), self.options.near // 2))
        for choice in row.queue:
            self.start(row.problem, choice)

    def finish(self, row: Row, bench: Bench) -> dict[str, Any]:
        """The best few and the rivals, interleaved."""
        problem, exact = row.problem, self.options.exact_sums
        others, absent = rivals(bench, fast_sums=not exact, with_triton=self.options.triton)
        finalists = {f"ours {i}": self.load(bench, choice) for i, choice in enumerate(row.best(FINALISTS))}
        # Who goes to the finals is settled before them: the fastest of several would look faster than it is.
        taken = interleaved(bench, dict(finalists), ROUNDS // 2)
        won = min(range(len(finalists)), key=lambda i: statistics.median(taken[f"ours {i}"]))
        family, config = row.best(FINALISTS)[won]
        default = (family, dict(family.default(problem, self.target)))
        calls: dict[str, Call] = {"ours": finalists[f"ours {won}"], **others}
        if sums_are(default, problem, exact):
            calls["default"] = self.load(bench, default)
        benches = dict.fromkeys(calls, bench)
        nt = (
            won_before(replace(problem, layout="nt"), self.target, self.options.out) if problem.layout != "nt" else None
        )
        if nt is not None:  # the same product in the usual layout, by what won there
            benches["nt"] = Bench(replace(problem, layout="nt"), self.flush)
            calls["nt"] = self.load(benches["nt"], nt)
        before = {name: benches[name].right(call) for name, call in calls.items()}
        us = {name: statistics.median(some) for name, some in interleaved(bench, calls, ROUNDS).items()}
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
            "wrong": row.wrong,
            "next": [
                {"us": us, "family": f.name, "config": c}
                for us, _, (f, c) in sorted(row.found, key=lambda f: f[:2])[:6]
            ],
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


def around(family: Generator, problem: Gemm, target: Cuda, config: Config) -> list[Config]:
    if family.name == "simt_gemm":
        return [c for c in (*simt.turned(config), *simt.neighbours(config)) if simt.valid(c)]
    # Not by the space's own neighbours: they take a table of the whole space, which is seconds of a host's time.
    space = family.space(problem, target)
    changed = [{**config, k.name: v} for k in space.knobs if k.name in config for v in k.values if v != config[k.name]]
    return [c for some in changed for c in fitting(space, some) if c != config]


def serving(problem: Gemm, target: Cuda) -> list[Generator]:
    families = [by_name(name) for name in FAMILIES.get(problem.a, TENSOR_CORES)]
    found = [f for f in families if f.refuses(problem, target) is None]
    # Warp-wide products reach two thirds of this chip's rate: where products take long they are not worth a trial.
    small = problem.flops() < SMALL or len(found) == 1
    return [f for f in found if f.name != "mma_gemm" or small]


def first_choices(problem: Gemm, target: Cuda, before: list[Found], options: argparse.Namespace) -> list[Choice]:
    out: list[Choice] = []
    for family in serving(problem, target):
        configs = known(problem, family, target, before, options.known)
        if family.name == "simt_gemm":
            shape: Shape = (problem.batch, problem.m, problem.n, problem.k)
            configs += simt_known(shape) + simt.candidates(shape, options.known)
        else:
            configs += modelled(family, problem, target, options.modelled)
        out += [(family, c) for c in configs]
    if problem.a.startswith("f8"):
        out = [choice for some in out for choice in promoted(some, problem, target)]
    if options.modelled and not options.exact_sums:  # two sets of sums leave no room for these tiles
        out += [(f, c) for f in serving(problem, target) for c in in_turns(f, problem, target)]
    return out


def modelled(family: Generator, problem: Gemm, target: Cuda, most: int) -> list[Config]:
    """What a family's own model ranks first, few of one tile and way to share out K."""
    models: dict[str, Any] = {"mma_gemm": mma_model, "skinny_gemm": skinny_model}
    if family.name not in models or not most:
        return []
    model, space = models[family.name], family.space(problem, target)
    chosen, seen = list[Config](), dict[Any, int]()
    for c in sorted(model.candidates(problem, target), key=lambda c: float(model.seconds(problem, target, c))):
        kind = tuple(c.get(k) for k in ("BM", "BN", "WARPS_K", "FIXUP", "TILES", "WARPS_R", "SPLITS"))
        if seen.get(kind, 0) < 2 and not space.explain(c):
            seen[kind] = seen.get(kind, 0) + 1
            chosen.append(c)
        if len(chosen) == most:
            break
    return chosen


def in_turns(family: Generator, problem: Gemm, target: Cuda) -> list[Config]:
    """Of the Hopper family, for large products: two warpgroups that take turns at tiles of 128 rows, in several orders.

    Its model ranks them too low: it knows nothing of power, nor that neighbours' requests are merged on their way.
    """
    if family.name != "sm90_gemm" or problem.flops() < SMALL:
        return []
    space = family.space(problem, target)
    orders: tuple[Config, ...] = ({"GROUP": 8}, {"GROUP": 16}, {"ALONG": "N"}, {"HILBERT": True})
    ways = [Way(2, 2, bn, turns=True, cluster=c) for bn in TURNED for c in ((1, 1), (2, 1))]
    made = [c for way in ways if (c := sm90_config(problem, target, way)) is not None]
    return [{**c, **order} for c in made for order in orders if not space.explain({**c, **order})]


def promoted(choice: Choice, problem: Gemm, target: Cuda) -> list[Choice]:
    """A choice as it is, and with sums of 8-bit floats that are moved to f32 after so many steps."""
    family, config = choice
    if family.name != "sm90_gemm":
        return [choice]
    space = family.space(problem, target)
    fast: Config = {**config, "PROMOTE": 0}
    if config.get("PROMOTE"):
        return [(family, c) for c in (config, fast) if not space.explain(c)]
    exact: list[Config] = []
    # There are two sets of sums then: other tiles, where one does not leave room for another.
    tiles: tuple[Config, ...] = ({}, {"CONSUMERS": 2, "TILES_M": 1, "REGISTERS": True})
    stores: tuple[Config, ...] = ({}, {"STORE": "copy", "BUFFERS": 2})
    for tile in tiles:
        for store in stores:
            for columns in dict.fromkeys((config["BN"], 192, 160, 128, 64)):
                exact.append({**config, **tile, **store, "PROMOTE": 4, "BN": columns})
    fitting = [c for c in exact if not space.explain(c)]
    return [(family, c) for c in (fast, *fitting[:2]) if not space.explain(c)]


def sums_are(choice: Choice, problem: Gemm, exact: bool) -> bool:
    """Whether 8-bit floats are added up as is asked for. Warpgroups lose bits of the sums unless they are promoted."""
    family, config = choice
    if not problem.a.startswith("f8") or family.name != "sm90_gemm":
        return True
    return bool(config["PROMOTE"]) == exact


def simt_known(shape: Shape) -> list[Config]:
    file = HERE / "h200/simt_gemm_configs.json"
    found: list[Config] = json.loads(file.read_text()).get(str(list(shape)), []) if file.exists() else []
    return found


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


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="f32", choices=DTYPES)
    parser.add_argument("--layout", default="nt", choices=("nn", "nt", "tn", "tt"))
    parser.add_argument("--exact-sums", action="store_true", help="of 8-bit floats: in f32")
    parser.add_argument("--triton", action="store_true", help="time a kernel in Triton, too")
    parser.add_argument("--known", type=int, default=6, help="configs of each family from earlier runs")
    parser.add_argument("--modelled", type=int, default=8, help="configs that the models of small families rank first")
    parser.add_argument("--near", type=int, default=12, help="neighbours of the best that are tried")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of shapes in the suite's order, from 0")
    parser.add_argument("--cores", type=int, default=16)
    parser.add_argument("--built", type=Path, help="a folder of kernels that are built already by other processes")
    parser.add_argument("--out", type=Path, default=HERE / "h200")
    return parser.parse_args()


def main() -> None:
    import torch

    options, begun = arguments(), time.monotonic()
    builder, target, driver = open_device(options.cores, options.built)
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    benchmark, before = Benchmark(options, flush, builder, target, driver), found_before()
    problems = [operator(s, options.dtype, options.layout) for s in suite()]
    todo = [p for i, p in enumerate(problems) if options.only is None or i in options.only]
    rows = [
        Row(p, [c for c in first_choices(p, target, before, options) if sums_are(c, p, options.exact_sums)])
        for p in todo
    ]
    for row in rows:
        for choice in row.queue:
            benchmark.start(row.problem, choice)
    seen, done = {"begin": conditions()}, list[dict[str, Any]]()
    # Twice over the shapes: while others are measured, a shape's neighbours are built.
    for row in rows:
        benchmark.try_all(row, Bench(row.problem, flush))
        benchmark.vary(row)
        print(row.problem.describe(), f"tried, {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    for row in rows:
        if not row.queue and not row.found:
            print("no family of ours serves", row.problem.describe())
            continue
        bench = Bench(row.problem, flush)
        benchmark.try_all(row, bench)
        done.append(benchmark.finish(row, bench))
        print(row.problem.describe(), f"{time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
        torch.cuda.empty_cache()
    seen["end"] = conditions()
    sums = ("in f32" if options.exact_sums else "fast") if options.dtype.startswith("f8") else "as the dtype has it"
    told: dict[str, Any] = {
        "command": command(options),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "conditions": {**seen, "sums": sums, "l2": "cold", "rounds": ROUNDS, "seconds": time.monotonic() - begun},
        "sources": sources(TENSOR_CORES),
        "summary": summary(done, options.dtype),
        "rows": done,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{name_of(options)}.json").write_text(json.dumps(told, indent=1) + "\n")
    show(done, told["summary"])
    print(f"{time.monotonic() - begun:.0f} s", flush=True)
    os._exit(0)  # without waiting for builds that were given up


if __name__ == "__main__":
    main()
