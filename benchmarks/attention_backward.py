"""Is attention's backward pass on a GPU ahead of torch's? Shapes of models and drawn ones; by default without a search.

    python benchmarks/attention_backward.py --seed 1 [--cases 6] [--seconds 20] [--guesses 4] [--json FILE]

Only the backward pass is timed: ours, and autograd's from a result of `scaled_dot_product_attention` by cuDNN and by
flash attention, each as torch does it by default and with deterministic algorithms. All have the same tensors, and are
called in interleaved rounds with a cold cache; the log-sum-exp is torch's. Ours is compared with f64 first, and must
give the same bits twice. With `--guesses` the best of so many configs that the family ranks first is taken, with
`--seconds` what a study finds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from deepgen import targets
from deepgen.operators import AttentionBackward, attention_backward
from harness import Options, alternate, parser, run_main, table
from harness.cases import draw, size
from harness.gpu import Clock, gpu_torch
from harness.ours import Ours, kernels, mean_text, measure, off

FORMATS = {"f16": "float16", "bf16": "bfloat16"}
MOST = 1e-2  # of the norm of a result, that it may be off by
# Batch, heads, heads of K, queries and keys, width, causal.
SHAPES = (
    (4, 16, 16, 4096, 128, False), (4, 16, 16, 4096, 128, True), (16, 16, 16, 1024, 64, False),
    (16, 16, 16, 1024, 64, True), (1, 32, 8, 8192, 128, True), (8, 32, 32, 197, 64, False),
    (2, 12, 12, 2048, 96, False), (4, 32, 32, 2048, 64, True),
)  # fmt: skip
WAYS = ("cudnn", "flash", "cudnn deterministic", "flash deterministic")


@dataclass(frozen=True)
class Result:
    """Times in microseconds, and torch's best over ours: as it is by default, and deterministic."""

    name: str
    ours: float | None = None
    theirs: dict[str, float] | None = None
    ratio: float | None = None
    deterministic: float | None = None
    rate: float | None = None  # TFLOP/s, as counted
    error: float | None = None
    config: str = ""
    problem: str = ""


def case_of(b: int, h: int, hk: int, s: int, d: int, causal: bool, dtype: str) -> AttentionBackward:
    return attention_backward(b, h, s, s, d, kv_heads=hk, causal=causal, dtype=dtype)


def drawn(chance: random.Random, dtype: str) -> AttentionBackward:
    kv_heads, width = chance.choice([2, 4, 8, 16]), chance.choice([64, 96, 128])
    length, batch = size(chance, 128, 6000), chance.choice([1, 2, 4, 8])
    heads = kv_heads * chance.choice([1, 1, 4])
    return case_of(batch, heads, kv_heads, length, width, chance.random() < 0.6, dtype)


class Case:
    """A problem's tensors, and who computes it."""

    def __init__(self, operator: AttentionBackward, seed: int) -> None:
        self.operator, self.torch = operator, gpu_torch()
        torch, o = self.torch, operator
        torch.manual_seed(seed)
        torch.utils.deterministic.fill_uninitialized_memory = False  # which would be timed with theirs
        of = {"dtype": getattr(torch, FORMATS[o.dtype]), "device": "cuda"}
        shapes = ((o.heads, o.queries), (o.kv_heads, o.keys), (o.kv_heads, o.keys), (o.heads, o.queries))
        self.q, self.k, self.v, self.dout = (torch.randn(o.batch, *shape, o.width, **of) for shape in shapes)
        self.words = {"is_causal": o.causal, "enable_gqa": o.heads != o.kv_heads}
        self.o, self.lse = self._forward()

    def _forward(self) -> tuple[Any, Any]:
        """By heads, in f32: independent of whichever kernels torch has."""
        torch, o = self.torch, self.operator
        out, lse = torch.empty_like(self.q), torch.empty(o.batch, o.heads, o.queries, device="cuda")
        for b in range(o.batch):
            for h in range(o.heads):
                group = h // o.per_group
                scores = self.q[b, h].float() @ self.k[b, group].float().mT * o.forward.factor
                if o.causal:
                    scores = scores.masked_fill(self._hidden(), float("-inf"))
                lse[b, h] = torch.logsumexp(scores, -1)
                out[b, h] = (torch.softmax(scores, -1) @ self.v[b, group].float()).to(out.dtype)
        return out, lse

    def _hidden(self) -> Any:
        o = self.operator
        return self.torch.ones(o.queries, o.keys, dtype=self.torch.bool, device="cuda").triu(1)

    @contextmanager
    def way(self, name: str) -> Iterator[None]:
        torch = self.torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        backend = SDPBackend.CUDNN_ATTENTION if name.startswith("cudnn") else SDPBackend.FLASH_ATTENTION
        torch.use_deterministic_algorithms(name.endswith("deterministic"), warn_only=True)
        try:
            with sdpa_kernel(backend):
                yield
        finally:
            torch.use_deterministic_algorithms(False)

    def theirs(self, name: str) -> Callable[[], Any]:
        """Autograd's backward pass, of a forward pass that has been done."""
        leaves = [x.detach().requires_grad_() for x in (self.q, self.k, self.v)]
        with self.way(name):
            out = self.torch.nn.functional.scaled_dot_product_attention(*leaves, **self.words)

        def call() -> Any:
            with self.way(name):
                return self.torch.autograd.grad(out, leaves, self.dout, retain_graph=True)

        call()
        return call

    def ours(self, kernel: Ours) -> Callable[[], Any]:
        return partial(kernel.load(), self.q, self.k, self.v, self.o, self.dout, self.lse)

    def error(self, results: Any) -> float:
        """The largest of dq, dk and dv beside f64, of the first heads that share one of k."""
        torch, per = self.torch, self.operator.per_group
        heads = (self.q[:1, :per], self.k[:1, :1], self.v[:1, :1])
        q, k, v = (x.detach().double().requires_grad_() for x in heads)
        scores = q @ k.mT * self.operator.forward.factor
        if self.operator.causal:
            scores = scores.masked_fill(self._hidden(), float("-inf"))
        want = torch.autograd.grad(torch.softmax(scores, -1) @ v, (q, k, v), self.dout[:1, :per].double())
        pairs = zip(want, results, strict=True)
        return max(off(x[:1, : w.shape[1]], w) for w, x in pairs)


