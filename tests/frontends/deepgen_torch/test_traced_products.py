"""Products with what follows them, traced: one GEMM with an epilogue, which computes what the module does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import deepgen as dg  # noqa: E402
import deepgen.torch as dt  # noqa: E402
from deepgen.operators import Gemm  # noqa: E402
from deepgen.vocabulary import BadInput  # noqa: E402

F, nn = torch.nn.functional, torch.nn
X, W, V, JOINED, B, R = (2, 5, 24), (40, 24), (40, 24), (80, 24), (40,), (2, 5, 40)


def drawn(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def joined(x: Any, w: Any) -> Any:
    gate, up = F.linear(x, w).chunk(2, dim=-1)
    return F.silu(gate) * up


def sliced(x: Any, w: Any, b: Any) -> Any:
    both = F.linear(x, w, b)
    return both[..., 40:] * F.gelu(both[..., :40])


class Gated(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(24, 40, bias=False), nn.Linear(24, 40)

    def forward(self, x: Any) -> Any:
        return F.silu(self.gate(x)) * self.up(x)


FUSED: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], str]] = {
    "gelu": (lambda x, w, b: F.gelu(F.linear(x, w, b)), [X, W, B], "gemm f32 nt 10x40x24 gelu(x + bias[n])"),
    "tanh": (
        lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"),
        [X, W, B],
        "gemm f32 nt 10x40x24 gelu bias",
    ),
    "silu": (lambda x, w: F.silu(x @ w), [(7, 24), (24, 40)], "gemm f32 nn 7x40x24 silu"),
    "relu": (lambda x, w, b: F.linear(x, w, b).relu(), [(7, 24), W, B], "gemm f32 nt 7x40x24 relu bias"),
    "residual": (lambda x, w, b, r: r + F.linear(x, w, b), [X, W, B, R], "gemm f32 nt 10x40x24 residual[m, n] + (x +"),
    "added": (lambda x, w, r: torch.addmm(r, x, w.T).tanh(), [(7, 24), W, (7, 40)], "gemm f32 nt 7x40x24 tanh(x + res"),
    "scaled": (
        lambda x, w, s, t: F.linear(x, w) * s * 0.5 / t + 1,
        [X, W, (2, 5, 1), (1,)],
        "gemm f32 nt 10x40x24 x * factor[m] * 0.5 / one[0] + 1",
    ),
    "clamped": (lambda x, w: F.relu6(F.linear(x, w)), [X, W], "gemm f32 nt 10x40x24 min(max(x, 0), 6)"),
    "hardswish": (
        lambda x, w, b: F.hardswish(F.linear(x, w, b)),
        [X, W, B],
        "gemm f32 nt 10x40x24 (x + bias[n]) * min(",
    ),
    "gated": (lambda x, w, v: F.silu(F.linear(x, w)) * F.linear(x, v), [X, W, V], "gemm f32 nt 10x40x24 silu(x) * y"),
    "joined": (joined, [X, JOINED], "gemm f32 nt 10x40x24 silu(x) * y"),
    "sliced": (sliced, [X, JOINED, (80,)], "gemm f32 nt 10x40x24 (y + bias[n]) * gelu(x + bias2[n])"),
}


def computed(call: dt.Traced, inputs: tuple[Any, ...]) -> Any:
    """Computed with the operator's own reference."""
    tensors = call.operator.tensors()
    names = (one.name for one in tensors)
    arguments = {name: np.ascontiguousarray(one) for name, one in zip(names, call.arguments(*inputs), strict=False)}
    return call.result(torch.from_numpy(np.array(call.operator.reference(arguments)["C"].values)))


@pytest.mark.parametrize("name", FUSED)
def test_what_follows_a_product_is_its_epilogue(name: str) -> None:
    module, shapes, text = FUSED[name]
    inputs = tuple(drawn(*shape) for shape in shapes)
    call = dt.traced(module, *inputs)
    assert isinstance(call.operator, Gemm)
    assert call.operator.describe().startswith(text)
    want = module(*inputs)
    torch.testing.assert_close(computed(call, inputs), want.double(), rtol=2e-4, atol=2e-4)


