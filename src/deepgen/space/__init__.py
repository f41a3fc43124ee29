"""Constrained spaces: declared as expressions, counted exactly, sampled uniformly, explained. No I/O."""

from deepgen.space.definition import Knob
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
from deepgen.space.reasons import Broken, Removal
from deepgen.space.space import Space

__all__ = [
    "Broken",
    "Config",
    "Expr",
    "Knob",
    "Removal",
    "Requirement",
    "Space",
    "Value",
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
