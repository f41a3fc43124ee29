"""Bounds of an expression: its kind, and the interval of its value. Works on numbers and on arrays."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from deepgen.space.expr import Expr
from deepgen.space.rows import join_kinds, kind_of_value

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
    """The kind (bool, int, float, object) and the bounds of a node, from those of its operands."""
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
    """The minimum and maximum of several operands, for numbers or arrays, and sums and products of two."""

    def __init__(
        self,
        least: Callable[..., Any],
        most: Callable[..., Any],
        any_zero: Callable[..., bool],
        plus: Callable[[Any, Any], Any],
        times: Callable[[Any, Any], Any],
    ) -> None:
        self.least, self.most, self.any_zero = least, most, any_zero
        self.plus, self.times = plus, times


def _fold(pair: Callable[[Any, Any], Any], scalar: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def fold(first: Any, *rest: Any) -> Any:
        for other in rest:
            # numpy would convert Python integers to 64 bits, which later products could overflow.
            plain = not isinstance(first, np.ndarray) and not isinstance(other, np.ndarray)
            first = scalar(first, other) if plain else pair(first, other)
        return first

    return fold


def _limited(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The operation on 64-bit arrays, with results clipped to their range.

    The values that an interval stands for fit into this range. Its ends may not, because knobs that a requirement
    connects are treated separately.
    """

    def limited(a: Any, b: Any) -> Any:
        if object in (getattr(a, "dtype", None), getattr(b, "dtype", None)):
            return operation(a, b)
        if not isinstance(a, np.ndarray) and not isinstance(b, np.ndarray):
            return _kept(operation(a, b))
        a, b = _kept(a), _kept(b)
        if operation(_largest(a), _largest(b)) < _LARGEST:
            return operation(a, b)
        exact = operation(np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64))
        with np.errstate(over="ignore"):
            small = operation(a, b)
        return np.where(np.abs(exact) < _LARGEST, small, np.where(exact > 0, _LARGEST, -_LARGEST))

    return limited


def _kept(a: Any) -> Any:
    return a if isinstance(a, np.ndarray) else min(max(a, -_LARGEST), _LARGEST)


def _largest(a: Any) -> float:
    """An upper bound on the absolute values."""
    if not isinstance(a, np.ndarray):
        return float(abs(a))
    return max(float(a.max()), -float(a.min())) if a.size else 0.0


_LARGEST = 1 << 62
SCALAR = Arithmetic(
    lambda *a: min(a), lambda *a: max(a), lambda lo, hi: bool(lo <= 0 <= hi), operator.add, operator.mul
)
ARRAYS = Arithmetic(
    _fold(np.minimum, min),
    _fold(np.maximum, max),
    lambda lo, hi: bool(np.any((lo <= 0) & (hi >= 0))),
    _limited(operator.add),
    _limited(operator.mul),
)


ARITHMETIC = ("+", "-", "*", "/", "//", "%", "**", "ceil_div", "neg", "abs", "min", "max")


def combine(op: str, bounds: list[Bounds], on: Arithmetic) -> Bounds | None:
    """The interval of an operation, from those of its operands; None if nothing useful is known."""
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
        return on.plus(a, c), on.plus(b, d)
    if op == "-":
        return on.plus(a, -d), on.plus(b, -c)
    if op == "*":
        if np.all(a >= 0) and np.all(c >= 0):
            return on.times(a, c), on.times(b, d)
        corners = (on.times(a, c), on.times(a, d), on.times(b, c), on.times(b, d))
        return on.least(*corners), on.most(*corners)
    if op in ("/", "//", "ceil_div"):
        if on.any_zero(c, d):
            return _over_unknown(op, a, b, c, on)
        corners = tuple(_divide(op, x, y) for x in (a, b) for y in (c, d))
        return on.least(*corners), on.most(*corners)
    if op == "%":  # the remainder has the sign of the divisor and a smaller absolute value
        return on.least(c, c * 0), on.most(d, d * 0)
    if op == "**" and on is SCALAR:
        return _power(a, b, c, d)
    return None


def _over_unknown(op: str, a: Any, b: Any, c: Any, on: Arithmetic) -> Bounds | None:
    """An integer quotient is no larger than the dividend, for any divisor (division by zero is undefined anyway)."""
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
