"""Constrained spaces: declared as expressions, counted exactly, sampled uniformly, explained. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepgen.space.expr import (
    Config,
    Expr,
    Requirement,
    Value,
    all_of,
    any_of,
    ceil_div,
    divides,
    implies,
    maximum,
    minimum,
    product,
    table,
    where,
)
from deepgen.space.parse import parse, parse_values
from deepgen.vocabulary.registry import lazy

if TYPE_CHECKING:
    from deepgen.space.definition import Knob
    from deepgen.space.engine import Size
    from deepgen.space.reasons import Removal, Violation
    from deepgen.space.space import Space

# Imported on first use: expressions alone, as in signatures, need no numpy.
__getattr__, __dir__ = lazy(
    __name__, {".definition": "Knob", ".engine": "Size", ".reasons": "Removal Violation", ".space": "Space"}
)

__all__ = [
    "Config",
    "Expr",
    "Knob",
    "Removal",
    "Requirement",
    "Size",
    "Space",
    "Value",
    "Violation",
    "all_of",
    "any_of",
    "ceil_div",
    "divides",
    "implies",
    "maximum",
    "minimum",
    "parse",
    "parse_values",
    "product",
    "table",
    "where",
]
