"""GEMM on this machine's processor against numpy's BLAS and torch: tuned, verified, timed side by side.

    python benchmarks/cpu_gemm.py                                      f32, the whole suite, 1 and 2 threads, tuned
    python benchmarks/cpu_gemm.py --dtype i8 --no-amx --seconds 0      AMX switched off on both sides, default configs
    python benchmarks/cpu_gemm.py --shape 64b32x32x32 --threads 1      one race: a batch of 64, one thread
    python benchmarks/cpu_gemm.py --constant-b --shape 64x4096x1024    B packed ahead of time, kept apart
    python benchmarks/cpu_gemm.py --dtype bf16 --retry                 again, what misses its bar
    python benchmarks/cpu_gemm.py --summary                            what the results say against the bars
    python benchmarks/cpu_gemm.py --tables                             the same, and every shape, in Markdown

Every race (a shape, a layout, a number of threads, cold or warm caches) is added to the results file as soon as it is
run, in place of an earlier result of the same race, so that a long run can be made in parts.

Races on as many threads share a measuring process, since importing torch takes longer than most races.

Both sides are called the same way: a prepared Python call on preallocated arrays, the same number of threads; what the
call itself costs is part of both times, and of an empty C call is kept beside them. Cold means that A, B and C were
flushed from all caches; scratch memory is not, ours or theirs. Rounds are interleaved in random order. A ratio is the
baseline's time over ours in the same round, so that above 1 we are faster; the interval covers 99%. The bound is the
machine's measured peak or memory bandwidth, whichever takes longer; with warm caches memory counts only where the
matrices do not fit in the last-level cache. Tuning times kernels with the caches of the race. `machine_state` is the
share of its best rate that the machine gave before or after the race, whichever is less, and `disturbed` says what
else took the processor's time while it ran.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from common import conditions, run_main
from cpu_gemm_results import Group, found_by, merge, read, shape, summary, tables, wanting
from deepgen import baselines, generators, targets
from deepgen.baselines.numpy_blas import NumpyBlas
from deepgen.baselines.torch_cpu import TorchCpu
from deepgen.generators import Generator
from deepgen.operators import Gemm, gemm
from deepgen.run.measure import Contender, Policy, Task
from deepgen.run.measure.base import arithmetic
from deepgen.run.measure.peak import Bounds, bounding, cpu_bounds, cpu_state
from deepgen.run.measure.race import paired_ratio
from deepgen.run.measure.supervisor import Supervisor
from deepgen.targets import X86
from deepgen.toolchains import build_once
from deepgen.tuning import Request, tune
from deepgen.vocabulary import DeepgenError

OURS = "deepgen"
CALLS = {"numpy": NumpyBlas.called, "torch": TorchCpu.called}
HERE = Path(__file__).parent
SUITES = HERE.parent / "data" / "suites.json"
RESULTS = HERE / "results" / "cpu_gemm.json"
DTYPES = ("f32", "bf16", "f16", "i8", "u8")
# Without AMX: what we may use, and what oneDNN, which reads it when it is loaded, may use at most.
WITHOUT_TILES = {
    "bf16": ("x86:avx512_bf16", "AVX512_CORE_BF16"),
    "i8": ("x86:avx512_vnni", "AVX512_CORE_VNNI"),
    "u8": ("x86:avx512_vnni", "AVX512_CORE_VNNI"),
}
CONSTANT_B = "_constant_b"  # how families end their name that pack B ahead of time
RACE_SECONDS = 4.0
CALM = 0.80  # of the machine's best rate, before a race and after it
FEWEST_ROUNDS, MOST_ROUNDS = 21, 41


class Runners:
    """A measuring process for each number of threads, which is turned to one race after the other."""

    def __init__(self) -> None:
        self._by_threads: dict[int | None, Supervisor] = {}

    def on(self, task: Task) -> Supervisor:
        threads = task.policy.threads
        if threads not in self._by_threads:
            self._by_threads[threads] = Supervisor(task)
        self._by_threads[threads].switch_to(task)
        return self._by_threads[threads]

    def close(self) -> None:
        for runner in self._by_threads.values():
            runner.close()


@dataclass(frozen=True)
class Found:
    """What a race gave."""

    rows: Mapping[str, Any] = field(default_factory=dict)  # of each contender
    call: float = 0.0  # seconds of an empty call
    disturbed: str | None = "nothing was measured"  # what took the processor's time meanwhile
    state: float = -1.0


@dataclass(frozen=True)
class Job:
    """One race: an operator on so many threads, with cold or warm caches, and how its kernel is found."""

    operator: Gemm
    target: X86
    generator: Generator
    threads: int
    cold: bool
    seconds: float
    knobs: Mapping[str, Any]
    studies: Path

    def config(self) -> Mapping[str, Any]:
        """The tuned config, or without any time the default one; in both, given knobs are as given."""
        counts = sorted({1, min(self.threads, self.target.cores)})
        domains = {"THREADS": counts, **{name: [value] for name, value in self.knobs.items()}}
        if not self.seconds:
            machine = replace(self.target, cores=min(self.threads, self.target.cores))
            config = {**self.generator.default(self.operator, machine), **self.knobs}
            if broken := self.generator.space(self.operator, self.target).explain(config):
                raise DeepgenError(f"{config} breaks: {', '.join(b.name for b in broken)}")
            return config
        request = Request(
            self.operator,
            self.target,
            trials=100_000,
            time_budget=self.seconds,
            domains=domains,
            policy=Policy(cold=self.cold, threads=self.threads),
            baselines=False,
            generator=self.generator,
            out=self.studies,
        )
        return tune(request).best().trial.config

    def race(self, runners: Runners, patience: float) -> dict[str, Any]:
        """The result: times of all, their ratios to ours, what was found wrong with any.

        A machine that others slow down is given `patience` seconds to become calm, and what it slowed down all the
        same is raced again. Which race counts is decided by the machine's state around it, not by its times.
        """
        config = self.config()
        numbers = bounding(arithmetic(self.operator), self.target) or "f32"
        bounds = _bounds(self.target, numbers, self.threads)
        best = Found()
        ends = time.monotonic() + patience
        while True:
            before = self._state(numbers)
            if before >= CALM or time.monotonic() >= ends:
                found = self._times(runners, config, self._rounds(self._bound_seconds(bounds, cold=True)))
                found = replace(found, state=min(before, self._state(numbers)))
                best = max(best, found, key=lambda race: (race.disturbed is None, race.state))
                if (best.state >= CALM and best.disturbed is None) or time.monotonic() >= ends:
                    break
            else:
                time.sleep(1.0)
        rows = best.rows
        return {
            "operator": self.operator.to_json(),
            "isa": isa(self.operator, self.target),
            "constant_b": self.generator.name.endswith(CONSTANT_B),
            "threads": self.threads,
            "caches": "cold" if self.cold else "warm",
            "ratio": min((row["ratio"] for row in rows.values() if "ratio" in row), default=None),
            "share_of_bound": self._bound_seconds(bounds, self.cold) / rows[OURS]["seconds"],
            "bounds": vars(bounds),
            "machine_state": best.state,
            "disturbed": best.disturbed,
            "generator": self.generator.name,
            "config": dict(config),
            "tuning_seconds": self.seconds,
            "empty_call_seconds": best.call,
            "contenders": rows,
            "conditions": conditions(),
        }

    def _state(self, numbers: str) -> float:
        return cpu_state(self.target, numbers, self.threads)

    def _times(self, runners: Runners, config: Mapping[str, Any], rounds: int) -> Found:
        kernel = self.generator.emit(self.operator, self.target, config)
        # Others that happen to be installed would make results of two machines answer different questions.
        names = [name for name in baselines.find(self.operator, self.target) if name in CALLS]
        contenders = [Contender(OURS, kernel, build_once(kernel, self.target)), *map(Contender, names)]
        task = Task(self.operator, self.target, policy=Policy(cold=self.cold, threads=self.threads))
        measured = dict(zip([OURS, *names], runners.on(task).compare(contenders, rounds, seed=0), strict=True))
        ours = measured[OURS]
        if not ours.ok:
            raise DeepgenError(f"{self.operator.describe()}: ours is {ours.verdict}: {ours.detail}")
        rows: dict[str, Any] = {OURS: {"seconds": ours.seconds, "gflops": self._gflops(ours.seconds)}}
        for name in names:
            rows[name] = {"call": CALLS[name](self.operator)}
            if not measured[name].ok:
                rows[name] |= {"verdict": str(measured[name].verdict), "detail": measured[name].detail}
                continue
            ratio = paired_ratio(measured[name].samples, ours.samples)
            rows[name] |= {
                "seconds": measured[name].seconds,
                "gflops": self._gflops(measured[name].seconds),
                "ratio": ratio.estimate,
                "interval": [ratio.low, ratio.high],
            }
        call, disturbed = ours.conditions.get("call_seconds"), ours.conditions.get("contaminated")
        seconds = float(call) if isinstance(call, (int, float)) else 0.0
        return Found(rows, seconds, str(disturbed) if disturbed else None)

    def _bound_seconds(self, bounds: Bounds, cold: bool) -> float:
        compute = self.operator.flops() / bounds.gflops * 1e-9
        memory = self.operator.least_bytes() / bounds.gbytes_per_second * 1e-9
        return max(compute, memory) if cold or self.operator.least_bytes() > self.target.l3_bytes else compute

    @staticmethod
    def _rounds(least_seconds: float) -> int:
        return max(FEWEST_ROUNDS, min(MOST_ROUNDS, int(RACE_SECONDS / (8 * least_seconds))))

    def _gflops(self, seconds: float | None) -> float | None:
        return self.operator.flops() / seconds * 1e-9 if seconds else None


@cache
def _bounds(target: X86, dtype: str, threads: int) -> Bounds:
    """Measured once in every run: the machine may be in a better state than when it was measured last."""
    return cpu_bounds(target, dtype, threads, again=True)


def main() -> None:
    options = _options()
    read(options.out)  # a file that cannot take results is said before anything is measured
    if not (options.summary or options.tables):
        target = _target(options)
        with TemporaryDirectory() as scratch, closing(Runners()) as runners:
            for job in _jobs(options, target, Path(options.studies or scratch)):
                race = job.race(runners, options.patience)
                merge(options.out, race)
                print(line(race), flush=True)
    print((tables if options.tables else summary)(read(options.out)))


def line(race: Mapping[str, Any]) -> str:
    """One race in two lines: who took how long, and how ours was found."""
    times = {
        name: f"{row['seconds'] * 1e6:.1f}" if "seconds" in row else f"({row['verdict']})"
        for name, row in race["contenders"].items()
    }
    ours, others = times.pop(OURS), " ".join(f"{name} {time}" for name, time in times.items())
    gflops = race["contenders"][OURS]["gflops"]
    ratio = "no baseline" if race["ratio"] is None else f"{race['ratio']:.2f}"
    return (
        f"{Group.of(race)} {shape(race)}: {ratio}  {ours} us, {others}; {gflops:.0f} GFLOP/s,"
        f" {race['share_of_bound']:.0%} of the bound\n"
        f"    {found_by(race)}: {' '.join(f'{k}={v}' for k, v in race['config'].items())}"
    )


def isa(operator: Gemm, target: X86) -> str:
    """What the target has at best for this operator's products."""
    best = {
        "bf16": ("amx_bf16", "avx512_bf16"),
        "i8": ("amx_int8", "avx512_vnni", "avx_vnni"),
        "u8": ("amx_int8", "avx512_vnni", "avx_vnni"),
        "f16": ("avx512_fp16",),
    }.get(operator.a, ())
    found = next((word for word in (*best, "avx512f", "avx2") if target.has(word)), "sse2")
    return "amx" if found.startswith("amx") else found.removesuffix("f") if found == "avx512f" else found


