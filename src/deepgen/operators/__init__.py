"""What to compute. Pure: an operator knows nothing of hardware and does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepgen.operators.base import Array, Operator, Tensor, Tolerance
from deepgen.operators.gemm import Gemm, gemm
from deepgen.vocabulary.errors import BadInput

OPERATORS: dict[str, type[Gemm]] = {"gemm": Gemm}


def from_json(data: Mapping[str, Any]) -> Operator:
    """The operator that `to_json` described."""
    name = data.get("name")
    if name not in OPERATORS:
        raise BadInput(f"unknown operator {name!r}", allowed="one of " + ", ".join(OPERATORS))
    return OPERATORS[name].from_json(data)


__all__ = ["OPERATORS", "Array", "Gemm", "Operator", "Tensor", "Tolerance", "from_json", "gemm"]
