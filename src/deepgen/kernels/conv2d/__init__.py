"""Families of convolution kernels: the convolutions that several of them support, and their epilogues."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from deepgen.operators import Conv2d, Operator
from deepgen.operators.named.convolutions import DilatedConv2d
from deepgen.operators.words import NONE
from deepgen.vocabulary import Source

# The steps of an epilogue in C, applied to x.
_STEPS = {
    "bias": "x + bias",
    "residual": "x + residual",
    "relu": "x < 0.0f ? 0.0f : x",
    "gelu": "x * 0.5f * (DG_ERF(x * 0.70710678118654752f) + 1.0f)",
    "gelu_tanh": "x * 0.5f * (DG_TANH((x + x * x * x * 0.044715f) * 0.79788456080286536f) + 1.0f)",
    "silu": "x / (1.0f + DG_EXP(-x))",
    "tanh": "DG_TANH(x)",
    "sigmoid": "1.0f / (1.0f + DG_EXP(-x))",
}
_EPILOGUE = """// What becomes of a sum.
#pragma once
#if defined(DG_EMULATE)
#define DG_ERF std::erf
#define DG_TANH std::tanh
#define DG_EXP std::exp
#else
#define DG_ERF erff
#define DG_TANH tanhf
#define DG_EXP expf
#endif

DG_DEVICE f32 finished(f32 x, f32 bias, f32 residual) {
%s    return x;
}
"""


def unknown_step(steps: Iterable[str]) -> str | None:
    """The first step that `epilogue_header` does not have, as a message."""
    return next((f"it has no step {step} in an epilogue" for step in steps if step not in _STEPS), None)


def epilogue_header(name: str, steps: Iterable[str]) -> Source:
    """The function `finished`: a sum after the steps of an epilogue, with the numbers that are added to it."""
    return Source(name, _EPILOGUE % "".join(f"    x = {_STEPS[step]};\n" for step in steps))


@dataclass(frozen=True)
class PlainConv:
    """A convolution in two dimensions, of one group, whose weights are not packed."""

    n: int
    h: int
    w: int
    ci: int
    co: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int]
    dilations: tuple[int, int]
    layout: str
    dtype: str
    epilogue: tuple[str, ...]

    @property
    def reaches(self) -> tuple[int, int]:
        """The distance from the first tap to the last."""
        (rows, columns), (down, across) = self.kernel, self.dilations
        return (rows - 1) * down, (columns - 1) * across

    @property
    def out(self) -> tuple[int, int]:
        """Rows and columns of the result."""
        each = zip((self.h, self.w), self.reaches, self.strides, self.pads, strict=True)
        height, width = ((size + 2 * pad - reach - 1) // stride + 1 for size, reach, stride, pad in each)
        return height, width


def plain_conv(operator: Operator) -> PlainConv | str:
    """The numbers of `conv2d`, or of `dilated_conv2d` with its epilogues; for others the reason why there are none."""
    if not isinstance(operator, (Conv2d, DilatedConv2d)):
        return "it supports conv2d and dilated_conv2d only"
    words = operator.parameters()
    if words["weight_layout"] != NONE or words.get("groups", 1) != 1:
        return "it supports weights that are not packed, of one group"
    values = (words.get(name, 1) for name in ("k", "stride", "pad", "dilation"))
    kernel, strides, pads, dilations = (value if isinstance(value, tuple) else (value, value) for value in values)
    text = words.get("epilogue", NONE)
    n, h, w, ci, co = (words[name] for name in ("N", "H", "W", "CI", "CO"))
    steps = () if text == NONE else tuple(text.split(","))
    return PlainConv(n, h, w, ci, co, kernel, strides, pads, dilations, words["layout"], words["dtype"], steps)
