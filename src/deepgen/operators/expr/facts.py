"""Static facts about indices and integers.

For indices: the values of iterators, and conditions that hold where an element is read. For integers: which values an
expression can take without overflow, because the result of an overflow is undefined.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf, prod

from deepgen.operators.expr.index import Index, Iter, Quotient, Remainder
from deepgen.operators.expr.nodes import (
    BOOL,
    Axis,
    Binary,
    Cast,
    Compare,
    Const,
    Expression,
    Logic,
    Place,
    Read,
    Select,
    Stage,
    Unary,
    Value,
    children,
    with_children,
)
from deepgen.vocabulary.dtypes import dtype
from deepgen.vocabulary.errors import BadInput

# The greatest value of `left - right` for which a comparison holds.
_GREATEST = {"lt": -1, "le": 0}


@dataclass(frozen=True)
class Facts:
    """`ranges`: the least and greatest value of each iterator. `conditions`: the same for other indices, as far as
    known."""

    ranges: Mapping[str, tuple[int, int]]
    conditions: tuple[tuple[Index, float, float], ...] = ()
    never: bool = False  # whether the conditions contradict each other

    def bounds(self, of: Index) -> tuple[int, int]:
        """The least and greatest value that an index can have. Conservative: never narrower than the actual range,
        sometimes wider."""
        low: float = of.constant
        high = low
        for atom, times in of.terms:
            ends = [times * end for end in self._atom(atom)]
            low, high = low + min(ends), high + max(ends)
        for index, least, greatest in self.conditions:
            for sign in (1, -1):
                rest = of - index * sign
                if len(rest.terms) + len(index.terms) == len(of.terms):
                    around = Facts(self.ranges).bounds(rest)
                    ends_known = sorted((sign * least, sign * greatest))
                    low, high = max(low, around[0] + ends_known[0]), min(high, around[1] + ends_known[1])
        return int(low), int(high)

    def assuming(self, condition: Value, *, holds: bool = True) -> Facts:
        """The facts where a condition holds, or where it does not."""
        if isinstance(condition, Logic) and (condition.op == "and") == holds:
            return self.assuming(condition.left, holds=holds).assuming(condition.right, holds=holds)
        limit = limits(condition, holds=holds)
        if limit is None:
            return self
        index, least, greatest = limit
        if len(index.terms) == 1 and isinstance(index.terms[0][0], Iter) and index.terms[0][1] == 1:
            name = index.terms[0][0].name
            low, high = int(max(self.ranges[name][0], least)), int(min(self.ranges[name][1], greatest))
            return replace(self, never=True) if low > high else replace(self, ranges={**self.ranges, name: (low, high)})
        return replace(self, conditions=(*self.conditions, (index, least, greatest)))

    def decided(self, condition: Value) -> bool | None:
        """Whether a condition always holds (True) or never does (False); None: it depends."""
        if isinstance(condition, Logic):
            left, right = self.decided(condition.left), self.decided(condition.right)
            if condition.op == "and":
                return False if left is False or right is False else (True if left and right else None)
            return True if left or right else (False if left is False and right is False else None)
        difference = _difference(condition)
        if difference is None:
            return None
        low, high = self.bounds(difference)
        assert isinstance(condition, Compare)
        if condition.op in _GREATEST:
            limit = _GREATEST[condition.op]
            return True if high <= limit else (False if low > limit else None)
        equal = True if low == high == 0 else (False if low > 0 or high < 0 else None)
        return equal if condition.op == "eq" or equal is None else not equal

    def _atom(self, atom: Iter | Quotient | Remainder) -> tuple[int, int]:
        if isinstance(atom, Iter):
            return self.ranges[atom.name]
        low, high = self.bounds(atom.of)
        if isinstance(atom, Quotient):
            return low // atom.by, high // atom.by
        same = low // atom.by == high // atom.by
        return (low % atom.by, high % atom.by) if same else (0, atom.by - 1)


def of_axes(axes: Iterable[Axis]) -> Facts:
    return Facts({axis.name: (0, axis.extent - 1) for axis in axes})


def simplified(value: Value, facts: Facts) -> Value:
    """Removes selects that always make the same choice, such as those of a padding of 0."""
    if isinstance(value, Select):
        decided = facts.decided(value.condition)
        if decided is not None:
            return simplified(value.then if decided else value.otherwise, facts)
        condition = _without_decided(value.condition, facts)
        return Select(
            condition,
            simplified(value.then, facts.assuming(condition)),
            simplified(value.otherwise, facts.assuming(condition, holds=False)),
        )
    return with_children(value, [simplified(child, facts) for child in children(value)])


def _without_decided(condition: Value, facts: Facts) -> Value:
    """The undecided parts of an undecided condition."""
    if not isinstance(condition, Logic):
        return simplified(condition, facts)
    left, right = facts.decided(condition.left), facts.decided(condition.right)
    if left is not None:
        return _without_decided(condition.right, facts)
    if right is not None:
        return _without_decided(condition.left, facts)
    return replace(
        condition, left=_without_decided(condition.left, facts), right=_without_decided(condition.right, facts)
    )


def _difference(condition: Value) -> Index | None:
    """left - right of a comparison of indices."""
    if not isinstance(condition, Compare):
        return None
    left, right = as_index(condition.left), as_index(condition.right)
    return None if left is None or right is None else left - right


def as_index(value: Value) -> Index | None:
    """An integer as an index, if it is the sum or difference of places and numbers."""
    if isinstance(value, Place):
        return value.index
    if isinstance(value, Binary) and value.op in ("add", "sub") and value.dtype == "i64":  # which no place overflows
        left, right = as_index(value.left), as_index(value.right)
        return None if left is None or right is None else left + right if value.op == "add" else left - right
    return Index((), value.value) if isinstance(value, Const) and isinstance(value.value, int) else None


def limits(condition: Value, *, holds: bool) -> tuple[Index, float, float] | None:
    """An index without its constant, and the bounds of its values where a comparison holds, or does not."""
    difference = _difference(condition)
    if difference is None or not difference.terms:
        return None
    assert isinstance(condition, Compare)
    if condition.op in _GREATEST:
        limit = _GREATEST[condition.op]
        least, greatest = (-inf, limit) if holds else (limit + 1, inf)
    elif (condition.op == "eq") == holds:
        least = greatest = 0
    else:
        return None
    bare = replace(difference, constant=0)
    least, greatest = least - difference.constant, greatest - difference.constant
    return (bare, least, greatest) if bare.terms[0][1] > 0 else (-bare, -greatest, -least)


_NONE = (0, 0)  # for floats and conditions, which are not checked


class _Overflow(Exception):
    """An overflow at a stage."""


def integer_ranges(expression: Expression) -> dict[str, tuple[int, int]]:
    """The least and greatest value of each integer tensor that cannot take all values of its format. Raises
    BadInput."""
    whole = {t.name: dtype(t.dtype).whole for t in expression.tensors if dtype(t.dtype).integer}
    low, high = 0, max((abs(end) for ends in whole.values() for end in ends), default=0)
    if not whole or _fits(expression, _cut(whole, high)):
        return {}
    if not _fits(expression, _cut(whole, 1)):
        what = f"{expression.name}: its integers overflow for any inputs"
        raise BadInput(what, allowed="cast to a wider dtype before the arithmetic")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _fits(expression, _cut(whole, middle)) else (low, middle)
    return {name: ends for name, ends in _cut(whole, low).items() if ends != whole[name]}


def _cut(whole: dict[str, tuple[int, int]], most: int) -> dict[str, tuple[int, int]]:
    return {name: (max(low, -most), min(high, most)) for name, (low, high) in whole.items()}


def _fits(expression: Expression, ranges: dict[str, tuple[int, int]]) -> bool:
    intervals = dict(ranges)
    try:
        for stage in expression.stages:
            intervals[stage.name] = _stage(stage, intervals)
    except _Overflow:
        return False
    return True


def _stage(stage: Stage, intervals: dict[str, tuple[int, int]]) -> tuple[int, int]:
    low, high = _value(stage.value, stage, intervals)
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


def _value(value: Value, stage: Stage, intervals: dict[str, tuple[int, int]]) -> tuple[int, int]:
    below = [_value(child, stage, intervals) for child in children(value)]
    if value.dtype == BOOL or not dtype(value.dtype).integer:
        return _NONE
    if isinstance(value, Const):
        return int(value.value), int(value.value)
    if isinstance(value, Place):
        return of_axes((*stage.axes, *stage.reduced)).bounds(value.index)
    if isinstance(value, Read):
        return intervals[value.tensor]
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
