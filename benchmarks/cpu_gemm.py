"""GEMM on this machine's processor against numpy's BLAS and torch: tuned, verified, timed side by side.

    python benchmarks/cpu_gemm.py                                      1024^3, one and two threads, tuned
    python benchmarks/cpu_gemm.py --suite                              every shape of the suite, plain and batched
    python benchmarks/cpu_gemm.py --shape 64b32x32x32 --threads 1      a batch of 64, one thread: one piece of it
    python benchmarks/cpu_gemm.py --shape 64x64x64 --seconds 0         the default config, not tuned
    python benchmarks/cpu_gemm.py --constant-b --shape 64x4096x1024    B packed ahead of time, kept apart
    python benchmarks/cpu_gemm.py --summary                            what the results say against the goals

Every piece (a shape, a number of threads) is added to the results file as soon as it is measured, in place of an older
one, so that a long run can be made in parts.

Both sides are called the same way: a prepared Python call on preallocated arrays, the same number of threads; what the
call itself costs is part of both times, and of an empty C call is kept beside them. Cold means that A, B and C were
flushed from all caches; scratch memory is not, ours or theirs. Rounds are interleaved in random order. A ratio is the
baseline's time over ours in the same round, so that above 1 we are faster; the interval covers 99%. The bound is the
machine's measured peak or memory bandwidth, whichever takes longer; with warm caches memory counts only where the
matrices do not fit in the last-level cache.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from common import conditions
from deepgen import baselines, generators, targets
from deepgen.build import build_once
from deepgen.generators import Generator
from deepgen.generators.templates.x86_gemm import X86GemmConstant
from deepgen.measure import Contender, Policy, Task, open_runner
from deepgen.measure.peak import x86_bounds
from deepgen.operators import Gemm, gemm
from deepgen.targets import X86
from deepgen.tuning import Request, tune
from deepgen.tuning.statistics import paired_ratio
from deepgen.vocabulary import DeepgenError, digest

OURS = "deepgen"
HERE = Path(__file__).parent
SUITES = HERE.parent / "data" / "suites.json"
RESULTS = HERE / "results" / "cpu_gemm.json"
ENOUGH = 0.90  # of the bound: a shape that reaches it meets its floor whatever the ratio
GOALS = {"gemm": (1.10, 0.97), "batched": (1.5, 1.0)}  # geometric mean, least ratio
RACE_SECONDS = 4.0
FEWEST_ROUNDS, MOST_ROUNDS = 11, 41


@dataclass(frozen=True)
class Job:
    """One shape on so many threads, and how its kernel is found."""

    operator: Gemm
    target: X86
    generator: Generator
    threads: int
    seconds: float
    knobs: Mapping[str, Any]
    studies: Path

    def config(self) -> Mapping[str, Any]:
        """The tuned config, or without any time the default one; in both, given knobs are as given."""
        counts = sorted({1, min(self.threads, self.target.cores)})
        domains = {"THREADS": counts, **{name: [value] for name, value in self.knobs.items()}}
        if not self.seconds:
            default = {**self.generator.default(self.operator, self.target), **self.knobs}
            config = default if self.threads > 1 else _on_one_thread(default)
            if broken := self.generator.space(self.operator, self.target).explain(config):
                raise DeepgenError(f"{config} breaks: {', '.join(b.name for b in broken)}")
            return config
        request = Request(
            self.operator,
            self.target,
            trials=100_000,
            time_budget=self.seconds,
            domains=domains,
            policy=Policy(threads=self.threads),
            baselines=False,
            generator=self.generator,
            out=self.studies,
        )
        return tune(request).best().trial.config

    def race(self, config: Mapping[str, Any], cold: bool) -> tuple[dict[str, Any], float]:
        """Times of all, their ratios to ours, what was found wrong with any; and what an empty call costs."""
        kernel = self.generator.emit(self.operator, self.target, config)
        names = baselines.find(self.operator, self.target)
        contenders = [Contender(OURS, kernel, build_once(kernel, self.target)), *map(Contender, names)]
        runner = open_runner(Task(self.operator, self.target, policy=Policy(cold=cold, threads=self.threads)))
        try:
            measured = dict(zip([OURS, *names], runner.compare(contenders, self._rounds(), seed=0), strict=True))
        finally:
            runner.close()
        ours = measured[OURS]
        if not ours.ok:
            raise DeepgenError(f"{self.operator.describe()}: ours is {ours.verdict}: {ours.detail}")
        rows: dict[str, Any] = {OURS: {"seconds": ours.seconds, "gflops": self._gflops(ours.seconds)}}
        for name in names:
            if not measured[name].ok:
                rows[name] = {"verdict": str(measured[name].verdict), "detail": measured[name].detail}
                continue
            ratio = paired_ratio(measured[name].samples, ours.samples)
            rows[name] = {
                "seconds": measured[name].seconds,
                "gflops": self._gflops(measured[name].seconds),
                "ratio": ratio.estimate,
                "interval": [ratio.low, ratio.high],
            }
        call = ours.conditions.get("call_seconds")
        return rows, float(call) if isinstance(call, (int, float)) else 0.0

    def bound_seconds(self, cold: bool) -> float:
        bounds = x86_bounds(self.target, self.operator.acc, self.threads)
        compute = self.operator.flops() / bounds.gflops * 1e-9
        memory = self.operator.least_bytes() / bounds.gbytes_per_second * 1e-9
        return max(compute, memory) if cold or self.operator.least_bytes() > self.target.l3_bytes else compute

    def _rounds(self) -> int:
        return max(FEWEST_ROUNDS, min(MOST_ROUNDS, int(RACE_SECONDS / (8 * self.bound_seconds(cold=True)))))

    def _gflops(self, seconds: float | None) -> float | None:
        return self.operator.flops() / seconds * 1e-9 if seconds else None

    def pieces(self) -> Iterator[dict[str, Any]]:
        """One result with cold caches, one with warm ones."""
        config = self.config()
        for cold in (True, False):
            rows, call = self.race(config, cold)
            yield {
                "operator": self.operator.to_json(),
                "generator": self.generator.name,
                "threads": self.threads,
                "caches": "cold" if cold else "warm",
                "tuning_seconds": self.seconds,
                "config": dict(config),
                "ratio": min((row["ratio"] for row in rows.values() if "ratio" in row), default=None),
                "share_of_bound": self.bound_seconds(cold) / rows[OURS]["seconds"],
                "empty_call_seconds": call,
                "contenders": rows,
                "conditions": conditions(),
            }


def main() -> None:
    options = _options()
    console = Console()
    if not options.summary:
        target = targets.resolve(options.target)
        if not isinstance(target, X86):
            raise DeepgenError(f"{target.name} is not an x86 target")
        shapes = _suite() if options.suite else [_shape(text) for text in options.shape or ["1024x1024x1024"]]
        with TemporaryDirectory() as scratch:
            for batch, m, n, k in shapes:
                operator = gemm(m, n, k, batch=batch, dtype=options.dtype, layout=options.layout)
                family = X86GemmConstant() if options.constant_b else generators.find(operator, target)
                for threads in options.threads:
                    studies = Path(options.studies or scratch)
                    job = Job(operator, target, family, threads, options.seconds, _knobs(options.config), studies)
                    for piece in job.pieces():
                        merge(options.out, piece)
                        console.print(_table(piece, operator))
    if options.out.exists():
        console.print(summary(read(options.out)))


def read(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text())["results"]["races"])


def merge(path: Path, piece: Mapping[str, Any]) -> None:
    """Add one result, in place of an earlier one of the same question."""
    races = [race for race in read(path) if _question(race) != _question(piece)] if path.exists() else []
    races = sorted([*races, dict(piece)], key=lambda race: json.dumps(_question(race)))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"conditions": conditions(), "results": {"races": races}}, indent=1) + "\n")


def _question(race: Mapping[str, Any]) -> list[Any]:
    return [race["generator"], race["threads"], race["caches"], digest(race["operator"])]


def _group(race: Mapping[str, Any]) -> str:
    return "batched" if race["operator"]["batch"] > 1 else "gemm"


def summary(races: Sequence[Mapping[str, Any]]) -> Table:
    """For each question of the suite: the mean, the least, and the shapes that miss their floor."""
    table = Table("generator", "what", "threads", "caches", "mean", "goal", "least", "floor", "shapes that miss it")
    kinds = sorted({(r["generator"], r["operator"]["a"], _group(r), r["threads"], r["caches"]) for r in races})
    for generator, dtype, group, threads, caches in kinds:
        found = [
            race
            for race in races
            if (race["generator"], race["operator"]["a"], _group(race), race["threads"], race["caches"])
            == (generator, dtype, group, threads, caches)
            and race["ratio"]
        ]
        if not found:
            continue
        mean = exp(sum(log(race["ratio"]) for race in found) / len(found))
        goal, floor = GOALS[group]
        low = [race for race in found if race["ratio"] < floor and race["share_of_bound"] < ENOUGH]
        words = [f"{_name(race)} {race['ratio']:.2f} ({race['share_of_bound']:.0%} of bound)" for race in low]
        least = min(race["ratio"] for race in found)
        table.add_row(
            generator, f"{dtype} {group}, {len(found)}", str(threads), caches, f"{mean:.3f}", f"{goal:.2f}",
            f"{least:.2f}", f"{floor:.2f}", "; ".join(words) or "none",
        )  # fmt: skip
    return table


def _name(race: Mapping[str, Any]) -> str:
    o = race["operator"]
    batch = f"{o['batch']}b" if o["batch"] > 1 else ""
    return f"{batch}{o['m']}x{o['n']}x{o['k']}"


def _table(result: Mapping[str, Any], operator: Gemm) -> Table:
    title = f"{operator.describe()}, {result['threads']} threads, {result['caches']} caches"
    table = Table("", "microseconds", "GFLOP/s", "ratio", "99% interval", title=title, title_justify="left")
    for name, row in result["contenders"].items():
        if "seconds" not in row:
            table.add_row(name, row["verdict"], "", "", row["detail"])
            continue
        times = (f"{row['seconds'] * 1e6:.1f}", f"{row['gflops']:.1f}")
        if name == OURS:
            table.add_row(name, *times, "", f"{result['share_of_bound']:.0%} of the bound")
        else:
            low, high = row["interval"]
            table.add_row(name, *times, f"{row['ratio']:.3f}", f"{low:.3f} to {high:.3f}")
    table.caption = " ".join(f"{k}={v}" for k, v in result["config"].items())
    return table


def _on_one_thread(config: Mapping[str, Any]) -> dict[str, Any]:
    return {**{k: v for k, v in config.items() if k not in ("PARTITION", "TASKS", "CURVE")}, "THREADS": 1}


def _suite() -> list[tuple[int, int, int, int]]:
    shapes = json.loads(SUITES.read_text())["cpu"]
    return [(1, m, n, k) for m, n, k in shapes["gemm"]] + [(b, m, n, k) for b, m, n, k in shapes["batched_gemm"]]


def _shape(text: str) -> tuple[int, int, int, int]:
    batch, _, sizes = text.rpartition("b")
    m, n, k = (int(size) for size in sizes.split("x"))
    return int(batch or 1), m, n, k


def _knobs(text: str) -> dict[str, Any]:
    pairs = [pair.split("=", 1) for pair in text.split(",") if pair]
    return {name: _value(value) for name, value in pairs}


def _value(text: str) -> Any:
    words = {"true": True, "false": False}
    return int(text) if text.isdigit() else words.get(text.lower(), text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", metavar="[Bb]MxNxK", help="may be given several times")
    parser.add_argument("--suite", action="store_true", help="all shapes of data/suites.json")
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--layout", default="nt", choices=("nn", "nt", "tn", "tt"))
    parser.add_argument("--constant-b", action="store_true", help="B packed ahead of time, not timed")
    parser.add_argument("--target", default="x86:native")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=120.0, help="of tuning for each piece; 0: the default config")
    parser.add_argument("--config", default="", metavar="KNOB=V,...", help="knobs that are given")
    parser.add_argument("--studies", help="keep the studies in this folder")
    parser.add_argument("--summary", action="store_true", help="measure nothing, show what the results say")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the results that pieces are merged into")
    return parser.parse_args()


if __name__ == "__main__":
    main()
