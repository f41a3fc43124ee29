"""What does it cost to do more than multiply? `gemm` with epilogues beside torch, torch.compile and our bare product.

    python benchmarks/fused.py --seed 1 [--seconds 30] [--guesses 4] [--cases 4] [--compile] [--max-autotune]

linear + bias + gelu, gated pairs, silu(linear) * up and a residual in bf16: shapes of models, and `--cases` drawn.
Ours is the best of the model's first `--guesses` configs, or, with `--seconds`, what a study finds; so is the bare one.
Ours is verified against f64 first; then all are called interleaved, with cold caches. The cost of an epilogue is its
time over the bare product's, without the time of its own bytes at the rate of a copy.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from deepgen import targets
from deepgen.operators import Gemm, gemm
from harness import Deadline, Options, alternate, parser, run_main, table
from harness.cases import draw
from harness.gpu import Clock
from harness.ours import Ours, before, kernels, mean_text, measure, off

SHAPES = (
    *((4096, 11008, 4096), (512, 4096, 1024), (64, 14336, 4096), (2048, 8192, 2048), (8192, 4096, 4096)),
    *((8192, 3072, 768), (1024, 5120, 1280), (256, 16384, 4096)),
)
TEXTS = {
    "gelu": "gelu(x + bias[n])",
    "tanh": "gelu_tanh(x + bias[n])",
    "silu*up": "silu(x) * up[m, n]",
    "residual": "x + bias[n] + residual[m, n]",
    "gated": "silu(x) * y",
}
MOST_OFF, COPIED = 5e-3, 4.0e12  # of the norm; bytes a second
OURS, BARE, TORCH = "ours", "bare", "torch"


@dataclass(frozen=True)
class Result:
    """Microseconds of each; ours over torch's best; the epilogue's cost over the bare product."""

    name: str
    seconds: float
    times: Mapping[str, float]
    ratio: float | None = None
    cost: float | None = None
    config: str = ""
    error: str = ""


def cases(options: Options) -> Iterator[tuple[str, tuple[int, int, int]]]:
    yield from (("gelu", shape) for shape in SHAPES)
    yield from (("gated", shape) for shape in (SHAPES[0], SHAPES[2], SHAPES[3]))
    yield from (("tanh", SHAPES[0]), ("silu*up", SHAPES[0]), ("residual", SHAPES[4]))

    def one(chance: random.Random) -> tuple[str, tuple[int, int, int]]:
        m, n, k = (chance.choice(some) for some in (ROWS, COLUMNS, COLUMNS))
        return chance.choice([*TEXTS]), (m, n, k)

    yield from draw(options.seed, options.cases, one)


ROWS, COLUMNS = [16, 77, 256, 1000, 2048, 4096], [1024, 1536, 2880, 4096, 5120, 8192]


def torch_of(torch: Any, kind: str) -> Callable[..., Any]:
    functions = torch.nn.functional
    each: dict[str, Callable[..., Any]] = {
        "gelu": lambda x, w, b: functions.gelu(functions.linear(x, w, b)),
        "tanh": lambda x, w, b: functions.gelu(functions.linear(x, w, b), approximate="tanh"),
        "gated": lambda x, w: gated(torch, functions.linear(x, w)),
        "silu*up": lambda x, w, up: functions.silu(functions.linear(x, w)) * up,
        "residual": lambda x, w, b, residual: functions.linear(x, w, b) + residual,
    }
    return each[kind]


def gated(torch: Any, both: Any) -> Any:
    x, y = both.chunk(2, dim=-1)
    return torch.nn.functional.silu(x) * y


class Bench:
    def __init__(self, options: Options) -> None:
        self.options, self.target = options, targets.resolve(options.target)

    def kernels(self, operator: Gemm) -> list[Ours]:
        """Those that are tried: of a study, or of the families' rankings."""
        of = self.options
        return kernels(operator, self.target, seconds=of.seconds, guesses=of.guesses, jobs=of.jobs)

    def best(self, clock: Clock, operator: Gemm, arguments: list[Any], out: Any, want: Any) -> tuple[Any, str, float]:
        """The fastest of the right ones, and the largest error."""
        tried, worst = [], 0.0
        for kernel in self.kernels(operator):
            bound = partial(kernel.load(), *arguments, out=out)
            out.fill_(float("nan"))
            bound()
            worst = max(worst, off(out, want))
            tried.append((median(clock.seconds(bound) for _ in range(3)), kernel.config, bound))
            print(f"    {tried[-1][0] * 1e6:.1f} us {kernel.config}", flush=True)
        _, name, bound = min(tried, key=lambda one: one[0])
        return bound, name, worst

    def measured(self, clock: Clock, kind: str, shape: tuple[int, int, int]) -> Result:
        torch, (m, n, _) = clock.torch, shape
        operator, bare = self.operators(kind, shape)
        x, w, more = self.inputs(torch, kind, shape)
        wide = torch_of(torch, kind)(x.double(), w.double(), *(one.double() for one in more))
        out = torch.empty(m, n, dtype=x.dtype, device="cuda")
        ours, config, worst = self.best(clock, operator, [x, w, *more], out, wide)
        if not worst <= MOST_OFF:
            return Result(name_of(kind, shape), self.options.seconds, {}, None, None, config, f"off by {worst:.2g}")
        product = x.double() @ w.double().T
        plain, _, _ = self.best(clock, bare, [x, w], torch.empty(product.shape, dtype=x.dtype, device="cuda"), product)
        calls = {OURS: ours, BARE: plain, TORCH: partial(torch_of(torch, kind), x, w, *more)}
        if kind == "tanh":
            calls["addmm"] = partial(torch._addmm_activation, more[0], x, w.T, use_gelu=True)
        calls |= {name: partial(one, x, w, *more) for name, one in self.compiled(torch, kind, x, w, more).items()}
        timed = alternate({name: partial(clock.seconds, call) for name, call in calls.items()}, self.options.rounds)
        times = {name: timed.median(name) * 1e6 for name in calls}
        theirs = min((name for name in calls if name not in (OURS, BARE)), key=timed.median)
        extra = sum(one.numel() * one.element_size() for one in more) / COPIED * 1e6
        cost = (times[OURS] - extra) / times[BARE]
        return Result(
            name_of(kind, shape), self.options.seconds, times, timed.ratio(theirs, OURS).estimate, cost, config
        )

    def inputs(self, torch: Any, kind: str, shape: tuple[int, int, int]) -> tuple[Any, Any, list[Any]]:
        m, n, k = shape
        made = partial(torch.randn, dtype=torch.bfloat16, device="cuda")
        more = [made(n) if one.kind == "n" else made(m, n) for one in operators_of(self.operators(kind, shape)[0])]
        return made(m, k), made((1 + (kind == "gated")) * n, k) / k**0.5, more

    def compiled(self, torch: Any, kind: str, x: Any, w: Any, more: list[Any]) -> dict[str, Any]:
        """What torch compiles, called once. It compiles a function for few shapes, and forgets the last case's."""
        calls: dict[str, Any] = {}
        if self.options.compile or self.options.max_autotune:
            torch._dynamo.reset()
        for mode, wanted in (("default", "compile"), ("max-autotune-no-cudagraphs", "max_autotune")):
            if getattr(self.options, wanted):
                calls[wanted] = torch.compile(torch_of(torch, kind), mode=mode, dynamic=False)
                calls[wanted](x, w, *more)
        return calls

    def build(self, every: list[tuple[str, tuple[int, int, int]]], deadline: Deadline) -> None:
        """What is timed later: kernels lie in a cache, and what torch compiles in its own."""
        torchs = self.options.compile or self.options.max_autotune
        for kind, shape in every:
            if deadline.over:
                break
            if not self.options.only_torch:
                print(
                    name_of(kind, shape), *(len(self.kernels(one)) for one in self.operators(kind, shape)), flush=True
                )
            if torchs:
                torch = Clock().torch
                print(name_of(kind, shape), *self.compiled(torch, kind, *self.inputs(torch, kind, shape)), flush=True)

    def operators(self, kind: str, shape: tuple[int, int, int]) -> tuple[Gemm, Gemm]:
        m, n, k = shape
        bare = gemm(m, (1 + (kind == "gated")) * n, k, dtype="bf16", layout="nt")
        return gemm(*shape, dtype="bf16", layout="nt", epilogue=TEXTS[kind]), bare


