"""The models of models.py, with random weights: a block like Llama's and a layer like BERT's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HIDDEN, MLP, HEADS, GROUPS, WIDTH = 4096, 14336, 32, 8, 128
PROMPT, SEQUENCES, BEFORE, TOKENS = 2048, 16, 512, 16
LARGEST = 448.0  # of f8e4m3
BERT_HIDDEN, BERT_HEADS, BERT_MLP, BERT_TOKENS = 768, 12, 3072, 128
BERT_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class Scaled(nn.Module):  # type: ignore[misc]
    """A linear layer in 8-bit floats: the weight has its own scale, the input a fixed one."""

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
    """Attention and MLP, each after a normalisation and with a residual connection."""

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


def part(name: str, device: str, fp8: bool) -> Callable[[], Tensor]:
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
    first, next_one = part("prefill", device, fp8), part("decode", device, fp8)

    def run() -> Tensor:
        first()
        for _ in range(TOKENS - 1):
            next_one()
        return next_one()

    return run


def one_call(device: str, fp8: bool) -> tuple[str, Callable[[], Tensor]]:
    """A product of the block that a kernel serves, as a torch function by itself."""
    inputs, outputs = (MLP, HIDDEN) if fp8 else (HIDDEN, HIDDEN)
    x = torch.randn(SEQUENCES, inputs, device=device, dtype=torch.bfloat16)
    if not fp8:
        weight = nn.Parameter(torch.randn(outputs, inputs, device=device, dtype=x.dtype), requires_grad=False)
        return "F.linear", lambda: F.linear(x, weight)
    layer = Scaled(inputs, outputs, device)
    small, turned = x.to(torch.float8_e4m3fn), layer.weight.t()
    scales = (layer.of_input, layer.scale)
    return "torch._scaled_mm", lambda: torch._scaled_mm(small, turned, *scales, out_dtype=torch.bfloat16)


class Layer(nn.Module):  # type: ignore[misc]
    """Attention and MLP, each with a residual connection and a normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(BERT_HIDDEN, BERT_HIDDEN) for _ in range(4))
        self.up, self.down = nn.Linear(BERT_HIDDEN, BERT_MLP), nn.Linear(BERT_MLP, BERT_HIDDEN)
        self.first, self.second = nn.LayerNorm(BERT_HIDDEN), nn.LayerNorm(BERT_HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        shape = (batch, length, BERT_HEADS, BERT_HIDDEN // BERT_HEADS)
        q, k, v = (part(x).view(shape).transpose(1, 2) for part in (self.q, self.k, self.v))
        seen = nn.functional.scaled_dot_product_attention(q, k, v)
        x = self.first(x + self.o(seen.transpose(1, 2).reshape(batch, length, BERT_HIDDEN)))
        return self.second(x + self.down(nn.functional.gelu(self.up(x))))


def bert_layer(dtype: str) -> Callable[[], Tensor]:
    torch.manual_seed(0)
    of = BERT_DTYPES[dtype]
    layer, x = Layer().to(of), torch.randn(1, BERT_TOKENS, BERT_HIDDEN, dtype=of)
    return lambda: layer(x)
