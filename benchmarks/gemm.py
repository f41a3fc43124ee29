"""Are our GEMMs faster than the vendors' libraries? Any GPU or processor: cuBLASLt, MKL, oneDNN, torch, Triton.

    python benchmarks/gemm.py                                            f32 on this processor, 1 and 2 threads
    python benchmarks/gemm.py --target cuda:native --dtype bf16 --layout nt --seconds 60
    python benchmarks/gemm.py --dtype i8 --no-amx --seconds 0            AMX off on both sides, default configs
    python benchmarks/gemm.py --shape 64b32x32x32 --threads 1            one race: a batch of 64, one thread
    python benchmarks/gemm.py --constant-b --shape 64x4096x1024          B packed ahead of time, kept apart
    python benchmarks/gemm.py --dtype bf16 --retry                       again, what misses its bar
    python benchmarks/gemm.py --summary [--json FILE]                    what results say against the bars
    python benchmarks/gemm.py --tables [--json FILE]                     the same, and every shape, in Markdown

A race is a shape, a layout, a number of threads, and cold or warm caches. Its result is added to the file at once and
replaces an earlier one, so that a long run can be done in parts. Each family that supports the shape is tuned for its
share of `--seconds`; the earlier winner in the file is tried, too. A separate race selects which of them is timed with
the libraries, so that the samples used for selection are not those used for judging.

All sides are called the same way on preallocated arrays, verified, and timed in rounds in random order. A ratio is the
library's time over ours in the same round, so above 1 we are faster; the interval covers 99%. `ratio` is over the
fastest library. The bound is the measured peak or the memory's bandwidth, whichever takes longer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from deepgen import generators, targets
from deepgen.generators import Generator
from deepgen.libraries.racing import Runners
from deepgen.operators import Gemm, gemm
from deepgen.run.measure import bandwidth, peak_gflops
from deepgen.targets import X86, Target
from deepgen.tuning.speed import bound
from deepgen.vocabulary import BadInput, DeepgenError
from gemm_results import Group, merge, origin, read, summary, tables, wanting
from gemm_results import shape as shape_of
from harness import RESULTS, Conditions, Options, parser, plain, run_main
from harness.cases import Shape, shape, shape_text, suite
from harness.race import DEFAULT, OURS, Choice, Config, Place, fitting, race, tuned

DTYPES = ("f32", "tf32", "f64", "f16", "bf16", "f8e4m3", "f8e5m2", "i8", "u8")
# Without AMX: the instructions for us, and the limit for oneDNN, which reads it when it is loaded.
WITHOUT_TILES = {
    "bf16": ("x86:avx512_bf16", "AVX512_CORE_BF16"),
    "i8": ("x86:avx512_vnni", "AVX512_CORE_VNNI"),
    "u8": ("x86:avx512_vnni", "AVX512_CORE_VNNI"),
}
CONSTANT_B = "_constant_b"  # name suffix of families that pack B ahead of time
ON_CPU = ("numpy", "torch")  # with other installed libraries, results of two machines would not be comparable
FEWEST = 8  # rounds of the race that selects the kernel to be timed


@dataclass(frozen=True)
class Result:
    """One race in the form stored in the file."""

    operator: Mapping[str, Any]
    isa: str
    constant_b: bool
    threads: int  # 0 on a GPU
    caches: str
    ratio: float | None
    share_of_bound: float | None
    generator: str
    config: Config
    tuning_seconds: float
    contenders: Mapping[str, Mapping[str, Any]]
    failed: Mapping[str, str]
    rounds: int
    conditions: Conditions


@dataclass(frozen=True)
class Job:
    """A race to be run."""

    operator: Gemm
    place: Place
    families: tuple[Generator, ...]
    seconds: float
    before: tuple[str, Config] | None  # family and config of the earlier winner
    baselines: tuple[str, ...] | None

    def run(self, runners: Runners, studies: Path) -> Result:
        winner = self._settled(runners, studies)
        default = Choice(winner.family, winner.family.default(self.operator, self.place.limited()))
        choices = {OURS: winner} | ({DEFAULT: default} if dict(default.config) != dict(winner.config) else {})
        raced = race(self.operator, self.place, choices, runners, self.baselines)
        beside = {name: {**asdict(one), "interval": [one.low, one.high]} for name, one in raced.beside.items()}
        least = _bound_seconds(self.operator, self.place.target)
        return Result(
            operator=self.operator.to_json(),
            isa=isa(self.operator, self.place.target),
            constant_b=winner.family.name.endswith(CONSTANT_B),
            threads=self.place.threads or 0,
            caches="cold" if self.place.cold else "warm",
            ratio=raced.ratio,
            share_of_bound=least / raced.seconds if least else None,
            generator=winner.family.name,
            config=dict(winner.config),
            tuning_seconds=self.seconds,
            contenders={OURS: {"seconds": raced.seconds}, **beside},
            failed=raced.failed,
            rounds=raced.rounds,
            conditions=Conditions.now(),
        )

    def _settled(self, runners: Runners, studies: Path) -> Choice:
        """The best of all families and the earlier winner."""
        share = self.seconds / len(self.families)
        choices = []
        for family in self.families if self.seconds else self.families[:1]:
            choices.append(Choice(family, tuned(self.operator, self.place, family, share, studies)))
        if self.before is not None and self.seconds:
            family = generators.by_name(self.before[0])
            if (config := fitting(family.space(self.operator, self.place.target), self.before[1])) is not None:
                choices.append(Choice(family, config))
        if len(choices) == 1:
            return choices[0]
        named = {str(number): choice for number, choice in enumerate(choices)}
        raced = race(self.operator, self.place, named, runners, names=(), rounds=FEWEST)
        seconds = {"0": raced.seconds, **{name: one.seconds for name, one in raced.beside.items()}}
        return named[min(seconds, key=lambda name: seconds[name])]


@cache
def _rates(operator: Gemm, target: Target) -> tuple[float | None, float | None]:
    return peak_gflops(operator, target), bandwidth(operator, target) if target.runner == "cpu" else target.bandwidth


def _bound_seconds(operator: Gemm, target: Target) -> float | None:
    return bound(operator, *_rates(operator, target)).seconds


def isa(operator: Gemm, target: Target) -> str:
    """The best instruction set that the target has for this operator's products."""
    if not isinstance(target, X86):
        return target.name.rpartition(":")[2]
    best = {
        "bf16": ("amx_bf16", "avx512_bf16"),
        "i8": ("amx_int8", "avx512_vnni", "avx_vnni"),
        "u8": ("amx_int8", "avx512_vnni", "avx_vnni"),
        "f16": ("avx512_fp16",),
    }.get(operator.a, ())
    word = next((word for word in (*best, "avx512f", "avx2") if target.has(word)), "sse2")
    return "amx" if word.startswith("amx") else word.removesuffix("f") if word == "avx512f" else word


