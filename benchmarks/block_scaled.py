"""What do scales of blocks cost? Products of 8-bit floats with and without them, and torch's, on an NVIDIA GPU.

    python benchmarks/block_scaled.py [--target cuda:native] [--rounds 15] [--json FILE]

Defaults, without a search. Each is verified against f64; then all are called interleaved, with cold caches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from deepgen import targets
from deepgen.operators import Gemm, gemm
from deepgen.operators.gemm import BLOCK_SCALES
from harness import alternate, parser, run_main, table
from harness.gpu import Clock
from harness.ours import kernels, measure, off

SHAPES = ((4096, 4096, 4096), (4096, 7168, 2048), (64, 7168, 18432), (512, 4096, 7168))  # M, N, K
PLAIN, TORCH = "none", "torch's"
LEAST = 0.9  # of the speed without scales
MOST_OFF = 5e-3  # the norm of the error over that of the result, which is rounded to bf16


@dataclass(frozen=True)
class Result:
    """Microseconds by scales, and the speed with scales over that without."""

    name: str
    times: Mapping[str, float]
    ratios: Mapping[str, float]
    error: str = ""


def spread(torch: Any, scales: Any, rows: int, like: Any) -> Any:
    """A scale for each element."""
    return scales.double().repeat_interleave(rows, 0).repeat_interleave(128, 1)[: like.shape[0], : like.shape[1]]


class Case:
    def __init__(self, clock: Clock, shape: tuple[int, int, int]) -> None:
        self.torch, self.shape = clock.torch, shape
        m, n, k = shape
        self.a, self.b = (self.torch.randn(rows, k, device="cuda").to(self.torch.float8_e4m3fn) for rows in (m, n))
        self.out = self.torch.empty(m, n, dtype=self.torch.bfloat16, device="cuda")

    def scales(self, rows: tuple[int, int]) -> tuple[Any, Any]:
        """As kernels in use have them: of rows and columns with these innermost, of blocks of B with K innermost."""
        blocks = -(-self.shape[2] // 128)
        a, b = (-(-size // each) for size, each in zip(self.shape[:2], rows, strict=True))
        one, other = (self.torch.rand(*size, device="cuda") + 0.5 for size in ((blocks, a), (blocks, b)))
        return one.T, other.T if rows[1] == 1 else other.T.contiguous()

    def off(self, call: Any, scales: tuple[Any, Any] | None, rows: tuple[int, int]) -> float:
        a, b = self.a.double(), self.b.double()
        if scales is not None:
            a, b = (x * spread(self.torch, s, r, x) for x, s, r in zip((a, b), scales, rows, strict=True))
        result = call()
        return off(self.out if result is None else result, a @ b.T)


def operators_of(shape: tuple[int, int, int]) -> dict[str, Gemm]:
    return {name: gemm(*shape, dtype="f8e4m3", layout="nt", scales=name) for name in (PLAIN, *BLOCK_SCALES)}


def measured(clock: Clock, target: Any, shape: tuple[int, int, int], rounds: int) -> Result:
    case, calls, wrong = Case(clock, shape), {}, []
    for name, operator in operators_of(shape).items():
        scales = case.scales(operator.blocks) if operator.blocks else None
        ours = kernels(operator, target)[0].load()
        calls[name] = partial(ours, case.a, case.b, *(scales or ()), out=case.out)
        case.out.fill_(float("nan"))
        distance = case.off(calls[name], scales, operator.blocks or (1, 1))
        wrong += [f"{name} is off by {distance:.2g}"] if not distance <= MOST_OFF else []
    scales = case.scales((1, 128))
    torchs = partial(
        case.torch._scaled_mm, case.a, case.b.T, scale_a=scales[0], scale_b=scales[1].T, out_dtype=case.torch.bfloat16
    )
    try:
        distance = case.off(torchs, scales, (1, 128))
        if distance <= MOST_OFF:
            calls[TORCH] = torchs
        else:
            print(f"torch's is off by {distance:.2g}: not timed")
    except (RuntimeError, ValueError) as error:
        print("torch has none:", f"{error}"[:200].replace("\n", " "))
    samples = alternate({name: partial(clock.seconds, call) for name, call in calls.items()}, rounds)
    times = {name: samples.median(name) * 1e6 for name in calls}
    ratios = {name: samples.ratio(PLAIN, name).estimate for name in calls if name != PLAIN}
    return Result("x".join(map(str, shape)), times, ratios, "; ".join(wrong))


def shown(one: Result) -> tuple[object, ...]:
    times = "  ".join(f"{name} {time:.1f}" for name, time in one.times.items())
    return one.name, times, {name: round(ratio, 3) for name, ratio in one.ratios.items()}, one.error


def main() -> int:
    words = parser(__doc__)
    words.add_argument("--target", default="cuda:native", help="an NVIDIA GPU [cuda:native]")
    words.add_argument("--rounds", type=int, default=15, help="of all contenders [15]")
    options = words.options()
    target, clock = targets.resolve(options.target), Clock()
    done = measure(
        options, SHAPES, lambda shape: measured(clock, target, shape, options.rounds),
        lambda shape, error: Result("x".join(map(str, shape)), {}, {}, error), shown,
    )  # fmt: skip
    columns = (*BLOCK_SCALES, TORCH)
    print(table(("case", *columns), [(one.name, *(one.ratios.get(name) for name in columns)) for one in done]))
    return int(any(one.error or one.ratios.get("1x128,128x128", 0.0) < LEAST for one in done))


if __name__ == "__main__":
    run_main(main)
