"""What baselines of products share: whom they serve, and the two factors as they are multiplied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepgen.operators import Gemm, Operator
from deepgen.vocabulary import BadInput


def is_plain(gemm: Gemm) -> bool:
    """Whether it is a product and nothing else."""
    extras = (gemm.alpha, gemm.beta, gemm.bias, gemm.activation, gemm.scales)
    return extras == (1.0, 0.0, False, "none", "none")


def product(operator: Operator, called: str) -> Gemm:
    """The operator as a product. Raises BadInput for what `called` does not compute."""
    if not isinstance(operator, Gemm):
        raise BadInput(f"{called} has no {operator.name} here")
    return operator


def factors(gemm: Gemm, tensors: Mapping[str, Any]) -> tuple[Any, Any]:
    """A and B as they are multiplied: views with the last two dimensions swapped where they are stored transposed."""
    a, b = tensors["A"], tensors["B"]
    return (
        a if gemm.layout[0] == "n" else a.swapaxes(-1, -2),
        b if gemm.layout[1] == "n" else b.swapaxes(-1, -2),
    )
