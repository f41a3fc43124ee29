"""Registered torch operators, `torch.ops.deepgen.*`: for autograd, torch.compile and torch.export.

They have the semantics of torch's functions of the same names. The library in use at the time of the call decides what
runs; without one, torch does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

_SCHEMAS = {
    "linear": "(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor",
    "mm": "(Tensor a, Tensor b) -> Tensor",
    "int_mm": "(Tensor a, Tensor b) -> Tensor",
    "bmm": "(Tensor a, Tensor b) -> Tensor",
    "matmul": "(Tensor a, Tensor b) -> Tensor",
    "addmm": "(Tensor bias, Tensor a, Tensor b) -> Tensor",
    "scaled_mm": "(Tensor a, Tensor b, Tensor scale, bool fast_sums) -> Tensor",
    "two_scales_mm": "(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, bool fast_sums) -> Tensor",
}
# torch's original functions, even when they are replaced later.
TORCHS: Mapping[str, Callable[..., Any]] = {
    "linear": F.linear,
    "mm": torch.mm,
    "int_mm": torch._int_mm,
    "bmm": torch.bmm,
    "matmul": torch.matmul,
    "addmm": torch.addmm,
    "attention": F.scaled_dot_product_attention,
    "softmax": torch.softmax,
    "layer_norm": F.layer_norm,
    "rms_norm": torch.rms_norm,  # called by F.rms_norm through its current binding
    "scaled_mm": torch._scaled_mm,
    **({"grouped_mm": torch._grouped_mm} if hasattr(torch, "_grouped_mm") else {}),
    **{kind: getattr(torch, kind) for kind in ("add", "sub", "mul", "div", "neg", "cat")},
    "silu": F.silu,
    **{kind: getattr(torch, kind) for kind in (f"{one}{n}d" for one in ("conv", "conv_transpose") for n in (1, 2, 3))},
}
IN_USE: dict[str, Callable[..., Any]] = {}  # the functions of the library in use

_library = torch.library.Library("deepgen", "DEF")
OPS = torch.ops.deepgen


def serving(kind: str) -> Callable[..., Any]:
    """The function that currently serves such calls."""
    return IN_USE.get(kind) or TORCHS[kind]


def two_scales_mm(a: Any, b: Any, scale_a: Any, scale_b: Any, fast_sums: bool, **out: Any) -> Any:
    """torch's product of 8-bit floats, with result in bf16."""
    return TORCHS["scaled_mm"](a, b, scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=fast_sums, **out)


def scaled_mm(a: Any, b: Any, scale: Any, fast_sums: bool, **out: Any) -> Any:
    """Like `two_scales_mm`, with one scale for both matrices."""
    return two_scales_mm(a, b, scale, torch.ones_like(scale), fast_sums, **out)


_SCALED = {"scaled_mm": scaled_mm, "two_scales_mm": two_scales_mm}


def _define(kind: str) -> None:
    _library.define(kind + _SCHEMAS[kind], tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides))

    def run(*args: Any) -> Any:
        return serving(kind)(*args)

    _library.impl(kind, _SCALED.get(kind, run), "CompositeExplicitAutograd")
    torch.library.register_fake(f"deepgen::{kind}", _FAKES[kind], lib=_library)
    if kind in _BACKWARDS:
        torch.library.register_autograd(f"deepgen::{kind}", _BACKWARDS[kind], setup_context=_keep, lib=_library)


def _fake_product(a: Any, b: Any) -> Any:
    return a.new_empty((*a.shape[:-1], b.shape[-1]))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _linear_backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
    x, weight, bias = ctx.saved_tensors
    rows = grad.reshape(-1, grad.shape[-1])
    needed = ctx.needs_input_grad
    return (
        OPS.mm(rows, weight).view(x.shape) if needed[0] else None,
        OPS.mm(rows.t(), x.reshape(-1, x.shape[-1])) if needed[1] else None,
        rows.sum(0) if bias is not None and needed[2] else None,
    )


def _product_backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
    """For rows times a matrix, or batches of matrices."""
    a, b = ctx.saved_tensors
    needed = ctx.needs_input_grad
    if b.dim() == 2:
        rows, left = grad.reshape(-1, grad.shape[-1]), a.reshape(-1, a.shape[-1])
        return OPS.mm(rows, b.t()).view(a.shape) if needed[0] else None, OPS.mm(left.t(), rows) if needed[1] else None
    return OPS.matmul(grad, b.mT) if needed[0] else None, OPS.matmul(a.mT, grad) if needed[1] else None


def _addmm_backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
    bias, a, b = ctx.saved_tensors
    needed = ctx.needs_input_grad
    return (
        grad.sum_to_size(bias.shape) if needed[0] else None,
        OPS.mm(grad, b.t()) if needed[1] else None,
        OPS.mm(a.t(), grad) if needed[2] else None,
    )


_FAKES: Mapping[str, Callable[..., Any]] = {
    "linear": lambda x, weight, bias=None: x.new_empty((*x.shape[:-1], weight.shape[0])),
    "addmm": lambda bias, a, b: _fake_product(a, b),
    "int_mm": lambda a, b: a.new_empty((a.shape[0], b.shape[1]), dtype=torch.int32),
    **dict.fromkeys(("mm", "bmm", "matmul"), _fake_product),
    **dict.fromkeys(
        ("scaled_mm", "two_scales_mm"),
        lambda a, b, *scales_and_sums: a.new_empty((a.shape[0], b.shape[1]), dtype=torch.bfloat16),
    ),
}
_BACKWARDS = {
    "linear": _linear_backward,
    "addmm": _addmm_backward,
    **dict.fromkeys(("mm", "bmm", "matmul"), _product_backward),
}
for _kind in _SCHEMAS:
    _define(_kind)


@dataclass(frozen=True)
class CompiledRegion:
    """A part of a compiled graph that a kernel serves, and what torch runs for it: all of it, or its products alone."""

    route: Any
    alone: Callable[..., Any]
    products: Callable[..., Any]


REGIONS: list[CompiledRegion] = []  # compiled code knows them by their numbers
_MOST_REGIONS = 10_000
_numbers: dict[tuple[Any, str], int] = {}


def number_of(region: CompiledRegion, code: str) -> int | None:
    """The number by which compiled code calls a region. Regions of one route with the same code share it, however often
    they are compiled. None if there are too many.
    """
    if (region.route, code) not in _numbers:
        if len(REGIONS) >= _MOST_REGIONS:
            return None
        REGIONS.append(region)
        _numbers[region.route, code] = len(REGIONS) - 1
    return _numbers[region.route, code]


def _region(tensors: Any, number: int) -> Any:
    return REGIONS[number].alone(*tensors)


_library.define("region(Tensor[] tensors, int number) -> Tensor", tags=(torch.Tag.needs_exact_strides,))
_library.impl("region", _region, "CompositeExplicitAutograd")
torch.library.register_fake("deepgen::region", _region, lib=_library)
