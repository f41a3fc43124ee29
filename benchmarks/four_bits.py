"""What do weights of 4 bits save? `gemm_w4` beside our own product of bf16 weights and torch's, on an NVIDIA GPU.

    python benchmarks/four_bits.py --seed 1 [--seconds 30] [--cases 8] [--json FILE]

Products of few tokens with large weights: those of models, and `--cases` drawn by the seed. The default or, with
`--seconds`, what a study finds. Weights are packed once, ahead of all calls. Ours is verified against f64 with weights
in unlimited precision; then all are called interleaved, with cold caches. The bf16 products have weights of their own.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import nan
from typing import Any

from deepgen import targets
from deepgen.operators import GemmW4, gemm, gemm_w4, pack_w4
from harness import Options, alternate, parser, run_main, table
from harness.cases import draw
from harness.gpu import Clock
from harness.ours import before, kernels, mean_text, measure, off

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


class Bench:
    def __init__(self, options: Options) -> None:
        self.options, self.target, self.clock = options, targets.resolve(options.target), Clock()
        self.torch = self.clock.torch

    def measured(self, operator: GemmW4, seconds: float, most: float | None = None) -> Result:
        torch, name = self.torch, operator.describe()
        ours = kernels(operator, self.target, seconds=seconds)[0]
        call, config = ours.load(), ours.config
        arguments, whole = tensors(torch, operator)
        x, out = arguments[0], torch.full((operator.m, operator.n), nan, dtype=arguments[0].dtype, device="cuda")
        call(*arguments, out=out)
        if not (distance := off(out, x.double() @ whole.T)) <= FORMATS[operator.dtype][1]:
            return Result(name, seconds, {}, None, most, config, f"off by {distance:.2g}")
        wide = gemm(operator.m, operator.n, operator.k, dtype=operator.dtype, layout="nt")
        product, weights, more = kernels(wide, self.target)[0].load(), whole.to(x.dtype), torch.empty_like(out)
        calls = {
            OURS: partial(call, *arguments, out=out),
            WIDE: partial(product, x, weights, out=more),
            TORCH: partial(torch.mm, x, weights.T, out=torch.empty_like(out)),
        }
        contenders = {one: partial(self.clock.seconds, each) for one, each in calls.items()}
        samples = alternate(contenders, self.options.rounds)
        times = {one: samples.median(one) * 1e6 for one in calls}
        return Result(name, seconds, times, samples.ratio(OURS, WIDE).estimate, most, config)


def shown(one: Result) -> tuple[object, ...]:
    times = " ".join(f"{name} {time:.1f}" for name, time in one.times.items())
    return one.name, times, f"{one.ratio:.2f}" if one.ratio else "", one.config, one.error


def main() -> int:
    words = parser(__doc__)
    words.add_argument("--target", default="cuda:native", help="an NVIDIA GPU [cuda:native]")
    words.add_argument("--rounds", type=int, default=21, help="of all contenders [21]")
    words.add_argument("--seconds", type=float, default=0.0, help="of a study for each case; 0: defaults [0]")
    words.add_argument("--cases", type=int, default=8, help="drawn cases [8]")
    options = words.options()
    wanted = [(gemm_w4(m, n, k, weight_layout="packed"), most) for m, n, k, most in SHAPES]
    wanted += [(one, None) for one in draw(options.seed, options.cases, drawn)]
    done = before(options, Result)
    names, bench = {(one.name, one.seconds) for one in done}, Bench(options)
    done = measure(
        options, [one for one in wanted if (one[0].describe(), options.seconds) not in names],
        lambda case: bench.measured(case[0], options.seconds, case[1]),
        lambda case, error: Result(case[0].describe(), options.seconds, {}, None, case[1], "", error), shown, done,
    )  # fmt: skip
    rows = [(one.name, *one.times.values(), one.ratio, one.most) for one in done if one.times]
    print(table(("case", OURS, WIDE, TORCH, "of bf16", "at most"), rows))
    print("of bf16's time:", mean_text(one.ratio for one in done))
    return int(any(one.error or (one.ratio and one.most and one.ratio > one.most) for one in done))


if __name__ == "__main__":
    run_main(main)