def measured(options: Options, operator: AttentionBackward) -> Result:
    target: Any = targets.resolve("cuda:native")
    words = {"seconds": options.seconds, "guesses": options.guesses, "family": options.family}
    every = kernels(operator, target, **words)
    if options.build:
        return Result(operator.describe(), problem="built")
    case, clock = Case(operator, options.seed), Clock()
    calls, worst = {}, 0.0
    for kernel in every:
        call, config = case.ours(kernel), kernel.config
        first, second = call(), call()
        if not all(case.torch.equal(a, b) for a, b in zip(first, second, strict=True)):
            return Result(operator.describe(), problem=f"differs from run to run: {config}")
        worst = max(worst, case.error(first))
        if not worst <= MOST:
            return Result(operator.describe(), error=worst, problem=f"off: {config}")
        calls[config] = call
    refused = []
    for name in WAYS:
        try:
            calls[name] = case.theirs(name)
        except RuntimeError as error:
            refused.append(f"{name}: {error}"[:100])
    samples = alternate({name: partial(clock.seconds, call) for name, call in calls.items()}, options.rounds)
    best = min((kernel.config for kernel in every), key=samples.median)
    theirs = {name: samples.median(name) * 1e6 for name in WAYS if name in calls}

    def over(exact: bool) -> float | None:
        some = [name for name in theirs if name.endswith("deterministic") == exact]
        return samples.ratio(min(some, key=samples.median), best).estimate if some else None

    middle = samples.median(best)
    rate = operator.work().flops / middle * 1e-12
    return Result(
        operator.describe(), middle * 1e6, theirs, over(False), over(True), rate, worst, best, "; ".join(refused)
    )


def main() -> int:
    words = parser(__doc__, seed=1)
    words.add_argument("--rounds", type=int, default=15)
    words.add_argument("--cases", type=int, default=6, help="that are drawn [6]")
    words.add_argument("--seconds", type=float, default=0, help="for tuning each; 0: no search [0]")
    words.add_argument("--guesses", type=int, default=1, help="configs, as the family ranks them [1]")
    words.add_argument("--family", help="instead of the one that comes first")
    words.add_argument("--dtype", choices=FORMATS, default="bf16")
    words.add_argument("--build", action="store_true", help="build the kernels, and time none")
    options = words.options()
    every = [case_of(*shape, options.dtype) for shape in SHAPES]
    every += draw(options.seed, options.cases, lambda chance: drawn(chance, options.dtype))
    done = measure(
        options, options.chosen(every, lambda one: one.describe()), partial(measured, options),
        lambda one, error: Result(one.describe(), problem=error), lambda one: (asdict(one),), seed=options.seed,
    )  # fmt: skip
    names = ("attention's backward pass", "us", "TFLOP/s", "torch over it", "deterministic", *WAYS, "config")
    rows = []
    for r in done:
        theirs = ((r.theirs or {}).get(way) for way in WAYS)
        rows.append((r.name, r.ours, r.rate, r.ratio, r.deterministic, *theirs, r.problem or r.config))
    print(table(names, rows))
    print("ratio:", mean_text(r.ratio for r in done))
    print("deterministic:", mean_text(r.deterministic for r in done))
    return 0


if __name__ == "__main__":
    run_main(main)
