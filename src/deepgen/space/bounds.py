"""What an expression can be: its kind, and the interval in which its value lies. Works on numbers and on arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from deepgen.space.expr import Expr
from deepgen.space.kinds import join_kinds, kind_of_value

if TYPE_CHECKING:
    from deepgen.space.nodes import Bounds, Nodes

_TRUTHS = (
    "==",
    "!=",
    "<",
    "<=",
    ">",
    ">=",
    "and",
    "or",
    "not",
    "implies",
    "isin",
    "present",
    "divides",
    "points",
    "defined",
)


def facts_of(nodes: Nodes, expr: Expr) -> tuple[str, Bounds | None]:
    """The kind (bool, int, float, object) and the bounds of a node whose operands' facts are known."""
    op = expr.op
    if op == "const":
        kind = kind_of_value(expr.data)
        return kind, None if kind == "object" else (expr.data, expr.data)
    if op == "knob":
        variable = nodes.variables[expr.data]
        if variable.kind == "object":
            return "object", None
        listed = variable.values.tolist()
        return variable.kind, (min(listed), max(listed))
    if op in _TRUTHS:
        return "bool", (False, True)
    if op == "table":
        entries = [v for _, v in expr.data[0]] + ([] if expr.data[1] is None else [expr.data[1]])
        kind = join_kinds([kind_of_value(v) for v in entries])
        return kind, None if kind == "object" else (min(entries), max(entries))
    if op == "position":
        return "int", (0, 1 << 20)
    if op == "item":
        return "object", None
    operands = expr.args[1:] if op == "where" else expr.args
    kinds = [nodes.kind(a) for a in operands]
    kind = _kind(op, kinds, nodes, expr)
    bounds = [nodes.bounds(a) for a in operands]
    if kind == "object" or any(b is None for b in bounds):
        return kind, None
    return kind, combine(op, [b for b in bounds if b is not None], SCALAR)


def _kind(op: str, kinds: list[str], nodes: Nodes, expr: Expr) -> str:
    joined = join_kinds(kinds)
    if op in ("where", "min", "max") or joined == "object":
        return joined
    if op == "/" or joined == "float":
        return "float"
    if op == "**":
        exponent = nodes.bounds(expr.args[1])
        return "int" if exponent is not None and exponent[0] >= 0 else "float"
    return "int"


class Arithmetic:
    """The smallest and largest of several operands, for numbers or for arrays."""

    def __init__(self, least: Callable[..., Any], most: Callable[..., Any], any_zero: Callable[..., bool]) -> None:
        self.least, self.most, self.any_zero = least, most, any_zero


def _fold(pair: Callable[[Any, Any], Any], scalar: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def fold(first: Any, *rest: Any) -> Any:
        for other in rest:
            # numpy would make 64-bit numbers of Python's, which later products overflow.
            plain = not isinstance(first, np.ndarray) and not isinstance(other, np.ndarray)
            first = scalar(first, other) if plain else pair(first, other)
        return first

    return fold


SCALAR = Arithmetic(lambda *a: min(a), lambda *a: max(a), lambda lo, hi: bool(lo <= 0 <= hi))
ARRAYS = Arithmetic(_fold(np.minimum, min), _fold(np.maximum, max), lambda lo, hi: bool(np.any((lo <= 0) & (hi >= 0))))


ARITHMETIC = ("+", "-", "*", "/", "//", "%", "**", "ceil_div", "neg", "abs", "min", "max")


def combine(op: str, bounds: list[Bounds], on: Arithmetic) -> Bounds | None:
    """The interval of an operation from those of its operands; None if nothing useful can be said."""
    if op == "where":
        return on.least(bounds[0][0], bounds[1][0]), on.most(bounds[0][1], bounds[1][1])
    if op == "min":
        return on.least(*(b[0] for b in bounds)), on.least(*(b[1] for b in bounds))
    if op == "max":
        return on.most(*(b[0] for b in bounds)), on.most(*(b[1] for b in bounds))
    if op == "neg":
        return -bounds[0][1], -bounds[0][0]
    if op == "abs":
        lo, hi = bounds[0]
        return on.most(lo, -hi, lo * 0), on.most(abs(lo), abs(hi))
    if len(bounds) > 2:  # a chain of sums or products
        head = combine(op, bounds[:2], on)
        return None if head is None else combine(op, [head, *bounds[2:]], on)
    (a, b), (c, d) = bounds
    if op == "+":
        return a + c, b + d
    if op == "-":
        return a - d, b - c
    if op == "*":
        corners = (a * c, a * d, b * c, b * d)
        return on.least(*corners), on.most(*corners)
    if op in ("/", "//", "ceil_div"):
        if on.any_zero(c, d):
            return _over_unknown(op, a, b, c, on)
        corners = tuple(_divide(op, x, y) for x in (a, b) for y in (c, d))
        return on.least(*corners), on.most(*corners)
    if op == "%":  # the rest has the sign of the divisor and is smaller than it
        return on.least(c, c * 0), on.most(d, d * 0)
    if op == "**" and on is SCALAR:
        return _power(a, b, c, d)
    return None


def _over_unknown(op: str, a: Any, b: Any, c: Any, on: Arithmetic) -> Bounds | None:
    """A whole quotient is no larger than the dividend, whatever the divisor is (by zero it is undefined anyway)."""
    if op == "/":
        return None
    size = on.most(abs(a), abs(b))
    return on.least(-size, size * 0), size


def _divide(op: str, x: Any, y: Any) -> Any:
    if op == "/":
        return x / y
    return x // y if op == "//" else -(-x // y)


def _power(a: Any, b: Any, c: Any, d: Any) -> Bounds | None:
    if a < 0 or c < 0 or max(abs(b), 1) > 1 << 64 or d > 1 << 10:
        return None
    return min(a**c, a**d), max(b**c, b**d)
