"""f32 GEMM on this machine's processor against numpy's BLAS and torch: tuned, verified, timed side by side.

    python benchmarks/cpu_gemm.py                                  1024^3 on two threads, tuned with the default budget
    python benchmarks/cpu_gemm.py --suite --trials 300             every shape of the suite
    python benchmarks/cpu_gemm.py --shape 64x64x64 --trials 0      the default config, not tuned
    python benchmarks/cpu_gemm.py --config MR=8,NR=3,KC=512        the default config with these knobs changed

A ratio is the baseline's time over ours in the same round, so that above 1 we are faster. Rounds are interleaved in
random order; the interval covers 99%.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from common import save
from deepgen import baselines, generators, targets
from deepgen.build import build_once
from deepgen.measure import Contender, Policy, Task, open_runner
from deepgen.measure.peak import x86_peak
from deepgen.operators import Gemm, gemm
from deepgen.targets import X86
from deepgen.tuning import Request, tune
from deepgen.tuning.statistics import paired_ratio
from deepgen.vocabulary import DeepgenError

OURS = "deepgen"
SUITES = Path(__file__).parents[1] / "data" / "suites.json"


@dataclass(frozen=True)
class Job:
    """One shape on so many threads, and how its kernel is found."""

    operator: Gemm
    target: X86
    threads: int
    trials: int
    strategy: str
    knobs: Mapping[str, Any]
    studies: Path

    def config(self) -> Mapping[str, Any]:
        """The tuned config, or with no trials the default one; in both, given knobs are as given."""
        family = generators.find(self.operator, self.target)
        default = {**family.default(self.operator, self.target), **self.knobs}
        if not self.trials:
            if broken := family.space(self.operator, self.target).explain(default):
                raise DeepgenError(f"{default} breaks: {', '.join(b.name for b in broken)}")
            return default
        counts = [n for n in (1, self.threads) if n == 1 or n <= self.target.cores]
        domains = {"THREADS": sorted(set(counts)), **{name: [value] for name, value in self.knobs.items()}}
        request = Request(
            self.operator,
            self.target,
            trials=self.trials,
            strategy=self.strategy,
            domains=domains,
            policy=Policy(threads=self.threads),
            baselines=False,
            out=self.studies,
        )
        return tune(request).best().trial.config

    def race(self, config: Mapping[str, Any], cold: bool, rounds: int) -> dict[str, Any]:
        """Times of all, their ratios to ours, and what was found wrong with any."""
        kernel = generators.find(self.operator, self.target).emit(self.operator, self.target, config)
        names = baselines.find(self.operator, self.target)
        contenders = [Contender(OURS, kernel, build_once(kernel, self.target)), *map(Contender, names)]
        task = Task(self.operator, self.target, policy=Policy(cold=cold, threads=self.threads))
        runner = open_runner(task)
        try:
            measured = dict(zip([OURS, *names], runner.compare(contenders, rounds, seed=0), strict=True))
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
        return rows

    def _gflops(self, seconds: float | None) -> float | None:
        return self.operator.flops() / seconds * 1e-9 if seconds else None


def main() -> None:
    options = _options()
    console = Console()
    target = targets.resolve(options.target)
    if not isinstance(target, X86):
        raise DeepgenError(f"{target.name} is not an x86 target")
    peak = x86_peak(target, "f32", options.threads)
    shapes = _suite() if options.suite else [_shape(text) for text in options.shape or ["1024x1024x1024"]]
    caches = {"cold": [True], "warm": [False], "both": [True, False]}[options.caches]
    results = []
    with TemporaryDirectory() as scratch:
        for shape in shapes:
            operator = gemm(*shape, layout=options.layout)
            knobs = _knobs(options.config)
            studies = Path(options.studies or scratch)
            job = Job(operator, target, options.threads, options.trials, options.strategy, knobs, studies)
            config = job.config()
            for cold in caches:
                rows = job.race(config, cold, options.rounds)
                results.append(
                    {
                        "operator": operator.to_json(),
                        "threads": options.threads,
                        "caches": "cold" if cold else "warm",
                        "trials": options.trials,
                        "strategy": options.strategy,
                        "config": dict(config),
                        "share_of_peak": rows[OURS]["gflops"] / peak,
                        "contenders": rows,
                    }
                )
                console.print(_table(results[-1], operator))
    worst = {caches: _geometric_mean(caches, results) for caches in sorted({r["caches"] for r in results})}
    for name, mean in worst.items():
        console.print(f"{name} caches: geometric mean of the ratio to the better baseline {mean:.3f}")
    if options.out:
        save(options.out, {"peak_gflops": peak, "geometric_mean": worst, "races": results})


def _table(result: Mapping[str, Any], operator: Gemm) -> Table:
    title = f"{operator.describe()}, {result['threads']} threads, {result['caches']} caches"
    table = Table("", "microseconds", "GFLOP/s", "ratio", "99% interval", title=title, title_justify="left")
    for name, row in result["contenders"].items():
        if "seconds" not in row:
            table.add_row(name, row["verdict"], "", "", row["detail"])
            continue
        times = (f"{row['seconds'] * 1e6:.1f}", f"{row['gflops']:.1f}")
        if name == OURS:
            table.add_row(name, *times, "", f"{result['share_of_peak']:.0%} of peak")
        else:
            low, high = row["interval"]
            table.add_row(name, *times, f"{row['ratio']:.3f}", f"{low:.3f} to {high:.3f}")
    table.caption = " ".join(f"{k}={v}" for k, v in result["config"].items())
    return table


def _geometric_mean(caches: str, results: Sequence[Mapping[str, Any]]) -> float:
    races = [r["contenders"].values() for r in results if r["caches"] == caches]
    ratios = [min(row["ratio"] for row in rows if "ratio" in row) for rows in races]
    return exp(sum(map(log, ratios)) / len(ratios))


def _suite() -> list[tuple[int, int, int]]:
    return [(m, n, k) for m, n, k in json.loads(SUITES.read_text())["cpu"]["gemm"]]


def _shape(text: str) -> tuple[int, int, int]:
    m, n, k = (int(size) for size in text.split("x"))
    return m, n, k


def _knobs(text: str) -> dict[str, Any]:
    pairs = [pair.split("=", 1) for pair in text.split(",") if pair]
    return {name: _value(value) for name, value in pairs}


def _value(text: str) -> Any:
    words = {"true": True, "false": False}
    return int(text) if text.isdigit() else words.get(text.lower(), text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", metavar="MxNxK", help="may be given several times")
    parser.add_argument("--suite", action="store_true", help="all shapes of data/suites.json")
    parser.add_argument("--layout", default="nn", choices=("nn", "nt", "tn", "tt"))
    parser.add_argument("--target", default="x86:native")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--trials", type=int, default=200, help="0: no tuning, the default config")
    parser.add_argument("--strategy", default="random")
    parser.add_argument("--config", default="", metavar="KNOB=V,...", help="knobs that are given")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--caches", default="both", choices=("cold", "warm", "both"))
    parser.add_argument("--studies", help="keep the studies in this folder")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
