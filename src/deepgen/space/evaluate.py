"""Evaluation for one config, with Python numbers of any size.

An absent knob makes the operations on it absent, and an absent requirement does not apply. Only a sum or a difference
continues without it: an absent operand counts as zero there, unless both are absent. A division by zero or a missing
table key makes the result undefined, and an undefined requirement is broken. `and`, `or`, `implies` and `where` ignore
an absent or undefined operand if the others decide.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from deepgen.space.expr import Expr, Value, key
from deepgen.vocabulary import BadInput


class _Hole:
    """Stands for a missing value."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


_LONGEST_NUMBER = 1 << 16
_SEQUENCES = (str, tuple)

ABSENT: Final = _Hole("absent")
UNDEFINED: Final = _Hole("undefined")


def _ceil_div(number: Any, divisor: Any) -> Any:
    return -(-number // divisor)


def _item(sequence: Any, place: Any) -> Any:
    if not 0 <= place < len(sequence):
        raise IndexError(place)
    return sequence[place]


def _times(one: Any, other: Any) -> Any:
    """A product of numbers: Python's would repeat a text or a tuple, and files may come from anywhere."""
    if type(one) is int and type(other) is int:  # nearly always, and this is called hundreds of thousands of times
        return one * other
    if isinstance(one, _SEQUENCES) or isinstance(other, _SEQUENCES):
        raise TypeError(f"{'texts' if str in (type(one), type(other)) else 'lists'} cannot be multiplied")
    return one * other


def _remainder(one: Any, other: Any) -> Any:
    """Python's remainder of a text would be a text of any length."""
    if isinstance(one, str):
        raise TypeError("a text has no remainder")
    return one % other


def power(base: Any, exponent: Any) -> Any:
    """A power; raises if the number would be too long to compute, because files may come from anywhere."""
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > _LONGEST_NUMBER:
        raise BadInput(f"{base} ** {exponent} is too large", allowed=f"numbers of up to {_LONGEST_NUMBER} bits")
    return base**exponent


STRICT: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": _times,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": _remainder,
    "**": power,
    "neg": operator.neg,
    "abs": operator.abs,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "min": min,
    "max": max,
    "ceil_div": _ceil_div,
    "divides": lambda divisor, number: _remainder(number, divisor) == 0,
    "item": _item,
    "position": lambda sequence, element: sequence.index(element),
}


SUMS = ("+", "-")


def evaluate(expr: Expr, values: Mapping[str, Value], optional: bool = True) -> Any:
    """The value, or ABSENT or UNDEFINED. A knob that is not in `values` is absent.

    `optional`: whether a sum may lack some of its terms.
    """
    op = expr.op
    if op in STRICT:
        operands = [
            a.data
            if a.op == "const"
            else values.get(a.data, ABSENT)
            if a.op == "knob"
            else evaluate(a, values, optional)
            for a in expr.args
        ]
        for operand in operands:  # holes are rare, and this runs hundreds of thousands of times
            if isinstance(operand, _Hole):
                break
        else:
            return _strict(expr, operands)
        if op in SUMS and optional and any(o is not ABSENT for o in operands):
            operands = [0 if o is ABSENT else o for o in operands]
        hole = _hole_among(operands)
        return _strict(expr, operands) if hole is None else hole
    if op == "const":
        return expr.data
    if op == "knob":
        return values.get(expr.data, ABSENT)
    if op == "named":
        return evaluate(expr.args[0], values, optional)
    if op == "present":
        return expr.data in values
    if op in ("and", "or", "implies"):
        return _decide(expr, values, optional)
    if op == "not":
        inner = evaluate(expr.args[0], values, optional)
        return inner if isinstance(inner, _Hole) else not inner
    if op == "where":
        condition = evaluate(expr.args[0], values, optional)
        if isinstance(condition, _Hole):
            return condition
        return evaluate(expr.args[1 if condition else 2], values, optional)
    if op == "isin":
        inner = evaluate(expr.args[0], values, optional)
        return inner if isinstance(inner, _Hole) else inner in expr.data
    if op == "table":
        return _look_up(expr, [evaluate(a, values, optional) for a in expr.args])
    if op == "points":
        names, rows = expr.data
        return tuple(values.get(n) for n in names) in rows
    raise BadInput(f"unknown operation {op!r} in an expression")


