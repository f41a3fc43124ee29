"""What sweeps of the Hopper GEMM family work with: problems with their right answers, and the suite's by name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).resolve().parent), str(ROOT / "benchmarks"), str(ROOT / "src")]

from sm90_candidates import shapes  # noqa: E402

from deepgen.operators import Gemm, gemm  # noqa: E402
from deepgen.run.call.gpu_kernel import GpuKernel  # noqa: E402
from deepgen.targets.gpu_driver import CUDA, Driver  # noqa: E402


class Bench:
    """The tensors of one problem, the right answer, and how a call on them is timed."""

    def __init__(self, op: Gemm, flush: Any) -> None:
        import torch

        self.op, self.torch, self.flush, self.driver = op, torch, flush, Driver(CUDA)
        dice = torch.Generator(device="cuda").manual_seed(1)
        words = {
            "bf16": "bfloat16",
            "f16": "float16",
            "f32": "float32",
            "tf32": "float32",
            "i8": "int8",
            "i32": "int32",
        }
        words |= {"f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}
        self.tensors: dict[str, Any] = {}
        for t in op.tensors():
            if t.dtype.integer:
                made = torch.randint(-128, 128, t.shape, device="cuda", generator=dice, dtype=torch.int32)
            else:
                made = torch.randn(t.shape, device="cuda", generator=dice)
            self.tensors[t.name] = made.to(getattr(torch, words[t.dtype.name]))
        self.before = self.tensors["C"].clone()
        self.want = self._reference()
        self.scale = max(self.want.norm().item(), 1e-30)
        self.told = ""

    def _reference(self) -> Any:
        torch, op = self.torch, self.op
        wide = {n: t.double() for n, t in self.tensors.items() if n != "C"}
        a = wide["A"] if op.layout[0] == "n" else wide["A"].transpose(-1, -2)
        b = wide["B"] if op.layout[1] == "n" else wide["B"].transpose(-1, -2)
        x = op.alpha * (a @ b)
        if op.scales != "none":
            x = x * (wide["scale"][:, None] if op.scales == "row" else wide["scale"])
        if op.beta:
            x = x + op.beta * self.before.double()
        if op.bias:
            x = x + wide["bias"]
        function = {"relu": torch.relu, "silu": torch.nn.functional.silu}.get(op.activation)
        if op.activation == "gelu":
            return torch.nn.functional.gelu(x, approximate="tanh")
        return function(x) if function else x

    def right(self, call: Callable[[], Any]) -> float:
        """The norm of the error over the norm of the answer, and infinity where a single element is far off."""
        c = self.tensors["C"]
        if self.op.beta:
            c.copy_(self.before)
        elif c.dtype.is_floating_point:
            c.fill_(float("nan"))
        else:
            c.fill_(-77777)
        call()
        self.torch.cuda.synchronize()
        off = c.double() - self.want
        error = (off.norm() / self.scale).item()
        worst = (off.abs() / (self.want.abs() + self.scale / self.want.numel() ** 0.5)).max().item()
        if isfinite(error) and worst < 20 * self.tolerance():
            return float(error)
        bad = ~(off.abs() <= 20 * self.tolerance() * (self.want.abs() + self.scale / self.want.numel() ** 0.5))
        places = bad.nonzero()
        low, high = places.min(dim=0).values.tolist(), places.max(dim=0).values.tolist()
        columns = bad.reshape(-1, bad.shape[-1]).any(dim=0).nonzero().flatten().tolist()
        self.told = f"{len(places)} of {bad.numel()} off, {int(off.isnan().sum())} NaN, from {low} to {high}"
        self.told += f", columns {columns[:6]}...{columns[-3:]} ({len(columns)})"
        return float("inf")

    def tolerance(self) -> float:
        op = self.op
        if op.acc == "i32":
            return 1e-12
        return max(
            {"bf16": 4e-3, "f16": 6e-4}.get(op.c, 1e-5), {"tf32": 2e-3, "f8e4m3": 4e-3, "f8e5m2": 4e-3}.get(op.a, 0)
        )

    def load(self, kernel: Any, image: bytes) -> Callable[[], None]:
        op = self.op
        loaded = GpuKernel(self.driver, kernel, image)
        addresses = {name: t.data_ptr() for name, t in self.tensors.items()}
        described = {t.name: (t.shape, t.dtype.name) for t in op.tensors()}
        bound = loaded.bind(addresses, op.scalars(), self._allocate, described)
        return bound.run.run

    def _allocate(self, arg: Any, size: int) -> int:
        made = self.torch.full((size + 256,), 255, dtype=self.torch.uint8, device="cuda")
        self.kept = [*getattr(self, "kept", []), made]
        return int(made.data_ptr())


@dataclass(frozen=True)
class Problems:
    """The suite in one format: `bf16`, `bf16/nn`, `i8/nt/i32`, `f8e4m3/nt/bf16/exact`; some shapes: `bf16@3,4`."""

    told: str

    @property
    def words(self) -> str:
        return self.told.partition("@")[0]

    def operators(self) -> list[Gemm]:
        dtype, layout, c = (*self.words.split("/"), "", "")[:3]
        named: dict[str, Any] = {"c": c} if c else {}
        only = self.told.partition("@")[2]
        listed = [shapes()[int(i)] for i in only.split(",")] if only else shapes()
        if dtype.startswith("f8"):
            named["fast_sums"] = not self.words.endswith("/exact")
        return [gemm(m, n, k, batch=b, dtype=dtype, layout=layout or "nt", **named) for b, m, n, k in listed]
