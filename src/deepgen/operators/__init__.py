"""What to compute. Pure: an operator knows nothing of hardware and does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepgen.operators.base import Answer, Array, Operator, Tolerance, Work, least_work
from deepgen.operators.gemm import Gemm, gemm
from deepgen.operators.signature import Param, Signature, Tensor, TensorFacts
from deepgen.operators.words import Word
from deepgen.vocabulary.errors import BadInput

OPERATORS: dict[str, type[Operator]] = {"gemm": Gemm}


def from_json(data: Mapping[str, Any]) -> Operator:
    """The operator that `to_json` described."""
    name = data.get("name")
    if name not in OPERATORS:
        raise BadInput(f"unknown operator {name!r}", allowed="one of " + ", ".join(OPERATORS))
    return OPERATORS[name].from_json(data)


__all__ = [
    "OPERATORS",
    "Answer",
    "Array",
    "Gemm",
    "Operator",
    "Param",
    "Signature",
    "Tensor",
    "TensorFacts",
    "Tolerance",
    "Word",
    "Work",
    "from_json",
    "gemm",
    "least_work",
]