def evaluate_strictly(expr: Expr, values: Mapping[str, Value]) -> Value:
    """The value; raises with the reason if there is none."""
    result = evaluate(expr, values, optional=False)
    if result is ABSENT:
        missing = sorted(expr.knobs() - set(values))
        raise BadInput(f"'{expr}' needs a value for {', '.join(missing)}", allowed=f"given: {', '.join(values)}")
    if result is UNDEFINED:
        raise BadInput(f"'{expr}' divides by zero or looks up a missing key, for {dict(values)}")
    return result  # type: ignore[no-any-return]


def together(exprs: Sequence[Expr]) -> Callable[[Mapping[str, Value]], list[Any]]:
    """A function that computes `evaluate_strictly` for several expressions, with shared parts computed once."""
    places: dict[Any, int] = {}
    begun: list[Any] = []
    knobs: list[tuple[int, str]] = []
    steps: list[tuple[int, Callable[..., Any], int, int, list[int]]] = []  # of two operands, or of a list of them

    def place(expr: Expr) -> int:
        form = key(expr)
        if form not in places:
            operands = [place(arg) for arg in expr.args] if expr.op in STRICT else []
            at = places[form] = len(begun)
            begun.append(expr.data if expr.op == "const" else None)
            if expr.op == "knob":
                knobs.append((at, expr.data))
            elif expr.op in STRICT:
                two = len(operands) == 2
                steps.append((at, STRICT[expr.op], operands[0], operands[-1], [] if two else operands))
            elif expr.op != "const":
                simple.append(expr)
        return places[form]

    simple: list[Expr] = []  # operations that only `evaluate` supports
    results = [place(expr) for expr in exprs]

    def computed(values: Mapping[str, Value]) -> list[Any]:
        held = begun.copy()
        try:
            for at, name in knobs:
                held[at] = values[name]
            for at, function, one, other, several in steps:
                held[at] = function(*[held[n] for n in several]) if several else function(held[one], held[other])
        except (KeyError, ZeroDivisionError, IndexError, ValueError, TypeError):
            return [evaluate_strictly(expr, values) for expr in exprs]  # raises with the reason
        return [held[at] for at in results]

    return (lambda values: [evaluate_strictly(expr, values) for expr in exprs]) if simple else computed


def holds(expr: Expr, values: Mapping[str, Value]) -> bool:
    """Whether a requirement is met: yes if it is absent, no if it is undefined."""
    result = evaluate(expr, values)
    return result is not UNDEFINED and (result is ABSENT or bool(result))


def _hole_among(operands: list[Any]) -> _Hole | None:
    holes = [o for o in operands if isinstance(o, _Hole)]
    if not holes:
        return None
    return UNDEFINED if any(h is UNDEFINED for h in holes) else ABSENT


def _strict(expr: Expr, operands: list[Any]) -> Any:
    try:
        return STRICT[expr.op](*operands)
    except (ZeroDivisionError, IndexError, ValueError):
        return UNDEFINED
    except TypeError as error:
        shown = ", ".join(repr(o) for o in operands)
        raise BadInput(f"'{expr}' cannot be computed for {shown}: {error}") from error


def _decide(expr: Expr, values: Mapping[str, Value], optional: bool) -> Any:
    """Three-valued and/or/implies: a deciding operand takes precedence, then undefined, then absent."""
    deciding = expr.op != "and"
    operands: list[Any] = []
    for place, arg in enumerate(expr.args):
        result = evaluate(arg, values, optional)
        if not isinstance(result, _Hole):
            result = bool(result)
            if expr.op == "implies" and place == 0:
                result = not result
            if result is deciding:
                return deciding
        operands.append(result)
    hole = _hole_among(operands)
    return (not deciding) if hole is None else hole


def _look_up(expr: Expr, operands: list[Any]) -> Any:
    hole = _hole_among(operands)
    if hole is not None:
        return hole
    pairs, default, many = expr.data
    wanted = tuple(operands) if many else operands[0]
    for entry, value in pairs:
        if entry == wanted:
            return value
    return UNDEFINED if default is None else default
