"""Is attention on processors ahead of torch's? Shapes of models and drawn ones: the default, or what a study finds.

    taskset -c 0,1 python benchmarks/attention.py --seed 1 --threads 2 [--seconds 20] [--dtype f32] [--json FILE]

Ours and torch's `scaled_dot_product_attention` are called from this process, interleaved, on the same tensors, with
warm caches or, with `--cold`, after other memory has been written; results are compared with torch's in f64 first. With
`--json` a run goes on with what an earlier one left. One thread is timed by the processor's time. With `--page 16` ours
with K and V in shuffled pages is measured instead, against ours without, where queries are few.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from deepgen import targets
from deepgen.operators import Attention, attention
from harness import Options, alternate, parser, run_main, table
from harness.cases import draw, size
from harness.ours import before, kernels, mean_text, measure, off

FORMATS = {"f32": ("float32", 1e-5), "bf16": ("bfloat16", 1e-2)}
FLUSHED = 256 << 20  # bytes
# Batch, heads, heads of K, queries, keys, width, causal.
SHAPES = (
    (1, 8, 8, 512, 512, 64, False), (1, 16, 16, 1024, 1024, 64, False), (1, 16, 16, 1024, 1024, 64, True),
    (2, 12, 12, 197, 197, 64, False), (1, 8, 8, 512, 512, 128, False), (1, 8, 8, 1024, 1024, 128, True),
    (1, 32, 8, 1, 4096, 128, False), (4, 8, 8, 1, 1024, 64, False), (1, 8, 8, 8, 2048, 64, False),
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    """Our speedup over torch; `seconds` 0: the default, without a search."""

    name: str
    seconds: float
    time: float | None = None
    ratio: float | None = None
    rate: float | None = None  # operations counted, per second
    config: str = ""
    error: str = ""


def drawn(chance: random.Random, kind: str) -> Attention:
    kv_heads, causal = chance.choice([1, 2, 4, 8]), chance.random() < 0.4
    keys = size(chance, 16, 2048)
    queries = keys if causal or chance.random() < 0.6 else size(chance, 1, 64)
    heads, width = kv_heads * chance.choice([1, 1, 4]), chance.choice([40, 64, 64, 80, 96, 128])
    return attention(1, heads, queries, keys, width, kv_heads=kv_heads, causal=causal, dtype=kind)


def measured(options: Options, operator: Attention) -> Result:
    import torch

    torch.set_num_threads(options.threads)
    target: Any = targets.resolve("cpu").limited_to(options.threads)
    name, most = FORMATS[operator.dtype]
    o = operator
    shapes = ((o.heads, o.queries, o.width), (o.kv_heads, o.keys, o.width), (o.kv_heads, o.keys, o.v_width))
    q, k, v = (torch.randn(o.batch, *shape).to(getattr(torch, name)) for shape in shapes)
    out = torch.empty(o.batch, o.heads, o.queries, o.v_width, dtype=q.dtype)
    words: dict[str, Any] = {"is_causal": o.causal, "enable_gqa": o.heads != o.kv_heads}
    theirs = torch.nn.functional.scaled_dot_product_attention
    kernel = kernels(o, target, seconds=options.seconds, threads=options.threads)[0]
    ours = kernel.load()
    ours(q, k, v, out=out)
    exact = theirs(q.double(), k.double(), v.double(), **words)
    if not (distance := off(out, exact)) <= most:
        return Result(o.describe(), options.seconds, error=f"off by {distance:.2g}")
    return compared(options, o, kernel.config, lambda: ours(q, k, v, out=out), lambda: theirs(q, k, v, **words))


def compared(
    options: Options, operator: Attention, config: str, ours: Callable[[], Any], theirs: Callable[[], Any]
) -> Result:
    ballast = np.zeros(FLUSHED // 4, np.float32)
    clock = time.process_time if options.threads == 1 else time.perf_counter

    def seconds(call: Callable[[], Any]) -> float:
        if options.cold:
            np.add(ballast, 1, out=ballast)
        else:
            call()
        started = clock()
        call()
        return clock() - started

    samples = alternate({"ours": lambda: seconds(ours), "theirs": lambda: seconds(theirs)}, options.rounds)
    middle, ratio = samples.median("ours"), samples.ratio("theirs", "ours").estimate
    return Result(operator.describe(), options.seconds, middle, ratio, operator.work().flops / middle, config)


def paged(options: Options, dense: Attention) -> Result:
    """The defaults with and without pages, on the same memory, where every batch has all keys."""
    target: Any = targets.resolve("cpu").limited_to(options.threads)
    operator, own = replace(dense, lengths=True, page=options.page), dense.inputs(options.seed)
    calls, config = [], ""
    for one in (operator, dense):
        kernel = kernels(one, target)[0]
        inputs = {**one.inputs(options.seed), "q": own["q"]}
        inputs |= {name: own[name].reshape(inputs[name].shape) for name in "kv"}
        if one.lengths:
            inputs["lengths"][:] = dense.keys
        calls.append(partial(kernel.load(), *(inputs[t.name] for t in one.tensors() if t.role == "input")))
        config = kernel.config
    return replace(compared(options, dense, config, *calls), name=operator.describe())


def main() -> int:
    words = parser(__doc__, seed=1)
    words.add_argument("--threads", type=int, default=2)
    words.add_argument("--rounds", type=int, default=25)
    words.add_argument("--cases", type=int, default=6, help="that are drawn [6]")
    words.add_argument("--seconds", type=float, default=0, help="for tuning each; 0: the default config [0]")
    words.add_argument("--dtype", choices=FORMATS, default="f32")
    words.add_argument("--cold", action="store_true")
    words.add_argument("--page", type=int, default=0, help="keys of a page, beside ours without [0: torch]")
    options = words.options()
    of_models = [
        attention(b, h, sq, sk, d, kv_heads=hk, causal=c, dtype=options.dtype) for b, h, hk, sq, sk, d, c in SHAPES
    ]
    every = [*of_models, *draw(options.seed, options.cases, lambda chance: drawn(chance, options.dtype))]
    if options.page:
        every = [one for one in of_models if one.queries == 1]
    done = before(options, Result)
    names = {one.name for one in done}
    done = measure(
        options, [one for one in options.chosen(every, lambda one: one.describe()) if one.describe() not in names],
        partial(paged if options.page else measured, options),
        lambda one, error: Result(one.describe(), options.seconds, error=error), lambda one: (one,), done,
        seed=options.seed, threads=options.threads, cold=options.cold,
    )  # fmt: skip
    rows = [(r.name, r.ratio, r.rate and r.rate / 1e9, r.config or r.error) for r in done]
    print(table(("attention", "over the other", "GFLOP/s", "config"), rows))
    print(mean_text(r.ratio for r in done))
    return 0


if __name__ == "__main__":
    run_main(main)
