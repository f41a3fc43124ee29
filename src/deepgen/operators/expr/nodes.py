"""Tensor expressions as data: the definition of each element of each stage.

An expression reads tensors and computes stages in order; each stage gives one tensor, element by element, from tensors
and earlier stages. Some stages are outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from deepgen.operators.expr.index import Index

UNARY = ("neg", "abs", "exp", "log", "sqrt", "rsqrt", "tanh", "erf", "sigmoid", "sin", "cos", "floor")
BINARY = ("add", "sub", "mul", "div", "max", "min", "pow")
PLACED = ("first_least", "first_most")  # in rewritten expressions only: a place and a number as one integer
PLACE_OF = "place_of"  # the place in such an integer
COMPARE = ("lt", "le", "eq", "ne")
LOGIC = ("and", "or")
REDUCE = ("sum", "prod", "max", "min")
BOOL = "bool"  # the dtype of conditions; no tensor has it


@dataclass(frozen=True)
class Const:
    value: int | float
    dtype: str


@dataclass(frozen=True)
class Place:
    """An index as a number."""

    index: Index
    dtype: str = "i64"


@dataclass(frozen=True)
class Read:
    """An element of a tensor or of an earlier stage."""

    tensor: str
    indices: tuple[Index, ...]
    dtype: str


@dataclass(frozen=True)
class Cast:
    value: Value
    dtype: str


@dataclass(frozen=True)
class Unary:
    op: str
    value: Value

    @property
    def dtype(self) -> str:
        return self.value.dtype


@dataclass(frozen=True)
class Binary:
    """Both operands have the same dtype. For integers, div rounds down, and pow is not available."""

    op: str
    left: Value
    right: Value

    @property
    def dtype(self) -> str:
        return self.left.dtype


@dataclass(frozen=True)
class Compare:
    op: str
    left: Value
    right: Value

    @property
    def dtype(self) -> str:
        return BOOL


@dataclass(frozen=True)
class Logic:
    op: str
    left: Value
    right: Value

    @property
    def dtype(self) -> str:
        return BOOL


@dataclass(frozen=True)
class Select:
    """One of two values. The other is not read: this keeps padding inside its tensor."""

    condition: Value
    then: Value
    otherwise: Value

    @property
    def dtype(self) -> str:
        return self.then.dtype


Value: TypeAlias = "Const | Place | Read | Cast | Unary | Binary | Compare | Logic | Select"


@dataclass(frozen=True)
class Axis:
    """A range of an index, from 0."""

    name: str
    extent: int


@dataclass(frozen=True)
class Stage:
    """One tensor: for all values of `axes`, `value`, or its reduction over `reduced`.

    With `scan`, the result along that axis is the inclusive running reduction of `value`.
    """

    name: str
    axes: tuple[Axis, ...]
    value: Value
    reduce: str | None = None  # one of REDUCE
    reduced: tuple[Axis, ...] = ()
    scan: str | None = None

    @property
    def dtype(self) -> str:
        return self.value.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(axis.extent for axis in self.axes)


@dataclass(frozen=True)
class TensorSpec:
    """An input tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Expression:
    """Input tensors, in the order of a call; stages in an order in which they can be computed; results."""

    name: str
    tensors: tuple[TensorSpec, ...]
    stages: tuple[Stage, ...]
    outputs: tuple[str, ...]

    def stage(self, name: str) -> Stage:
        return next(stage for stage in self.stages if stage.name == name)

    def shape_of(self, name: str) -> tuple[int, ...]:
        return self._named(name).shape

    def dtype_of(self, name: str) -> str:
        return self._named(name).dtype

    def _named(self, name: str) -> TensorSpec | Stage:
        either: tuple[TensorSpec | Stage, ...] = (*self.tensors, *self.stages)
        return next(one for one in either if one.name == name)


@runtime_checkable
class HasExpression(Protocol):
    """Optional interface of an operator that can be written as an expression."""

    def expression(self) -> Expression:
        """Its tensors are those of the signature, by name and in order. Raises BadInput if there is no expression."""
        ...


def children(value: Value) -> tuple[Value, ...]:
    if isinstance(value, (Const, Place, Read)):
        return ()
    if isinstance(value, (Cast, Unary)):
        return (value.value,)
    if isinstance(value, Select):
        return (value.condition, value.then, value.otherwise)
    return (value.left, value.right)


def with_children(value: Value, parts: Sequence[Value]) -> Value:
    """The same node with other operands."""
    if isinstance(value, (Const, Place, Read)):
        return value
    if isinstance(value, Cast):
        return value if parts[0] is value.value else Cast(parts[0], value.dtype)
    if isinstance(value, Unary):
        return value if parts[0] is value.value else Unary(value.op, parts[0])
    if isinstance(value, Select):
        return Select(*parts)
    same = parts[0] is value.left and parts[1] is value.right
    return value if same else type(value)(value.op, parts[0], parts[1])


def substituted(value: Value, by: Mapping[str, Index | int]) -> Value:
    """The value with iterators replaced by other indices."""
    if isinstance(value, Place):
        return Place(value.index.substitute(by), value.dtype)
    if isinstance(value, Read):
        return Read(value.tensor, tuple(index.substitute(by) for index in value.indices), value.dtype)
    return with_children(value, [substituted(child, by) for child in children(value)])


def walk(value: Value) -> Iterator[Value]:
    """Every node, operands before the nodes that use them."""
    for child in children(value):
        yield from walk(child)
    yield value


def reads(value: Value) -> tuple[Read, ...]:
    return tuple(node for node in walk(value) if isinstance(node, Read))


def with_indices(value: Value, change: Callable[[Index], Index]) -> Value:
    """A value with every index changed."""
    if isinstance(value, Place):
        return Place(change(value.index), value.dtype)
    if isinstance(value, Read):
        return Read(value.tensor, tuple(change(i) for i in value.indices), value.dtype)
    return with_children(value, [with_indices(child, change) for child in children(value)])


def with_reads(value: Value, change: Callable[[Read], Value]) -> Value:
    """A value with every read replaced."""
    if isinstance(value, Read):
        return change(value)
    return with_children(value, [with_reads(child, change) for child in children(value)])


def replaced(value: Value, old: Value, new: Value) -> Value:
    """A value with all occurrences of one of its parts replaced by another."""
    if value == old:
        return new
    return with_children(value, [replaced(child, old, new) for child in children(value)])