def target_of(options: Options) -> Target:
    name = options.target
    if options.no_amx:
        if options.dtype not in WITHOUT_TILES:
            raise BadInput(f"--no-amx: tiles do not multiply {options.dtype}", allowed=", ".join(WITHOUT_TILES))
        name, os.environ["ONEDNN_MAX_CPU_ISA"] = WITHOUT_TILES[options.dtype]
    return targets.resolve(name)


def jobs(options: Options, target: Target) -> Iterator[Job]:
    words: dict[str, Any] = {"u8": {"dtype": "i8", "a": "u8"}}.get(options.dtype, {"dtype": options.dtype})
    if options.dtype.startswith("f8"):
        words["fast_sums"] = not options.exact_sums
    names = tuple(options.baseline) or (ON_CPU if target.runner == "cpu" else None)
    before = read(options.file)
    for (batch, m, n, k), threads, caches in asked(options, target, before):
        operator = gemm(m, n, k, batch=batch, layout=options.layout, **words)
        place = Place(target, caches == "cold", threads or None)
        won = [r for r in before if r["operator"] == operator.to_json() and r["isa"] == isa(operator, target)]
        last = (won[0]["generator"], won[0]["config"]) if won and not options.constant_b else None
        yield Job(operator, place, families(operator, target, options), options.seconds, last, names)