def _target(options: argparse.Namespace) -> X86:
    name = options.target
    if options.no_amx:
        if options.dtype not in WITHOUT_TILES:
            raise SystemExit(f"--no-amx: tiles do not multiply {options.dtype} but {', '.join(WITHOUT_TILES)}")
        name, os.environ["ONEDNN_MAX_CPU_ISA"] = WITHOUT_TILES[options.dtype]
    target = targets.resolve(name)
    if not isinstance(target, X86):
        raise SystemExit(f"--target: {target.name} is not an x86 target")
    return target


def _jobs(options: argparse.Namespace, target: X86, studies: Path) -> Iterator[Job]:
    known = {"u8": {"dtype": "i8", "a": "u8"}}.get(options.dtype, {"dtype": options.dtype})
    questions = _missed(options, target) if options.retry else _asked(options)
    for (batch, m, n, k), threads, caches in questions:
        operator = gemm(m, n, k, batch=batch, layout=options.layout, **known)
        family = _constant_b(operator, target) if options.constant_b else generators.find(operator, target)
        knobs = _knobs(options.config)
        yield Job(operator, target, family, threads, caches == "cold", options.seconds, knobs, studies)


def _constant_b(operator: Gemm, target: X86) -> Generator:
    for family in generators.serving(operator, target):
        if family.name.endswith(CONSTANT_B):
            return family
    raise SystemExit(f"--constant-b: no family packs B ahead of time for {operator.describe()} on {target.name}")


