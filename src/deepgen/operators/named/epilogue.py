"""What is done with a result before it is written: a bias, an activation, something added to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import pi, sqrt

from deepgen.operators.expr.builder import tensor
from deepgen.operators.expr.elements import Element, Position
from deepgen.operators.expr.functions import erf, maximum, sigmoid, tanh
from deepgen.vocabulary.errors import BadInput

NONE = "none"


@dataclass(frozen=True)
class Result:
    """Where an epilogue finds an element: its indices, the shape of all, which dimension a bias runs along."""

    shape: tuple[int, ...]
    places: tuple[Position, ...]
    channel: int
    dtype: str


def _gelu(x: Element) -> Element:
    return x * 0.5 * (erf(x * sqrt(0.5)) + 1.0)


def _gelu_tanh(x: Element) -> Element:
    return x * 0.5 * (tanh((x + x * x * x * 0.044715) * sqrt(2.0 / pi)) + 1.0)


ACTIVATIONS: dict[str, Callable[[Element], Element]] = {
    "relu": lambda x: maximum(x, 0),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": lambda x: x * sigmoid(x),
    "tanh": tanh,
    "sigmoid": sigmoid,
}
_TENSORS = ("bias", "residual")
STEPS = (*_TENSORS, *ACTIVATIONS)


def applied(value: Element, text: str, result: Result) -> Element:
    """A value after the steps of an epilogue, in their order: `bias,relu`."""
    steps = [] if text == NONE else text.split(",")
    for place, step in enumerate(steps):
        if step not in STEPS:
            raise BadInput(f"epilogue={text}: unknown step {step!r}", allowed="one of " + ", ".join(STEPS))
        if step in steps[:place] and step in _TENSORS:
            raise BadInput(f"epilogue={text}: {step} is given twice", allowed="once")
        if step == "bias":
            bias = tensor("bias", (result.shape[result.channel],), result.dtype)
            value = value + bias[result.places[result.channel]].cast(value.dtype)
        elif step == "residual":
            value = value + tensor("residual", result.shape, result.dtype)[result.places].cast(value.dtype)
        else:
            value = ACTIVATIONS[step](value)
    return value