def families(operator: Gemm, target: Target, options: Options) -> tuple[Generator, ...]:
    """The families that support it; on CPUs only the first, since the others use less capable instructions."""
    serving = [
        one for one in generators.serving(operator, target) if one.name.endswith(CONSTANT_B) == options.constant_b
    ]
    serving = [one for one in serving if one.name != "rules"]
    if not serving:
        raise BadInput(f"no family serves {operator.describe()} on {target.name} so", allowed="other options")
    return tuple(serving) if target.runner == "gpu" else tuple(serving[:1])


def asked(options: Options, target: Target, before: list[dict[str, Any]]) -> Iterator[tuple[Shape, int, str]]:
    shapes = [shape(text) for text in options.shape] or suite(target.runner, batched=options.dtype not in ("i8", "u8"))
    threads = options.threads if target.runner == "cpu" else [0]
    wanted = {(shape_of(r), Group.of(r).threads, Group.of(r).caches) for r in wanting(before)}
    for sizes in shapes:
        for count in threads:
            for caches in options.caches if target.runner == "cpu" else ["cold"]:
                if not options.retry or (shape_text(sizes), count, caches) in wanted:
                    yield sizes, count, caches


def line(result: Mapping[str, Any]) -> str:
    """One race: all times, and where our config came from."""
    times = [f"{name} {row['seconds'] * 1e6:.1f}" for name, row in result["contenders"].items()]
    ratio = "no baseline" if result["ratio"] is None else f"{result['ratio']:.3f}"
    failed = "".join(f"; {name}: {why}" for name, why in result["failed"].items())
    return f"{Group.of(result)} {shape_of(result)}: {ratio}  us: {', '.join(times)}; {origin(result)}{failed}"


def main() -> None:
    words = parser(__doc__, json=RESULTS / "cpu_gemm.json")
    words.add_argument("--target", default="cpu", help="such as x86:native or cuda:native [cpu]")
    words.add_argument("--dtype", default="f32", choices=DTYPES, help="u8 is u8 times i8 [f32]")
    words.add_argument("--layout", default="nn", choices=("nn", "nt", "tn", "tt"), help="[nn]")
    words.add_argument("--shape", action="append", default=[], metavar="[Bb]MxNxK", help="[the suite's]")
    words.add_argument("--no-amx", action="store_true", help="AMX switched off on both sides")
    words.add_argument("--exact-sums", action="store_true", help="of 8-bit floats: in f32")
    words.add_argument("--constant-b", action="store_true", help="B packed ahead of time, not timed")
    words.add_argument("--baseline", action="append", default=[], metavar="NAME", help="such as triton [what is here]")
    words.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="on processors [1 2]")
    words.add_argument("--caches", nargs="+", default=["cold", "warm"], choices=("cold", "warm"))
    words.add_argument("--seconds", type=float, default=120.0, help="of tuning for each race; 0: the default config")
    words.add_argument("--retry", action="store_true", help="only races whose result in the file misses its bar")
    words.add_argument("--summary", action="store_true", help="measure nothing, show what the results say")
    words.add_argument("--tables", action="store_true", help="measure nothing, show all results in Markdown")
    options = words.options()
    if not (options.summary or options.tables):
        deadline, target = options.deadline(), target_of(options)
        with TemporaryDirectory() as studies, closing(Runners()) as runners:
            for job in jobs(options, target):
                if deadline.over:
                    print("the time limit is reached")
                    break
                try:
                    result = plain(job.run(runners, Path(studies)))
                except DeepgenError as error:
                    print(f"{job.operator.describe()}: {error}", flush=True)
                    continue
                merge(options.file, result)
                print(line(result), flush=True)
    print((tables if options.tables else summary)(read(options.file)))


if __name__ == "__main__":
    run_main(main)
