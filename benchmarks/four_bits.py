"""What do weights of 4 bits save? `gemm_w4` beside our own product of bf16 weights and torch's, on an NVIDIA GPU.

    python benchmarks/four_bits.py --seed 1 [--seconds 30] [--cases 8] [--json FILE]

Products of few tokens with large weights: those of models, and `--cases` drawn by the seed. The default or, with
`--seconds`, what a study finds. Weights are packed once, ahead of all calls. Ours is verified against f64 with weights
in unlimited precision; then all are called interleaved, with cold caches. The bf16 products have weights of their own.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import isnan
from statistics import geometric_mean
from typing import Any

import deepgen as dg
from deepgen import generators, targets
from deepgen.kernels.base import Generator
from deepgen.operators import GemmW4, Operator, gemm, gemm_w4, pack_w4
from deepgen.run.call.loaded import load
from deepgen.targets import Target
from deepgen.toolchains import build_once
from harness import Options, alternate, parser, read, run_main, save, table
from harness.cases import draw
from harness.gpu import Clock

FORMATS = {"bf16": ("bfloat16", 5e-3), "f16": ("float16", 1e-3)}  # by torch's name, and the most that is off
OURS, WIDE, TORCH = "4 bits", "bf16", "torch's bf16"
# Tokens, rows of weights, K, and the most of our bf16 product's time that 4 bits should take.
SHAPES = (
    (16, 4096, 4096, 0.60), (16, 8192, 28672, 0.38), (16, 28672, 8192, 0.38), (1, 4096, 4096, None),
    (1, 28672, 8192, None), (64, 4096, 4096, None),
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    """Microseconds of each, and ours over our bf16 product's; `seconds` 0: the default, without a search."""

    name: str
    seconds: float
    times: Mapping[str, float]
    ratio: float | None = None
    most: float | None = None
    config: str = ""
    error: str = ""


def drawn(chance: random.Random) -> GemmW4:
    n, k = (chance.choice([1024, 2048, 2880, 4096, 5120, 8192, 11008, 14336]) for _ in range(2))
    return gemm_w4(
        chance.choice([1, 2, 8, 16, 24, 32, 64]), n, k, group=chance.choice([32, 64, 128, 128]),
        dtype=chance.choice(["bf16", "bf16", "f16"]), zeros=chance.random() < 0.5, weight_layout="packed",
    )  # fmt: skip