def _asked(options: argparse.Namespace) -> Iterator[tuple[tuple[int, int, int, int], int, str]]:
    suite = json.loads(SUITES.read_text())["cpu"]
    batches = suite["batched_gemm"] if options.dtype not in ("i8", "u8") else []
    whole = [(1, m, n, k) for m, n, k in suite["gemm"]] + [(b, m, n, k) for b, m, n, k in batches]
    for sizes in [_sizes(text) for text in options.shape] if options.shape else whole:
        for threads in options.threads:
            for caches in options.caches:
                yield sizes, threads, caches


def _missed(options: argparse.Namespace, target: X86) -> list[tuple[tuple[int, int, int, int], int, str]]:
    """The races of the results file that miss their bar, among those that the other options speak of."""
    asked = set(options.shape or ())
    out = []
    for race in wanting(read(options.out)):
        group = Group.of(race)
        operator = Gemm.from_json(race["operator"])
        same = (group.dtype, group.isa, group.layout) == (options.dtype, isa(operator, target), options.layout)
        if same and group.threads in options.threads and group.caches in options.caches:
            sizes = (operator.batch, operator.m, operator.n, operator.k)
            out += [(sizes, group.threads, group.caches)] if not asked or shape(race) in asked else []
    return out


def _sizes(text: str) -> tuple[int, int, int, int]:
    batch, _, sizes = text.rpartition("b")
    try:
        m, n, k = (int(size) for size in sizes.split("x"))
        return int(batch or 1), m, n, k
    except ValueError:
        raise SystemExit(f"--shape {text}: give it as MxNxK, or as BbMxNxK for a batch of B") from None