def operators_of(operator: Gemm) -> tuple[Any, ...]:
    """The operands after A and B, also of what words of GEMM say."""
    from deepgen.kernels.shared.epilogue import as_text

    return as_text(operator).operands


def name_of(kind: str, shape: tuple[int, int, int]) -> str:
    return f"{kind} {'x'.join(map(str, shape))}"


def shown(row: Result) -> tuple[object, ...]:
    times = " ".join(f"{name} {time:.1f}" for name, time in row.times.items())
    return row.name, times, f"{row.ratio:.3f} cost {row.cost:.3f}" if row.ratio else "", row.config, row.error


def main() -> int:
    words = parser(__doc__, seed=1)
    words.add_argument("--target", default="cuda:native", help="an NVIDIA GPU [cuda:native]")
    words.add_argument("--rounds", type=int, default=15, help="of all contenders [15]")
    words.add_argument("--seconds", type=float, default=0.0, help="of a study for each case; 0: guesses [0]")
    words.add_argument("--guesses", type=int, default=1, help="configs of the model that are tried; 1: the default [1]")
    words.add_argument("--cases", type=int, default=4, help="drawn cases [4]")
    words.add_argument("--jobs", type=int, default=4, help="compilers at a time [4]")
    words.add_argument("--compile", action="store_true", help="beside torch.compile too")
    words.add_argument("--max-autotune", action="store_true", help="beside its max-autotune too")
    words.add_argument("--build", action="store_true", help="build what would be timed, torch's too, and end")
    words.add_argument("--only-torch", action="store_true", help="with --build: torch's only")
    options = words.options()
    bench, every = Bench(options), options.chosen(cases(options), lambda one: name_of(*one))
    if options.build:
        bench.build(every, options.deadline())
        return 0
    done, clock = before(options, Result), Clock()
    names = {(one.name, one.seconds) for one in done}
    done = measure(
        options, [one for one in every if (name_of(*one), options.seconds) not in names],
        lambda one: bench.measured(clock, *one),
        lambda one, error: Result(name_of(*one), options.seconds, {}, error=error), shown, done,
    )  # fmt: skip
    rows = [(r.name, r.times.get(OURS), r.times.get(BARE), r.ratio, r.cost) for r in done if r.times]
    print(table(("case", OURS, BARE, "over the best other", "over the bare product"), rows))
    print(mean_text(r.ratio for r in done))
    return int(any(r.error for r in done))


if __name__ == "__main__":
    run_main(main)
