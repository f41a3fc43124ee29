"""The building blocks of expressions: indexable tensors, indices, and elements with Python's operators.

Elements of one operation have one dtype; a plain number takes that of the other operand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from numbers import Integral, Real
from typing import Any, NoReturn

from deepgen.operators.expr import check
from deepgen.operators.expr.index import Index, index, iterator, shown
from deepgen.operators.expr.nodes import (
    BOOL,
    Axis,
    Binary,
    Cast,
    Compare,
    Const,
    Logic,
    Place,
    Read,
    Stage,
    TensorSpec,
    Unary,
    Value,
)
from deepgen.vocabulary.dtypes import our_name
from deepgen.vocabulary.errors import BadInput


class Operand:
    """An input tensor, or the result of a stage: `A[i, k]` is one of its elements."""

    def __init__(
        self, definition: TensorSpec | Stage, before: Mapping[str, Operand], lifted: Sequence[Stage] = ()
    ) -> None:
        self.definition, self.before, self.lifted = definition, before, tuple(lifted)
        self.stored: Operand | None = None  # the tensor that this stage unpacks, if it does

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.definition.shape

    @property
    def dtype(self) -> str:
        return self.definition.dtype

    def __getitem__(self, indices: Any) -> Element:
        places = indices if isinstance(indices, tuple) else (indices,)
        check.check_rank(self.name, self.shape, len(places), self.name)
        return Element(Read(self.name, tuple(map(_index, places)), self.dtype), {self.name: self})

    def __iter__(self) -> NoReturn:
        raise BadInput(f"{self.name} cannot be iterated over", allowed="index it in dg.compute")

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


class Position:
    """An index in an expression: an axis, or sums of axes times integers, with // and % by integers."""

    __array_ufunc__ = None  # so that numpy scalars leave the operation to this class
    __hash__ = None  # type: ignore[assignment]  # == makes a condition

    def __init__(self, index: Index) -> None:
        self.index = index

    def __add__(self, other: Position | int) -> Position:
        return Position(self.index + _index(other))

    def __sub__(self, other: Position | int) -> Position:
        return Position(self.index - _index(other))

    def __rsub__(self, other: Position | int) -> Position:
        return Position(_index(other) - self.index)

    def __mul__(self, other: int) -> Position:
        return Position(self.index * whole(other))

    def __neg__(self) -> Position:
        return Position(-self.index)

    def __floordiv__(self, other: int) -> Position:
        return Position(self.index // whole(other))

    def __mod__(self, other: int) -> Position:
        return Position(self.index % whole(other))

    __radd__, __rmul__ = __add__, __mul__

    def __lt__(self, other: Position | int) -> Element:
        return _below(self.index - _index(other))

    def __le__(self, other: Position | int) -> Element:
        return _below(self.index - _index(other) - 1)

    def __gt__(self, other: Position | int) -> Element:
        return _below(_index(other) - self.index)

    def __ge__(self, other: Position | int) -> Element:
        return _below(_index(other) - self.index - 1)

    def __eq__(self, other: Any) -> Element:  # type: ignore[override]
        return _equal("eq", self.index - _index(other))

    def __ne__(self, other: Any) -> Element:  # type: ignore[override]
        return _equal("ne", self.index - _index(other))

    def cast(self, dtype: str) -> Element:
        """The index as a number."""
        return Element(Place(self.index), {}).cast(dtype)

    def __bool__(self) -> bool:
        raise _undecided(repr(self))

    def __repr__(self) -> str:
        return shown(self.index)


class ReduceAxis(Position):
    """An axis over which a reduction runs."""

    def __init__(self, axis: Axis) -> None:
        super().__init__(iterator(axis.name))
        self.axis = axis


class Element:
    """One number of a computation, or a condition."""

    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: Value, sources: Mapping[str, Operand], size: int = 1) -> None:
        if size > check.MOST_NODES:
            raise check.too_long("dg.compute")
        self.value, self.sources, self.size = value, sources, size

    @property
    def dtype(self) -> str:
        return self.value.dtype

    def cast(self, dtype: str) -> Element:
        to = our_name(dtype)
        check.check_cast(self.dtype, to, "cast")
        return self if to == self.dtype else combined(Cast(self.value, to), self)

    def __add__(self, other: Any) -> Element:
        return binary("add", self, other)

    def __radd__(self, other: Any) -> Element:
        return binary("add", other, self)

    def __sub__(self, other: Any) -> Element:
        return binary("sub", self, other)

    def __rsub__(self, other: Any) -> Element:
        return binary("sub", other, self)

    def __mul__(self, other: Any) -> Element:
        return binary("mul", self, other)

    def __rmul__(self, other: Any) -> Element:
        return binary("mul", other, self)

    def __truediv__(self, other: Any) -> Element:
        return binary("div", self, other, whole=False)

    def __rtruediv__(self, other: Any) -> Element:
        return binary("div", other, self, whole=False)

    def __floordiv__(self, other: Any) -> Element:
        return binary("div", self, other, whole=True)

    def __rfloordiv__(self, other: Any) -> Element:
        return binary("div", other, self, whole=True)

    def __pow__(self, other: Any) -> Element:
        if type(other) is int and other in (2, 3):  # pow is slow, and not available for integers or on all targets
            return self * self if other == 2 else self * self * self
        return binary("pow", self, other)

    def __rpow__(self, other: Any) -> Element:
        return binary("pow", other, self)

    def __neg__(self) -> Element:
        return unary("neg", self)

    def __abs__(self) -> Element:
        return unary("abs", self)

    def __lt__(self, other: Any) -> Element:
        return _compare("lt", self, other)

    def __le__(self, other: Any) -> Element:
        return _compare("le", self, other)

    def __gt__(self, other: Any) -> Element:
        return _compare("lt", other, self)

    def __ge__(self, other: Any) -> Element:
        return _compare("le", other, self)

    def __eq__(self, other: Any) -> Element:  # type: ignore[override]
        return _compare("eq", self, other)

    def __ne__(self, other: Any) -> Element:  # type: ignore[override]
        return _compare("ne", self, other)

    def __and__(self, other: Any) -> Element:
        return _logic("and", self, other)

    def __or__(self, other: Any) -> Element:
        return _logic("or", self, other)

    def __bool__(self) -> bool:
        raise _undecided("an element")

    def __iter__(self) -> NoReturn:
        raise BadInput("an element cannot be iterated over", allowed="it is one number")