def test_a_gated_layer_reads_its_own_weights() -> None:
    module, x = Gated(), drawn(*X)
    call = dt.traced(module, x)
    assert [tuple(one.shape) for one in call.arguments(x)] == [(10, 24), (40, 24), (40, 24), (40,)]
    assert call.arguments(x)[1].data_ptr() == module.gate.weight.data_ptr()
    with torch.no_grad():
        module.up.bias += 3  # arguments are views: later values count
        want = module(x)
    torch.testing.assert_close(computed(call, (x,)), want.double(), rtol=2e-4, atol=2e-4)


def test_results_of_16_bits_and_products_in_another_format() -> None:
    inputs = [drawn(*shape, dtype=torch.bfloat16) for shape in (X, W, B)]
    call = dt.traced(lambda x, w, b: F.silu(F.linear(x, w, b)), *inputs)
    assert call.operator.describe() == "gemm bf16 nt 10x40x24 silu bias"
    wide = dt.traced(lambda x, w, b: F.silu(F.linear(x, w, b).float()), *inputs)
    assert wide.operator.c == "f32" and wide.dtype is torch.float32


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x, w: F.linear(F.layer_norm(x, (24,)), w).relu(), [X, W]),  # a product of something computed
        (lambda x, w: F.linear(x, w).relu().sum(-1), [X, W]),
        (lambda x, w: F.linear(x, w).relu().mT, [X, W]),
        (lambda x, w, v: F.linear(x, w) * F.linear(x * 2, v), [X, W, V]),
        (lambda x, z, w, v: F.linear(x, w) * F.linear(z, v), [X, X, W, V]),
        (lambda x, w, r: F.linear(x, w) + r, [X, W, (1, 5, 40)]),  # rows that repeat
        (lambda x, w, r: F.linear(x, w).cumsum(-1) + r, [X, W, R]),
        (lambda x, w, b: F.linear(x, w) + b.exp(), [X, W, B]),  # an operand that is computed
        (lambda x, w, v: torch.addmm(x @ v.T, x, w.T), [(7, 24), W, V]),  # what is added is a product
        (lambda x, w: F.linear(x, w) + torch.arange(40.0), [X, W]),
        (lambda x, w, b: F.linear(x, w) + b.expand(7, 40), [(7, 24), W, B]),  # rows at one address
    ],
)
def test_anything_else_is_an_expression(function: Callable[..., Any], shapes: list[tuple[int, ...]]) -> None:
    inputs = [drawn(*shape) for shape in shapes]
    call = dt.traced(function, *inputs)
    assert not isinstance(call.operator, Gemm)
    assert len(call.arguments(*inputs)) == len(call.operator.tensors()) - 1


def halves_of_integers(x: Any, w: Any) -> Any:
    both = F.linear(x, w).int()
    return F.silu(both[..., :40].float()) * both[..., 40:].float()


def used_twice_each_time(x: Any, w: Any) -> Any:
    out = F.linear(x, w)
    for _ in range(40):
        out = out * out.sigmoid()
    return out


@pytest.mark.parametrize(("function", "why"), [(halves_of_integers, "cast"), (used_twice_each_time, "too many")])
def test_what_is_rounded_between_or_never_ends_is_no_epilogue(function: Callable[..., Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        dt.traced(function, drawn(*X), drawn(*JOINED))


def test_a_layer_is_tuned_loaded_and_called(tmp_path: Path) -> None:
    module, x = Gated(), drawn(64, 24)
    call = dt.traced(module, x)
    study = dg.tune(call.operator, target="cpu", trials=1, baselines=False, out=tmp_path, keep_top=1)
    out = call.result(study.best().load()(*call.arguments(x)))
    torch.testing.assert_close(out, module(x).detach(), rtol=1e-4, atol=1e-4)
