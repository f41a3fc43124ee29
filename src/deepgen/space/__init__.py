"""Constrained spaces: declared as expressions, counted exactly, sampled uniformly, explained. No I/O."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from deepgen.space.definition import Knob
    from deepgen.space.engine import Size
    from deepgen.space.reasons import Broken, Removal
    from deepgen.space.space import Space

# Imported when first used: expressions alone, of which signatures are made, need no numpy.
_WHERE = {"Knob": "definition", "Broken": "reasons", "Removal": "reasons", "Size": "engine", "Space": "space"}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'deepgen.space' has no attribute {name!r}")
    return getattr(import_module(f"deepgen.space.{_WHERE[name]}"), name)


__all__ = [
    "Broken",
    "Config",
    "Expr",
    "Knob",
    "Removal",
    "Requirement",
    "Size",
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
