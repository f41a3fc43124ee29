"""A test library with a kernel for scaled products of 8-bit floats, and a layer that uses one.

No family has such a kernel for every CPU, so this one is simulated: it computes from the data at the addresses it is
given.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from deepgen.frontends.torch.ops import scaled_mm
from deepgen.operators import Gemm, Operator
from deepgen.run.call.calling import Loaded
from deepgen.vocabulary.measurement import KEPT, Properties

M, N, K = 16, 32, 48


class Product(Loaded):
    """Counts its calls."""

    align, by_stream = 4, False

    def __init__(self) -> None:
        self.calls = 0

    def run_on(self, parallel: int) -> bool:
        return False

    def meet(self, *inputs: Any) -> Any:
        a, b, scale = inputs
        assert (a.shape, b.shape, scale.shape) == ((M, K), (N, K), (1,))
        out = torch.empty(M, N, dtype=torch.bfloat16)
        self._fire([*(tensor.data_ptr() for tensor in inputs), out.data_ptr()], 0)
        return out, self._fire

    def _fire(self, at: Sequence[int], stream: int) -> None:
        self.calls += 1
        a, b, scale, out = (
            torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=dtype)
            for address, size, dtype in zip(
                at,
                (M * K, N * K, 4, M * N * 2),
                (torch.float8_e4m3fn, torch.float8_e4m3fn, torch.float32, torch.bfloat16),
                strict=True,
            )
        )
        out.copy_(scaled_mm(a.view(M, K), b.view(N, K).t(), scale.view(()), False).view(-1))


class Library:
    def __init__(self, kernel: Product) -> None:
        self._kernel = kernel

    def choose(self, operator: Operator, target: Any, among: Any) -> Any:
        if not isinstance(operator, Gemm) or operator.scales == "none":
            return SimpleNamespace(entry=None, reason="it has no such kernel")
        return SimpleNamespace(
            entry=SimpleNamespace(properties=Properties(KEPT, KEPT, KEPT)),
            seconds=1e-3,
            considered=(),
            reason="",
            load=lambda: self._kernel,
        )


class Layer(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.randn(N, K).to(torch.float8_e4m3fn)
        self.scale, self.of_input = torch.tensor(0.5), torch.tensor(0.25)

    def forward(self, x: Any) -> Any:
        small = (x / self.of_input).to(torch.float8_e4m3fn)
        return torch._scaled_mm(small, self.weight.t(), self.of_input, self.scale, out_dtype=torch.bfloat16).relu()
