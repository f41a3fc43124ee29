"""A block like Llama's through deepgen.torch: recorded, tuned from the recording, and timed beside torch.

    python benchmarks/h200/llama_block.py record tune bench --folder build/llama --json benchmarks/h200/llama_block.json
    python benchmarks/h200/llama_block.py record tune bench --format fp8 --folder build/llama

Hidden 4096, MLP 14336, 32 heads, 8 of K and V; random weights in bf16. `prefill` is one sequence of 2048 tokens,
`decode` one token of each of 16 sequences, each with 512 tokens before it, and `request` one prefill with 16 decodes
after it: what a user waits for. With `--format fp8` weights and inputs of products are 8-bit floats with a scale each,
by torch._scaled_mm. The steps leave their results in the folder, so each can be run by itself. Bars: eager torch with
ours at least 1.04 times as fast as without, compiled not slower, a call of F.linear at most 1.3 of torch's own, and one
of _scaled_mm not more than it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "src")]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import model_stages  # noqa: E402
from common import run_main, save  # noqa: E402

HIDDEN, MLP, HEADS, GROUPS, WIDTH = 4096, 14336, 32, 8, 128
PROMPT, SEQUENCES, BEFORE, TOKENS = 2048, 16, 512, 16
LARGEST = 448.0  # of f8e4m3
STEPS = ("record", "tune", "bench")


class Scaled(nn.Module):  # type: ignore[misc]
    """A linear layer in 8-bit floats: the weight with its scale, the input with a fixed one."""

    def __init__(self, inputs: int, outputs: int, device: str) -> None:
        super().__init__()
        wide = torch.randn(outputs, inputs, device=device) * inputs**-0.5
        self.scale = (wide.abs().max() / LARGEST).float()
        self.weight = (wide / self.scale).to(torch.float8_e4m3fn)
        self.of_input = torch.tensor(8.0 / LARGEST, device=device)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        small = (rows / self.of_input).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
        out = torch._scaled_mm(small, self.weight.t(), self.of_input, self.scale, out_dtype=torch.bfloat16)
        return out.view(*x.shape[:-1], -1)


class Block(nn.Module):  # type: ignore[misc]
    """Attention and MLP, each after a normalisation and added to its input."""

    def __init__(self, device: str, fp8: bool) -> None:
        super().__init__()

        def linear(inputs: int, outputs: int) -> Any:
            if fp8:
                return Scaled(inputs, outputs, device)
            return nn.Linear(inputs, outputs, bias=False, device=device, dtype=torch.bfloat16)

        self.q, self.o = linear(HIDDEN, HEADS * WIDTH), linear(HEADS * WIDTH, HIDDEN)
        self.k, self.v = linear(HIDDEN, GROUPS * WIDTH), linear(HIDDEN, GROUPS * WIDTH)
        self.gate, self.up, self.down = linear(HIDDEN, MLP), linear(HIDDEN, MLP), linear(MLP, HIDDEN)
        self.first, self.second = (torch.ones(HIDDEN, device=device, dtype=torch.bfloat16) for _ in range(2))

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], past: tuple[Tensor, Tensor] | None) -> Tensor:
        y = F.rms_norm(x, (HIDDEN,), self.first, 1e-5)
        batch, length, _ = x.shape
        q = _turned(self.q(y).view(batch, length, HEADS, WIDTH).transpose(1, 2), turn)
        k = _turned(self.k(y).view(batch, length, GROUPS, WIDTH).transpose(1, 2), turn)
        v = self.v(y).view(batch, length, GROUPS, WIDTH).transpose(1, 2)
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=past is None, enable_gqa=True)
        x = x + self.o(seen.transpose(1, 2).reshape(batch, length, HEADS * WIDTH))
        y = F.rms_norm(x, (HIDDEN,), self.second, 1e-5)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def _turned(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotated by the token's position."""
    low, high = x.chunk(2, dim=-1)
    return x * turn[0] + torch.cat((-high, low), dim=-1) * turn[1]


def _turn(first: int, length: int, device: str) -> tuple[Tensor, Tensor]:
    rates = 500000.0 ** (-torch.arange(0, WIDTH, 2, device=device).float() / WIDTH)
    angles = torch.arange(first, first + length, device=device).float()[:, None] * rates
    both = torch.cat((angles, angles), dim=-1)
    return both.cos().bfloat16(), both.sin().bfloat16()


def made(name: str, device: str, fp8: bool) -> Callable[[], Tensor]:
    torch.manual_seed(0)
    block = Block(device, fp8)
    batch, length, before = (1, PROMPT, 0) if name == "prefill" else (SEQUENCES, 1, BEFORE)
    x = torch.randn(batch, length, HIDDEN, device=device, dtype=torch.bfloat16)
    turn = _turn(before, length, device)
    shape = (batch, GROUPS, before, WIDTH)
    past = tuple(torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(2)) if before else None

    def run() -> Tensor:
        return block(x, turn, past)

    return run


def request(device: str, fp8: bool) -> Callable[[], Tensor]:
    first, next_one = made("prefill", device, fp8), made("decode", device, fp8)

    def run() -> Tensor:
        first()
        for _ in range(TOKENS - 1):
            next_one()
        return next_one()

    return run


def one_call(device: str, fp8: bool) -> tuple[str, Callable[[], Tensor]]:
    """A product of the block's that a kernel serves, as torch's function alone."""
    inputs, outputs = (MLP, HIDDEN) if fp8 else (HIDDEN, HIDDEN)
    x = torch.randn(SEQUENCES, inputs, device=device, dtype=torch.bfloat16)
    if not fp8:
        weight = nn.Parameter(torch.randn(outputs, inputs, device=device, dtype=x.dtype), requires_grad=False)
        return "F.linear", lambda: F.linear(x, weight)
    layer = Scaled(inputs, outputs, device)
    small, turned = x.to(torch.float8_e4m3fn), layer.weight.t()
    scales = (layer.of_input, layer.scale)
    return "torch._scaled_mm", lambda: torch._scaled_mm(small, turned, *scales, out_dtype=torch.bfloat16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="+", choices=STEPS)
    parser.add_argument("--format", choices=("bf16", "fp8"), default="bf16")
    parser.add_argument("--time-budget", type=float, default=480.0)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path("build/llama"))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    fp8, device = given.format == "fp8", "cuda"
    # A block decodes many tokens for each prompt, so both count.
    runs = {"prefill": (lambda: made("prefill", device, fp8), 1), "decode": (lambda: made("decode", device, fp8), 8)}
    work, library = given.folder / f"work-{given.format}.json", given.folder / "library"
    if "record" in given.steps:
        model_stages.record(runs, work)
    if "tune" in given.steps:
        model_stages.tune(work, library, given.time_budget, "cuda:native")
    if "bench" in given.steps:
        bench = partial(model_stages.bench, library=library, rounds=given.rounds, graphs=True)
        # The parts of a request were recorded and tuned. Compiled, its decodes would be one graph.
        whole = {"request": (lambda: request(device, fp8), 1)}
        blocks = bench(runs, compiled=not given.no_compile) | bench(whole, compiled=False)
        results: dict[str, Any] = {"blocks": blocks}
        results["call"] = model_stages.calls(library, *one_call(device, fp8))
        if given.json is not None:
            save(given.json, results, device=torch.cuda.get_device_name())
        model_stages.check_not_slower(results["blocks"])


if __name__ == "__main__":
    run_main(main)
