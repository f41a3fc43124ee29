"""Families of convolution kernels, and their epilogues."""

from __future__ import annotations

from collections.abc import Iterable

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
