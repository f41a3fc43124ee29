"""Expressions of launch plans as C: whole numbers in 64 bits, with Python's division."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from deepgen.space import parse
from deepgen.space.expr import Expr
from deepgen.vocabulary import DeepgenError

_INFIX = {"+": "+", "-": "-", "*": "*", "==": "==", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_CALLS = {"//": "floor_div", "%": "modulo", "ceil_div": "ceil_div", "min": "least", "max": "greatest"}


class NotInC(DeepgenError):
    """A kernel that an exported library cannot hold."""


def in_c(value: int | float | str, names: Mapping[str, str]) -> str:
    """A number of a launch plan, or an expression over the scalars, of which `names` tells how C spells each."""
    if isinstance(value, str):
        return _text(parse(value), names)
    return _constant(value)


def _text(expr: Expr, names: Mapping[str, str]) -> str:
    op, args = expr.op, expr.args
    if op == "const":
        return _constant(expr.data)
    if op == "knob":
        if expr.data not in names:
            raise NotInC(f"it names {expr.data!r}, which no argument gives")
        return names[expr.data]
    inner = [_text(arg, names) for arg in args]
    if op == "named":
        return inner[0]
    if op in _INFIX:
        return f"({inner[0]} {_INFIX[op]} {inner[1]})"
    if op in _CALLS:
        return reduce(lambda one, other: f"{_CALLS[op]}({one}, {other})", inner)
    if op == "divides":
        return f"(modulo({inner[1]}, {inner[0]}) == 0)"
    if op in ("and", "or"):
        return "(" + (" && " if op == "and" else " || ").join(inner) + ")"
    if op == "not":
        return f"(!{inner[0]})"
    if op == "neg":
        return f"(-{inner[0]})"
    if op == "implies":
        return f"(!{inner[0]} || {inner[1]})"
    if op == "where":
        return f"({inner[0]} ? {inner[1]} : {inner[2]})"
    if op == "isin":
        return "(" + (" || ".join(f"{inner[0]} == {_constant(one)}" for one in expr.data) or "0") + ")"
    raise NotInC(f"its launch plan has '{expr}', whose {op} has no form in C")


def _constant(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, int):
        return f"INT64_C({value})" if value >= 0 else f"(-INT64_C({-value}))"
    if isinstance(value, float):
        return repr(value)
    raise NotInC(f"its launch plan has the constant {value!r}")
