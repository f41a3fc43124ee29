"""Is attention ahead of torch's? Shapes of models and drawn ones: the default, or what a study finds.

    taskset -c 0,1 python benchmarks/attention.py --seed 1 --threads 2 [--seconds 20] [--dtype f32] [--json FILE]
    python benchmarks/attention.py --gpu --dtype f8e4m3 --seed 1 [--cases 6] [--seconds 20] [--json FILE]

Ours and torch's `scaled_dot_product_attention` are called from this process, interleaved, on the same tensors, with
warm caches or, with `--cold`, after other memory has been written; results are compared with torch's in f64 first. With
`--json` a run goes on with what an earlier one left. One thread is timed by the processor's time. With `--page 16` ours
with K and V in shuffled pages is measured instead, against ours without, where queries are few. With `--gpu` everything
is timed on an NVIDIA GPU with cold caches, in bf16 or f8e4m3, beside the best of torch's backends in bf16, which have
none of 8 bits, and ours in bf16; results are compared with f64 of the same inputs, for the heads that share one of K.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from deepgen import targets
from deepgen.operators import Attention, attention
from harness import Options, alternate, parser, run_main, table
from harness.cases import draw, size
from harness.gpu import Clock, gpu_torch
from harness.ours import before, kernels, mean_text, measure, off

FORMATS = {"f32": ("float32", 1e-5), "bf16": ("bfloat16", 1e-2), "f8e4m3": ("float8_e4m3fn", 6e-2)}
FLUSHED = 256 << 20  # bytes
# Batch, heads, heads of K, queries, keys, width, causal.
SHAPES = (
    (1, 8, 8, 512, 512, 64, False), (1, 16, 16, 1024, 1024, 64, False), (1, 16, 16, 1024, 1024, 64, True),
    (2, 12, 12, 197, 197, 64, False), (1, 8, 8, 512, 512, 128, False), (1, 8, 8, 1024, 1024, 128, True),
    (1, 32, 8, 1, 4096, 128, False), (4, 8, 8, 1, 1024, 64, False), (1, 8, 8, 8, 2048, 64, False),
)  # fmt: skip
OF_GPUS = (
    (4, 16, 16, 4096, 4096, 128, False), (4, 16, 16, 4096, 4096, 128, True), (16, 16, 16, 1024, 1024, 64, False),
    (1, 32, 8, 16384, 16384, 128, True), (8, 32, 32, 1024, 1024, 128, False), (2, 16, 16, 2048, 2048, 256, True),
)  # fmt: skip
WAYS = ("CUDNN_ATTENTION", "FLASH_ATTENTION")


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
    half: float | None = None  # our time in bf16 over this
    off: float | None = None  # share of the norm


def drawn(chance: random.Random, kind: str) -> Attention:
    kv_heads, causal = chance.choice([1, 2, 4, 8]), chance.random() < 0.4
    keys = size(chance, 16, 2048)
    queries = keys if causal or chance.random() < 0.6 else size(chance, 1, 64)
    heads, width = kv_heads * chance.choice([1, 1, 4]), chance.choice([40, 64, 64, 80, 96, 128])
    return attention(1, heads, queries, keys, width, kv_heads=kv_heads, causal=causal, dtype=kind)


def drawn_of_gpus(chance: random.Random, kind: str) -> Attention:
    kv_heads, causal = chance.choice([2, 4, 8, 16]), chance.random() < 0.5
    keys, batch = size(chance, 256, 16384), chance.choice([1, 2, 4])
    heads, width = kv_heads * chance.choice([1, 1, 4]), chance.choice([64, 128, 128, 256])
    return attention(batch, heads, keys, keys, width, kv_heads=kv_heads, causal=causal, dtype=kind)


def measured_on_gpu(options: Options, o: Attention) -> Result:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch, clock, target = gpu_torch(), Clock(), targets.resolve("cuda:native")
    torch.manual_seed(options.seed)
    half = [
        torch.randn(o.batch, *shape, dtype=torch.bfloat16, device="cuda")
        for shape in ((o.heads, o.queries, o.width), (o.kv_heads, o.keys, o.width), (o.kv_heads, o.keys, o.v_width))
    ]
    own = [x.to(getattr(torch, FORMATS[o.dtype][0])) for x in half]
    kernel = kernels(o, target, seconds=options.seconds)[0]
    ours = kernel.load()
    distance = off(ours(*own)[0, : o.heads // o.kv_heads], exact(o, own))
    if not distance <= FORMATS[o.dtype][1]:
        return Result(o.describe(), options.seconds, error=f"off by {distance:.2g}", config=kernel.config)

    def theirs(way: str) -> Any:
        with sdpa_kernel(getattr(SDPBackend, way)):
            words = {"is_causal": o.causal, "enable_gqa": o.heads != o.kv_heads}
            return torch.nn.functional.scaled_dot_product_attention(*half, **words)

    calls: dict[str, Callable[[], Any]] = {"ours": partial(ours, *own)}
    if o.dtype != "bf16":
        calls["half"] = partial(kernels(replace(o, dtype="bf16"), target, seconds=options.seconds)[0].load(), *half)
    for way in WAYS:
        with suppress(RuntimeError):
            theirs(way)
            calls[way] = partial(theirs, way)
    samples = alternate({name: partial(clock.seconds, call) for name, call in calls.items()}, options.rounds)
    middle, best = samples.median("ours"), min((way for way in WAYS if way in calls), key=samples.median)
    over = samples.ratio("half", "ours").estimate if "half" in calls else None
    result = Result(o.describe(), options.seconds, middle, samples.ratio(best, "ours").estimate)
    return replace(result, rate=o.work().flops / middle, config=kernel.config, half=over, off=distance)


def exact(o: Attention, inputs: list[Any]) -> Any:
    """In f64, of the first heads that share one of K."""
    torch, per = gpu_torch(), o.heads // o.kv_heads
    q, k, v = inputs[0][0, :per].double(), inputs[1][0, :1].double(), inputs[2][0, :1].double()
    hidden = torch.ones(o.queries, o.keys, dtype=torch.bool, device="cuda").triu(1 + o.keys - o.queries)
    rows = []
    for head in q:  # one at a time: scores are many
        scores = head @ k[0].mT * o.factor
        rows.append(torch.softmax(scores.masked_fill_(hidden, float("-inf")) if o.causal else scores, -1) @ v[0])
    return torch.stack(rows)


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
    want = theirs(q.double(), k.double(), v.double(), **words)
    if not (distance := off(out, want)) <= most:
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
    words.add_argument("--gpu", action="store_true", help="on an NVIDIA GPU")
    words.add_argument("--page", type=int, default=0, help="keys of a page, beside ours without [0: torch]")
    options = words.options()
    of_models = [
        attention(b, h, sq, sk, d, kv_heads=hk, causal=c, dtype=options.dtype)
        for b, h, hk, sq, sk, d, c in (OF_GPUS if options.gpu else SHAPES)
    ]
    some = drawn_of_gpus if options.gpu else drawn
    every = [*of_models, *draw(options.seed, options.cases, lambda chance: some(chance, options.dtype))]
    if options.page:
        every = [one for one in of_models if one.queries == 1]
    done = before(options, Result)
    names = {one.name for one in done}
    done = measure(
        options, [one for one in options.chosen(every, lambda one: one.describe()) if one.describe() not in names],
        partial(measured_on_gpu if options.gpu else paged if options.page else measured, options),
        lambda one, error: Result(one.describe(), options.seconds, error=error), lambda one: (one,), done,
        seed=options.seed, threads=options.threads, cold=options.cold,
    )  # fmt: skip
    rows = [(r.name, r.ratio, r.half, r.rate and r.rate / 1e9, r.off, r.error or r.config) for r in done]
    print(table(("attention", "over the other", "over ours in bf16", "GFLOP/s", "off", "config"), rows))
    print(mean_text(r.ratio for r in done))
    if options.gpu and options.dtype != "bf16":
        print("over ours in bf16:", mean_text(r.half for r in done))
    return 0


if __name__ == "__main__":
    run_main(main)