def combined(value: Any, *of: Element) -> Element:
    sources: dict[str, Operand] = {}
    size = 1
    for element in of:
        size += element.size
        for name, operand in element.sources.items():
            if sources.setdefault(name, operand) is not operand:
                raise BadInput(f"two tensors or stages are named {name}", allowed="give each its own name")
    return Element(value, sources, size)


def unary(op: str, value: Any) -> Element:
    if not isinstance(value, Element):
        raise BadInput(f"dg.{op} of {value!r}", allowed="an element; use Python's math for numbers")
    check.check_unary(op, value.dtype, f"dg.{op}")
    return combined(Unary(op, value.value), value)


def binary(op: str, left: Any, right: Any, whole: bool | None = None) -> Element:
    first, second = pair(left, right, op)
    check.check_binary(op, first.dtype, second.dtype, op)
    if whole is not None and check.check_format(first.dtype, op).integer != whole:
        raise BadInput(f"{'//' if whole else '/'} of {first.dtype}", allowed="// of integers, / of floats")
    return combined(Binary(op, first.value, second.value), first, second)


def _compare(op: str, left: Any, right: Any) -> Element:
    first, second = pair(left, right, op)
    check.check_same(first.dtype, second.dtype, op, "a comparison")
    return combined(Compare(op, first.value, second.value), first, second)


def _logic(op: str, left: Any, right: Any) -> Element:
    if not (isinstance(left, Element) and isinstance(right, Element) and left.dtype == right.dtype == BOOL):
        raise BadInput(
            f"{op} of something that is not a condition", allowed="comparisons, each in parentheses: (i >= 1) & (i < 9)"
        )
    return combined(Logic(op, left.value, right.value), left, right)


def pair(left: Any, right: Any, what: str) -> tuple[Element, Element]:
    """Both operands as elements of one dtype: a plain number takes that of the other."""
    for one in (left, right):
        if isinstance(one, Position):
            raise BadInput(
                f"{what}: the index {one} is used as a number", allowed="a cast of it, such as i.cast('f32')"
            )
    if isinstance(left, Element):
        right = right if isinstance(right, Element) else number(right, left.dtype, what)
    elif isinstance(right, Element):
        left = number(left, right.dtype, what)
    else:
        raise BadInput(f"{what} of {left!r} and {right!r}", allowed="at least one element, whose dtype the other takes")
    check.check_same(left.dtype, right.dtype, what, "elements")
    return left, right


def number(value: Any, dtype: str, what: str = "a number") -> Element:
    """A plain number as an element."""
    if isinstance(value, bool) or not isinstance(value, Real) or isnan(value):
        raise BadInput(f"{what} with {value!r}", allowed="an element or a number")
    if dtype == BOOL or (check.check_format(dtype, what).integer and not isinstance(value, Integral)):
        raise BadInput(f"{what}: {value!r} with an element of {dtype}", allowed="combine integers with integers")
    integer = check.check_format(dtype, what).integer
    plain = int(value) if integer and isinstance(value, Integral) else float(value) + 0.0  # -0.0 is stored as 0.0
    check.check_constant(plain, dtype, what)
    return Element(Const(plain, dtype), {})


def _below(difference: Index) -> Element:
    """difference < 0, in its canonical form."""
    bare, limit = Index(difference.terms), -difference.constant
    if not bare.terms or bare.terms[0][1] > 0:
        return Element(Compare("lt", Place(bare), Const(limit, "i64")), {}, 3)
    return Element(Compare("le", Const(1 - limit, "i64"), Place(-bare)), {}, 3)


def _equal(op: str, difference: Index) -> Element:
    bare, value = Index(difference.terms), -difference.constant
    if bare.terms and bare.terms[0][1] < 0:
        bare, value = -bare, -value
    return Element(Compare(op, Place(bare), Const(value, "i64")), {}, 3)


def _index(value: Any) -> Index:
    if isinstance(value, Position):
        return value.index
    if isinstance(value, Element):
        raise BadInput(
            "an element is used as an index", allowed="only axes and integers: indices cannot depend on data"
        )
    return index(value)


def whole(value: Any) -> Any:
    return value.__index__() if hasattr(value, "__index__") and not isinstance(value, bool) else value


def _undecided(what: str) -> BadInput:
    return BadInput(
        f"{what} cannot be used as a Python condition",
        allowed="use dg.where to choose, and & and | to combine conditions",
    )