def _knobs(text: str) -> dict[str, Any]:
    pairs = [pair.split("=", 1) for pair in text.split(",") if pair]
    return {name: _value(value) for name, value in pairs}


def _value(text: str) -> Any:
    words = {"true": True, "false": False}
    return int(text) if text.isdigit() else words.get(text.lower(), text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="f32", choices=DTYPES, help="u8 is u8 times i8 (default: f32)")
    parser.add_argument("--no-amx", action="store_true", help="AMX switched off on both sides")
    parser.add_argument("--layout", default="nn", choices=("nn", "nt", "tn", "tt"))
    parser.add_argument("--shape", action="append", metavar="[Bb]MxNxK", help="may be repeated (default: the suite)")
    parser.add_argument("--constant-b", action="store_true", help="B packed ahead of time, not timed")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--caches", nargs="+", default=["cold", "warm"], choices=("cold", "warm"))
    parser.add_argument("--seconds", type=float, default=120.0, help="of tuning for each race; 0: the default config")
    parser.add_argument("--patience", type=float, default=30.0, help="seconds to wait for a calm machine in each race")
    parser.add_argument("--config", default="", metavar="KNOB=V,...", help="knobs that are given")
    parser.add_argument("--target", default="x86:native")
    parser.add_argument("--studies", help="keep the studies in this folder")
    parser.add_argument("--retry", action="store_true", help="only races whose result in the file misses its bar")
    parser.add_argument("--summary", action="store_true", help="measure nothing, show what the results say")
    parser.add_argument("--tables", action="store_true", help="measure nothing, show all results as Markdown tables")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the results that races are merged into")
    return parser.parse_args()


if __name__ == "__main__":
    run_main(main)
