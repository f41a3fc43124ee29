"""Are products of experts ahead of torch's? Distributions of rows over experts, drawn by a seed.

    python benchmarks/grouped.py --target cuda:native --seed 1 [--seconds 30] [--guesses 4] [--json FILE]
    python benchmarks/grouped.py --target cpu --seed 1 --dtype f32 --cases 3 --layout tn --threads 1

The first case is 8 experts of 4096x4096x2048 with random shares. Ours, by default without a search, and torch's
`_grouped_mm` (or, where it has no kernel, a loop over experts that knows the offsets; on processors the faster of both)
are called from this process, interleaved, with cold caches; results are compared with products in f64 first.
`--guesses` also times the configs that the family ranks next.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

from deepgen import targets
from deepgen.operators.grouped_gemm import LAYOUTS, GroupedGemm, grouped_gemm
from harness import Options, alternate, parser, run_main, table
from harness.cases import draw
from harness.gpu import timer
from harness.ours import Ours, kernels, mean_text, measure, off

FORMATS = {"bf16": ("bfloat16", 5e-3), "f16": ("float16", 1e-3), "f32": ("float32", 1e-5)}
SHARES = ("even", "random", "random", "skewed", "half", "one")
WEIGHTS = ((4096, 2048), (2048, 4096), (2816, 1024), (1024, 1408), (7168, 2048), (1536, 2048), (5120, 1536))  # N x K
OURS, TORCHS, GROUPED = "ours", "torch", "_grouped_mm"
ON_CPU = 16  # as large on each side: a processor takes that much longer


@dataclass(frozen=True)
class Case:
    """Sizes, and how many rows each expert has."""

    operator: GroupedGemm
    shares: str
    rows: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.operator.describe()} {self.shares}"


@dataclass(frozen=True)
class Result:
    """Our time and our speedup over torch; `seconds` 0: the default, without a search."""

    name: str
    seconds: float
    time: float | None = None
    ratio: float | None = None
    rate: float | None = None  # operations counted, per second
    guesses: Sequence[float] = ()
    config: str = ""
    error: str = ""


def divided(chance: random.Random, experts: int, rows: int, shares: str) -> tuple[int, ...]:
    """Counts of each expert, which are rarely multiples of anything."""
    if shares == "one":
        mine = chance.randrange(experts)
        return tuple(rows * (expert == mine) for expert in range(experts))
    own = {"even": lambda: 1.0, "random": lambda: 0.3 + chance.random(), "half": chance.random}
    sizes = [own.get(shares, lambda: chance.random() ** 4)() for _ in range(experts)]
    if shares == "half":
        sizes = [size * (place % 2) for place, size in enumerate(sizes)]
    total, ends = sum(sizes), [0]
    for place in range(experts):
        ends.append(rows if place == experts - 1 else min(rows, round(rows * sum(sizes[: place + 1]) / total)))
    return tuple(end - begin for begin, end in pairwise(ends))


def make(chance: random.Random, like: GroupedGemm, small: int) -> Case:
    """A case as large as layers of experts are."""
    experts, shares = chance.choice([4, 8, 8, 16, 32, 64]), chance.choice(SHARES)
    rows = chance.choice([256, 1024, 2048, 4096, 8192, 16384]) + chance.choice([0, 0, 8, -24])
    n, k = (size // small for size in chance.choice(WEIGHTS))
    return case_of(chance, like, (experts, rows // small, n, k), shares)


def case_of(chance: random.Random, like: GroupedGemm, sizes: tuple[int, int, int, int], shares: str) -> Case:
    experts, rows, n, k = sizes
    m, n, k = (n, k, rows) if like.gradient else (rows, n, k)
    operator = replace(like, experts=experts, m=m, n=n, k=k)
    return Case(operator, shares, divided(chance, experts, rows, shares))


class Bench:
    def __init__(self, options: Options) -> None:
        import torch

        self.torch, self.options, self.target = torch, options, targets.resolve(options.target)
        self.device = "cuda" if self.target.runner == "gpu" else "cpu"
        if options.threads:
            torch.set_num_threads(options.threads)
        self.seconds = timer(torch, self.target, options.threads)

    def built(self, case: Case) -> list[Ours]:
        """The default and the next guesses."""
        return kernels(case.operator, self.target, guesses=1 + self.options.guesses, threads=self.options.threads)

    def measured(self, case: Case, made: Sequence[Ours]) -> Result:
        torch, o = self.torch, case.operator
        kind, most = FORMATS[o.a]
        a, b = (
            torch.randn(t.shape, device=self.device).to(getattr(torch, kind))
            for t in o.tensors()
            if t.name in ("A", "B")
        )
        shape = o.tensors()[-1].shape
        offsets = torch.tensor(case.rows, device=self.device).cumsum(0).to(torch.int32)
        right = b.mT if o.layout == "nt" else b
        spans = [slice(sum(case.rows[:e]), sum(case.rows[: e + 1])) for e in range(o.experts)]

        def looped(left: Any, right: Any) -> Any:
            if o.gradient:
                return torch.stack([left[own].mT @ right[own] for own in spans])
            return torch.cat([left[own] @ right[e] for e, own in enumerate(spans)])

        exact = looped(a.double(), right.double())
        errors: list[str] = []
        calls: dict[str, Callable[[], Any]] = {}
        for place, kernel in enumerate(made):
            ours, out = kernel.load(), torch.full(shape, float("nan"), dtype=a.dtype, device=self.device)
            ours(a, b, offsets, out=out)
            if not (distance := off(out, exact)) <= most:
                errors.append(f"{kernel.config} is off by {distance:.2g}")
            calls[f"{OURS} {place}" if place else OURS] = partial(ours, a, b, offsets, out=out)
        if errors:
            return Result(case.name, self.options.seconds, config=made[0].config, error="; ".join(errors))
        calls[TORCHS] = partial(torch._grouped_mm, a.mT if o.gradient else a, right, offs=offsets)
        with suppress(RuntimeError):
            calls[TORCHS]()
            if self.device == "cuda":
                return self.compared(case, calls, made[0].config)
            calls[GROUPED] = calls[TORCHS]
        calls[TORCHS] = partial(looped, a, right)
        return self.compared(case, calls, made[0].config)

    def compared(self, case: Case, calls: dict[str, Callable[[], Any]], config: str) -> Result:
        contenders = {name: partial(self.seconds, call) for name, call in calls.items()}
        samples = alternate(contenders, self.options.rounds)
        middle = samples.median(OURS)
        ratio = min(samples.ratio(name, OURS).estimate for name in (TORCHS, GROUPED) if name in calls)
        guesses = tuple(samples.ratio(TORCHS, name).estimate for name in calls if name.startswith(f"{OURS} "))
        rate = case.operator.work().flops / middle
        return Result(case.name, self.options.seconds, middle, ratio, rate, guesses, config)

    def run(self, cases: Sequence[Case]) -> list[Result]:
        seconds = self.options.seconds
        with ThreadPoolExecutor(self.options.jobs) as threads:
            built = {} if seconds else {case.name: threads.submit(self.built, case) for case in cases}

        def one(case: Case) -> Result:
            ours = kernels(case.operator, self.target, seconds=seconds) if seconds else built[case.name].result()
            return self.measured(case, ours)

        return measure(
            self.options, cases, one, lambda case, error: Result(case.name, seconds, error=error), shown,
            seed=self.options.seed, target=self.options.target,
        )  # fmt: skip


def shown(one: Result) -> tuple[object, ...]:
    time = f"{one.time * 1e6:.1f} us, {one.ratio:.3f} times torch's speed" if one.time else ""
    return one.name, time, [round(ratio, 3) for ratio in one.guesses], one.config, one.error


def main() -> int:
    words = parser(__doc__, seed=1)
    words.add_argument("--target", default="cuda:native", help="cpu or cuda:native [cuda:native]")
    words.add_argument("--rounds", type=int, default=15)
    words.add_argument("--cases", type=int, default=12)
    words.add_argument("--seconds", type=float, default=0, help="for tuning each; 0: the default config [0]")
    words.add_argument("--guesses", type=int, default=0, help="configs beside the default [0]")
    words.add_argument("--dtype", choices=FORMATS, default="bf16")
    words.add_argument("--layout", choices=LAYOUTS, default="nt")
    words.add_argument("--threads", type=int, help="of kernels and torch on a processor; with 1, its processor time")
    words.add_argument("--jobs", type=int, default=1, help="kernels that are built at a time [1]")
    options = words.options()
    like = grouped_gemm(1, 1, 1, 1, dtype=options.dtype, layout=options.layout)
    small = ON_CPU if options.target.startswith(("cpu", "x86")) else 1
    first = (8, 4096 // small, 4096 // small, 2048 // small)
    every = [case_of(random.Random(options.seed), like, first, "random")]
    every += draw(options.seed, options.cases - 1, lambda chance: make(chance, like, small))
    done = Bench(options).run(options.chosen(every, lambda case: case.name))
    rows = [(r.name, r.time and r.time * 1e6, r.ratio, r.rate and r.rate / 1e12, r.error) for r in done]
    print(table(("experts", "us", "over torch", "TFLOP/s", ""), rows))
    print(mean_text(r.ratio for r in done))
    return int(any(one.error for one in done))


if __name__ == "__main__":
    run_main(main)
