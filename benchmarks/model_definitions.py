"""The models of models.py, made by their configuration, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LARGEST = 448.0  # of f8e4m3
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.bfloat16, "i8": torch.float32}


@dataclass(frozen=True)
class Sizes:
    """A block of attention and MLP, each with a norm and a residual connection."""

    hidden: int
    mlp: int
    heads: int
    groups: int  # heads of keys and values
    width: int  # of a head
    llama: bool = True  # RMS norms, rotated positions, silu(gate) * up; otherwise layer norms, gelu and biases
    biases: bool = False  # of queries, keys and values
    causal: bool = True
    norms_last: bool = False  # after the residual connection
    experts: int = 0  # two of which serve each token


@dataclass(frozen=True)
class Tokens:
    """What a block is called with: `before` tokens of each sequence are in its cache of keys and values."""

    sequences: int
    length: int
    before: int = 0


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


class Dynamic(nn.Module):  # type: ignore[misc]
    """A linear layer in 8-bit integers: each output has a scale, and each row of the input one that is computed."""

    def __init__(self, inputs: int, outputs: int, bias: bool, device: str) -> None:
        super().__init__()
        wide = torch.randn(outputs, inputs, device=device) * inputs**-0.5
        self.scale = wide.abs().amax(1) / 127
        self.weight = (wide / self.scale[:, None]).round().to(torch.int8)
        self.bias = torch.randn(outputs, device=device) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        scale = rows.abs().amax(1, keepdim=True) / 127
        sums = torch._int_mm((rows / scale).round().to(torch.int8), self.weight.t())
        out = sums * scale * self.scale
        return (out if self.bias is None else out + self.bias).view(*x.shape[:-1], -1)


class Experts(nn.Module):  # type: ignore[misc]
    """Gated MLPs, two of which serve each token, as grouped products over tokens in the order of their experts."""

    def __init__(self, sizes: Sizes, device: str) -> None:
        super().__init__()
        hidden, mlp = sizes.hidden, sizes.mlp
        self.router = nn.Linear(hidden, sizes.experts, bias=False, device=device, dtype=torch.bfloat16)
        shapes = {"both": (sizes.experts, 2 * mlp, hidden), "down": (sizes.experts, hidden, mlp)}
        for name, shape in shapes.items():
            of = torch.randn(shape, device=device, dtype=torch.bfloat16) * shape[-1] ** -0.5
            self.register_buffer(name, of)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        shares, chosen = self.router(rows).float().softmax(-1).topk(2)
        order = chosen.flatten().argsort()
        ends = torch.bincount(chosen.flatten(), minlength=len(self.down)).cumsum(0).int()
        gate, up = torch._grouped_mm(rows[order // 2], self.both.transpose(1, 2), ends).chunk(2, -1)
        each = torch._grouped_mm(F.silu(gate) * up, self.down.transpose(1, 2), ends)
        each = each * shares.flatten()[order, None].to(each.dtype)
        return torch.zeros_like(rows).index_add_(0, order // 2, each).view(x.shape)


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self, sizes: Sizes, device: str, format: str) -> None:
        super().__init__()
        dtype, self.sizes = DTYPES[format], sizes

        def linear(inputs: int, outputs: int, bias: bool = not sizes.llama) -> Any:
            if format == "fp8":
                return Scaled(inputs, outputs, device)
            if format == "i8":
                return Dynamic(inputs, outputs, bias, device)
            return nn.Linear(inputs, outputs, bias=bias, device=device, dtype=dtype)

        def norm() -> Any:
            if sizes.llama:
                return nn.RMSNorm(sizes.hidden, 1e-5, device=device, dtype=dtype)
            return nn.LayerNorm(sizes.hidden, device=device, dtype=dtype)

        queries, keys = sizes.heads * sizes.width, sizes.groups * sizes.width
        biases = sizes.biases or not sizes.llama
        self.q = linear(sizes.hidden, queries, biases)
        self.k, self.v = (linear(sizes.hidden, keys, biases) for _ in range(2))
        self.o = linear(queries, sizes.hidden)
        if sizes.experts:
            self.experts = Experts(sizes, device)
        else:
            self.gate = linear(sizes.hidden, sizes.mlp) if sizes.llama else None
            self.up, self.down = linear(sizes.hidden, sizes.mlp), linear(sizes.mlp, sizes.hidden)
        self.first, self.second = norm(), norm()

    def forward(self, x: Tensor, angles: Tensor | None, past: tuple[Tensor, Tensor] | None) -> Tensor:
        if self.sizes.norms_last:
            x = self.first(x + self.attention(x, angles, past))
            return self.second(x + self.mlp(x))
        x = x + self.attention(self.first(x), angles, past)
        return x + self.mlp(self.second(x))

    def attention(self, x: Tensor, angles: Tensor | None, past: tuple[Tensor, Tensor] | None) -> Tensor:
        batch, length, _ = x.shape
        heads = ((self.q, self.sizes.heads), (self.k, self.sizes.groups), (self.v, self.sizes.groups))
        q, k, v = (of(x).view(batch, length, count, self.sizes.width).transpose(1, 2) for of, count in heads)
        if angles is not None:
            q, k = rotated(q, angles), rotated(k, angles)
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        causal, grouped = self.sizes.causal and past is None, self.sizes.heads != self.sizes.groups
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)
        return self.o(seen.transpose(1, 2).reshape(batch, length, -1))

    def mlp(self, x: Tensor) -> Tensor:
        if self.sizes.experts:
            return self.experts(x)
        if self.gate is None:
            return self.down(F.gelu(self.up(x), approximate="tanh" if self.sizes.causal else "none"))
        return self.down(F.silu(self.gate(x)) * self.up(x))


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return x * angles[0] + torch.cat((-high, low), dim=-1) * angles[1]


def angles_of(first: int, length: int, width: int, device: str, dtype: torch.dtype) -> Tensor:
    """Cosines and sines of tokens' positions."""
    rates = 500000.0 ** (-torch.arange(0, width, 2, device=device).float() / width)
    angles = torch.arange(first, first + length, device=device).float()[:, None] * rates
    both = torch.cat((angles, angles), dim=-1)
    return torch.stack((both.cos(), both.sin())).to(dtype)


