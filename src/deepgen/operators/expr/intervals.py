"""Which integers an expression can be computed of without overflow: nothing says what becomes of one that overflows."""

from __future__ import annotations

from math import prod

from deepgen.operators.expr.facts import of_axes
from deepgen.operators.expr.nodes import (
    BOOL,
    Binary,
    Cast,
    Const,
    Expression,
    Place,
    Read,
    Select,
    Stage,
    Unary,
    Value,
    children,
)
from deepgen.vocabulary.dtypes import dtype
from deepgen.vocabulary.errors import BadInput

_NONE = (0, 0)  # of floats and conditions, which are not looked at


class _Overflow(Exception):
    """At a stage."""


def integer_ranges(expression: Expression) -> dict[str, tuple[int, int]]:
    """The least and greatest value of each integer tensor that cannot take all of its format. Raises BadInput."""
    whole = {t.name: dtype(t.dtype).whole for t in expression.tensors if dtype(t.dtype).integer}
    low, high = 0, max((abs(end) for ends in whole.values() for end in ends), default=0)
    if not whole or _fits(expression, _cut(whole, high)):
        return {}
    if not _fits(expression, _cut(whole, 1)):
        what = f"{expression.name}: its integers overflow, whatever the inputs are"
        raise BadInput(what, allowed="casts to a wider dtype before the arithmetic")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _fits(expression, _cut(whole, middle)) else (low, middle)
    return {name: ends for name, ends in _cut(whole, low).items() if ends != whole[name]}


def _cut(whole: dict[str, tuple[int, int]], most: int) -> dict[str, tuple[int, int]]:
    return {name: (max(low, -most), min(high, most)) for name, (low, high) in whole.items()}


def _fits(expression: Expression, given: dict[str, tuple[int, int]]) -> bool:
    known = dict(given)
    try:
        for stage in expression.stages:
            known[stage.name] = _stage(stage, known)
    except _Overflow:
        return False
    return True


def _stage(stage: Stage, known: dict[str, tuple[int, int]]) -> tuple[int, int]:
    low, high = _value(stage.value, stage, known)
    count = prod(axis.extent for axis in stage.reduced)
    if stage.scan is not None:
        count = next(axis.extent for axis in stage.axes if axis.name == stage.scan)
    if not dtype(stage.dtype).integer:
        return _NONE
    if stage.reduce == "sum":
        low, high = min(low, low * count), max(high, high * count)
    if stage.reduce == "prod":
        if count > 64 and max(abs(low), abs(high)) > 1:
            raise _Overflow
        most = max(1, abs(low), abs(high)) ** count
        low, high = (-most if low < 0 else 0), most
    return _within(stage.dtype, low, high)


def _within(name: str, low: int, high: int) -> tuple[int, int]:
    least, greatest = dtype(name).whole
    if low < least or high > greatest:
        raise _Overflow
    return low, high


def _value(value: Value, stage: Stage, known: dict[str, tuple[int, int]]) -> tuple[int, int]:
    below = [_value(child, stage, known) for child in children(value)]
    if value.dtype == BOOL or not dtype(value.dtype).integer:
        return _NONE
    if isinstance(value, Const):
        return int(value.value), int(value.value)
    if isinstance(value, Place):
        return of_axes((*stage.axes, *stage.reduced)).bounds(value.index)
    if isinstance(value, Read):
        return known[value.tensor]
    if isinstance(value, Select):
        return min(below[1][0], below[2][0]), max(below[1][1], below[2][1])
    if isinstance(value, Cast):
        return _within(value.dtype, *below[0])
    if isinstance(value, Unary):
        low, high = below[0]
        ends = (-high, -low) if value.op == "neg" else (0 if low <= 0 <= high else min(abs(low), abs(high)),
                                                       max(abs(low), abs(high)))  # fmt: skip
        return _within(value.dtype, *ends)
    assert isinstance(value, Binary)
    return _within(value.dtype, *_binary(value.op, *below))


def _binary(op: str, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    if op == "add":
        return a[0] + b[0], a[1] + b[1]
    if op == "sub":
        return a[0] - b[1], a[1] - b[0]
    if op == "max":
        return max(a[0], b[0]), max(a[1], b[1])
    if op == "min":
        return min(a[0], b[0]), min(a[1], b[1])
    if op == "mul":
        ends = [x * y for x in a for y in b]
        return min(ends), max(ends)
    most = max(abs(a[0]), abs(a[1]))
    return (a[0] // b[0], a[1] // b[0]) if b[0] == b[1] > 0 else (-most - 1, most)