def tensors(torch: Any, operator: GemmW4) -> tuple[list[Any], Any]:
    """A call's arguments on the GPU, and W in f64."""
    o, kind = operator, getattr(torch, FORMATS[operator.dtype][0])
    q = torch.randint(0, 256, (o.n, o.k // 2), dtype=torch.uint8, device="cuda")
    scales = (torch.rand(o.n, o.groups, device="cuda") / 16 + 1 / 32).to(kind)
    zeros = torch.randint(0, 16, scales.shape, dtype=torch.uint8, device="cuda") if o.zeros else None
    w, packed_scales, packed_zeros = pack_w4(q, scales, zeros)
    each = torch.stack([q & 15, q >> 4], dim=-1).reshape(o.n, o.k).double()
    per = o.group or o.k
    points = 8 if zeros is None else zeros.double().repeat_interleave(per, 1)[:, : o.k]
    whole = (each - points) * scales.double().repeat_interleave(per, 1)[:, : o.k]
    x = torch.randn(o.m, o.k, device="cuda").to(kind)
    return [x, w, packed_scales, *([] if zeros is None else [packed_zeros])], whole


def off(torch: Any, operator: GemmW4, call: Any, arguments: list[Any], whole: Any) -> float:
    """The norm of the error over that of the result; infinite where something was not written."""
    out = torch.full((operator.m, operator.n), float("nan"), dtype=arguments[0].dtype, device="cuda")
    call(*arguments, out=out)
    want = arguments[0].double() @ whole.T
    distance = float((out.double() - want).norm() / want.norm().clamp(min=1e-30))
    return float("inf") if isnan(distance) else distance


def loaded(operator: Operator, target: Target, family: Generator, config: Mapping[str, Any]) -> Any:
    kernel = family.emit(operator, target, config)
    build_once(kernel, target)
    return load(kernel, operator, target)


class Bench:
    def __init__(self, options: Options) -> None:
        self.options, self.target, self.clock = options, targets.resolve(options.target), Clock()
        self.torch = self.clock.torch

    def ours(self, operator: GemmW4, seconds: float) -> tuple[Any, str]:
        if not seconds:
            family = generators.find(operator, self.target)
            config = family.default(operator, self.target)
            return loaded(operator, self.target, family, config), str(dict(config))
        with tempfile.TemporaryDirectory() as folder:
            study = dg.tune(
                operator, target=self.target, time_budget=seconds, out=folder, baselines=False, progress=False
            )
            best = study.best()
            return best.load(), str(dict(best.trial.config))

    def measured(self, operator: GemmW4, seconds: float, most: float | None = None) -> Result:
        torch, name = self.torch, operator.describe()
        call, config = self.ours(operator, seconds)
        arguments, whole = tensors(torch, operator)
        if not (distance := off(torch, operator, call, arguments, whole)) <= FORMATS[operator.dtype][1]:
            return Result(name, seconds, {}, None, most, config, f"off by {distance:.2g}")
        x, out = arguments[0], torch.empty(operator.m, operator.n, dtype=arguments[0].dtype, device="cuda")
        wide = gemm(operator.m, operator.n, operator.k, dtype=operator.dtype, layout="nt")
        family, weights = generators.find(wide, self.target), whole.to(x.dtype)
        product, more = loaded(wide, self.target, family, family.default(wide, self.target)), torch.empty_like(out)
        calls = {
            OURS: partial(call, *arguments, out=out),
            WIDE: partial(product, x, weights, out=more),
            TORCH: partial(torch.mm, x, weights.T, out=torch.empty_like(out)),
        }
        contenders = {one: partial(self.clock.seconds, each) for one, each in calls.items()}
        samples = alternate(contenders, self.options.rounds)
        times = {one: samples.median(one) * 1e6 for one in calls}
        return Result(name, seconds, times, samples.ratio(OURS, WIDE).estimate, most, config)


def main() -> int:
    words = parser(__doc__)
    words.add_argument("--target", default="cuda:native", help="an NVIDIA GPU [cuda:native]")
    words.add_argument("--rounds", type=int, default=21, help="of all contenders [21]")
    words.add_argument("--seconds", type=float, default=0.0, help="of a study for each case; 0: defaults [0]")
    words.add_argument("--cases", type=int, default=8, help="drawn cases [8]")
    options = words.options()
    wanted = [(gemm_w4(m, n, k, weight_layout="packed"), most) for m, n, k, most in SHAPES]
    wanted += [(one, None) for one in draw(options.seed, options.cases, drawn)]
    done = [Result(**row) for row in (read(options.json) if options.json else None) or []]
    names = {(one.name, one.seconds) for one in done if not one.error}
    bench, deadline = Bench(options), options.deadline()
    try:
        for operator, most in wanted:
            if deadline.over:
                break
            if (operator.describe(), options.seconds) in names:
                continue
            try:
                one = bench.measured(operator, options.seconds, most)
            except (dg.DeepgenError, RuntimeError) as error:
                why = f"{type(error).__name__}: {error}"[:300]
                one = Result(operator.describe(), options.seconds, {}, None, most, "", why)
            done.append(one)
            times = " ".join(f"{name} {time:.1f}" for name, time in one.times.items())
            print(one.name, times, f"{one.ratio:.2f}" if one.ratio else "", one.config, one.error, flush=True)
    finally:
        save(options.json, done)
    rows = [(one.name, *one.times.values(), one.ratio, one.most) for one in done if one.times]
    print(table(("case", OURS, WIDE, TORCH, "of bf16", "at most"), rows))
    if rows:
        print(f"of bf16's time, geometric mean: {geometric_mean(one.ratio for one in done if one.ratio):.2f}")
    return int(any(one.error or (one.ratio and one.most and one.ratio > one.most) for one in done))


if __name__ == "__main__":
    run_main(main)