def block(sizes: Sizes, tokens: Tokens, device: str, format: str) -> Callable[[], Tensor]:
    torch.manual_seed(0)
    module, dtype = Block(sizes, device, format).eval(), DTYPES[format]
    x = torch.randn(tokens.sequences, tokens.length, sizes.hidden, device=device, dtype=dtype)
    angles = angles_of(tokens.before, tokens.length, sizes.width, device, dtype) if sizes.llama else None
    shape = (tokens.sequences, sizes.groups, tokens.before, sizes.width)
    past = tuple(torch.randn(shape, device=device, dtype=dtype) for _ in range(2)) if tokens.before else None
    return lambda: module(x, angles, past)


class Bottleneck(nn.Module):  # type: ignore[misc]
    def __init__(self, inputs: int, inner: int, outputs: int, stride: int) -> None:
        super().__init__()
        convolutions = (inputs, inner, 1, 1), (inner, inner, 3, stride), (inner, outputs, 1, 1)
        self.parts = nn.ModuleList(convolution(*sizes) for sizes in convolutions)
        self.short = convolution(inputs, outputs, 1, stride) if stride > 1 or inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.parts[1](F.relu(self.parts[0](x))))
        return F.relu(self.parts[2](y) + self.short(x))


def convolution(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Sequential:
    of = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(of, nn.BatchNorm2d(outputs))


def resnet(channels: int, blocks: tuple[int, ...], batch: int, device: str, format: str) -> Callable[[], Tensor]:
    """Whole: with 64 channels and 3, 4, 6, 3 blocks, ResNet-50."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [convolution(3, channels, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = channels
    for stage, count in enumerate(blocks):
        inner = channels << stage
        for number in range(count):
            layers.append(Bottleneck(inputs, inner, 4 * inner, 2 if stage and not number else 1))
            inputs = 4 * inner
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000)]
    module = nn.Sequential(*layers).eval().to(device, DTYPES[format], memory_format=torch.channels_last)
    x = torch.randn(batch, 3, 224, 224, device=device, dtype=DTYPES[format])
    x = x.contiguous(memory_format=torch.channels_last)
    return lambda: module(x)


class Diffusion(nn.Module):  # type: ignore[misc]
    """A residual block of convolutions and a transformer over pixels, as in the U-Nets of diffusion models."""

    def __init__(self, channels: int, heads: int, context: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.GroupNorm(32, channels) for _ in range(3))
        self.convolutions = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.time = nn.Linear(4 * channels, channels)
        self.layer_norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(3))
        sources = (channels, channels), (channels, context)
        self.attentions = nn.ModuleList(
            nn.ModuleList(nn.Linear(of, channels, bias=False) for of in (query, key, key, channels))
            for query, key in sources
        )
        self.ways = nn.ModuleList(nn.Conv2d(channels, channels, 1) for _ in range(2))
        self.gated, self.down = nn.Linear(channels, 8 * channels), nn.Linear(4 * channels, channels)

    def forward(self, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
        y = self.convolutions[0](F.silu(self.norms[0](x))) + self.time(F.silu(time))[:, :, None, None]
        x = x + self.convolutions[1](F.silu(self.norms[1](y)))
        batch, channels, height, width = x.shape
        y = self.ways[0](self.norms[2](x)).permute(0, 2, 3, 1).reshape(batch, height * width, channels)
        for norm, parts, source in zip(self.layer_norms, self.attentions, (None, context), strict=False):
            y = y + self.attention(parts, norm(y), source)
        up, gate = self.gated(self.layer_norms[2](y)).chunk(2, -1)
        y = y + self.down(up * F.gelu(gate))
        return x + self.ways[1](y.reshape(batch, height, width, channels).permute(0, 3, 1, 2))

    def attention(self, parts: Any, x: Tensor, source: Tensor | None) -> Tensor:
        source, shape = x if source is None else source, (len(x), -1, self.heads, x.shape[-1] // self.heads)
        q, k, v = (of(y).view(shape).transpose(1, 2) for of, y in zip(parts, (x, source, source), strict=False))
        seen = F.scaled_dot_product_attention(q, k, v)
        return parts[3](seen.transpose(1, 2).reshape(x.shape))


def diffusion(channels: int, heads: int, side: int, batch: int, device: str, format: str) -> Callable[[], Tensor]:
    torch.manual_seed(0)
    dtype = DTYPES[format]
    module = Diffusion(channels, heads, 768).eval().to(device, dtype, memory_format=torch.channels_last)
    shapes = (batch, channels, side, side), (batch, 4 * channels), (batch, 77, 768)
    x, time, context = (torch.randn(shape, device=device, dtype=dtype) for shape in shapes)
    x = x.contiguous(memory_format=torch.channels_last)
    return lambda: module(x, time, context)


LLAMA = Sizes(4096, 14336, 32, 8, 128)
BLOCKS: dict[str, tuple[Sizes, dict[str, tuple[Tokens, int]]]] = {
    # A decoder computes many tokens for each prompt, so both are weighted.
    "llama": (LLAMA, {"prefill": (Tokens(1, 2048), 1), "decode": (Tokens(16, 1, 512), 8)}),
    "qwen": (
        Sizes(3584, 18944, 28, 4, 128, biases=True),
        {"prefill": (Tokens(1, 777), 1), "decode": (Tokens(5, 1, 900), 8)},
    ),
    "mixtral": (
        Sizes(4096, 14336, 32, 8, 128, experts=8),
        {"prefill": (Tokens(1, 1024), 1), "decode": (Tokens(16, 1, 512), 8)},
    ),
    "gpt2": (
        Sizes(1024, 4096, 16, 16, 64, llama=False),
        {"prefill": (Tokens(4, 512), 1), "decode": (Tokens(8, 1, 500), 8)},
    ),
    "bert-large": (
        Sizes(1024, 4096, 16, 16, 64, llama=False, causal=False, norms_last=True),
        {"layer": (Tokens(16, 128), 1)},
    ),
    "vit": (Sizes(1024, 4096, 16, 16, 64, llama=False, causal=False), {"layer": (Tokens(32, 197), 1)}),
    "bert": (
        Sizes(768, 3072, 12, 12, 64, llama=False, causal=False, norms_last=True),
        {"layer": (Tokens(1, 128), 5)},
    ),
}
Maker = Callable[[str, str], Callable[[], Tensor]]  # of a device and a format
NETWORKS: dict[str, Maker] = {
    "resnet": lambda device, format: resnet(64, (3, 4, 6, 3), 16, device, format),
    "unet": lambda device, format: diffusion(320, 8, 64, 2, device, format),
}


def runs_of(name: str, device: str, format: str) -> dict[str, tuple[Callable[[], Callable[[], Tensor]], int]]:
    """What is run of a model, and its weight. `drawn-N` is a seed's decoder, encoder, network and U-Net block."""
    if name.startswith("drawn-"):
        return drawn(int(name.removeprefix("drawn-")), device, format)
    if name in NETWORKS:
        return {"whole": (lambda: NETWORKS[name](device, format), 1)}
    sizes, parts = BLOCKS[name]
    return {part: (partial(block, sizes, tokens, device, format), often) for part, (tokens, often) in parts.items()}


def drawn(seed: int, device: str, format: str) -> dict[str, tuple[Callable[[], Callable[[], Tensor]], int]]:
    """Four blocks that no kernel was developed with. For processors, with fewer tokens and narrower."""
    chance, part = Random(seed), 8 if device == "cpu" else 1
    groups, width = chance.choice((1, 2, 4, 8)), chance.choice((64, 96, 128))
    heads = groups * chance.choice((1, 3, 4, 7))
    hidden = 64 * ceil(chance.randint(16, 80) / part)
    decoder = Sizes(hidden, 64 * chance.randint(hidden // 32, hidden // 16), heads, groups, width)
    small = 64 * ceil(chance.randint(6, 24) / part)
    encoder = Sizes(small, 4 * small, small // 64, small // 64, 64, llama=False, causal=False)
    prompt, cached = Tokens(chance.randint(1, 4), chance.randint(100, 3000) // part), chance.randint(100, 4000) // part
    decode, layer = Tokens(chance.randint(1, 40), 1, cached), Tokens(chance.randint(1, 40), chance.randint(20, 600))
    layer = replace(layer, sequences=ceil(layer.sequences / part))
    channels, blocks = 16 * ceil(chance.randint(2, 6) / part), tuple(chance.randint(1, 4) for _ in range(4))
    batch, side, wide = (chance.randint(1, 40), 8 * chance.randint(2, 10), 64 * chance.randint(4, 12))
    if part > 1:
        batch, side, wide = ceil(batch / part), 16, 64
    return {
        "decoder, prefill": (lambda: block(decoder, prompt, device, format), 1),
        "decoder, decode": (lambda: block(decoder, decode, device, format), 8),
        "encoder": (lambda: block(encoder, layer, device, format), 1),
        "network": (lambda: resnet(channels, blocks, batch, device, format), 1),
        "U-Net block": (lambda: diffusion(wide, wide // 64, side, 2, device, format), 1),
    }


def one_call(device: str, fp8: bool) -> tuple[str, Callable[[], Tensor]]:
    """A product of Llama's block that a kernel serves, as a torch function by itself."""
    inputs, outputs = (LLAMA.mlp, LLAMA.hidden) if fp8 else (LLAMA.hidden, LLAMA.hidden)
    x = torch.randn(16, inputs, device=device, dtype=torch.bfloat16)
    if not fp8:
        weight = nn.Parameter(torch.randn(outputs, inputs, device=device, dtype=x.dtype), requires_grad=False)
        return "F.linear", lambda: F.linear(x, weight)
    layer = Scaled(inputs, outputs, device)
    small, transposed = x.to(torch.float8_e4m3fn), layer.weight.t()
    scales = (layer.of_input, layer.scale)
    return "torch._scaled_mm", lambda: torch._scaled_mm(small, transposed, *scales, out_dtype=torch.bfloat16)
