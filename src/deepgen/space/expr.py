"""Expressions over knobs, as data: built by Python operators; printed, serialised and evaluated in other modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeAlias, Union

from deepgen.vocabulary import BadInput

Value: TypeAlias = "int | float | str | bool | tuple[Any, ...]"
Config: TypeAlias = "dict[str, Value]"
Operand: TypeAlias = Union["Expr", Value]


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Expr:
    """A node: its operation, its operands, and other data of the operation (a constant, a name, a table)."""

    op: str
    args: tuple[Expr, ...] = ()
    data: Any = None

    def __add__(self, other: Operand) -> Expr:
        return Expr("+", (self, lift(other)))

    def __radd__(self, other: Operand) -> Expr:
        return Expr("+", (lift(other), self))

    def __sub__(self, other: Operand) -> Expr:
        return Expr("-", (self, lift(other)))

    def __rsub__(self, other: Operand) -> Expr:
        return Expr("-", (lift(other), self))

    def __mul__(self, other: Operand) -> Expr:
        return Expr("*", (self, lift(other)))

    def __rmul__(self, other: Operand) -> Expr:
        return Expr("*", (lift(other), self))

    def __truediv__(self, other: Operand) -> Expr:
        return Expr("/", (self, lift(other)))

    def __rtruediv__(self, other: Operand) -> Expr:
        return Expr("/", (lift(other), self))

    def __floordiv__(self, other: Operand) -> Expr:
        return Expr("//", (self, lift(other)))

    def __rfloordiv__(self, other: Operand) -> Expr:
        return Expr("//", (lift(other), self))

    def __mod__(self, other: Operand) -> Expr:
        return Expr("%", (self, lift(other)))

    def __rmod__(self, other: Operand) -> Expr:
        return Expr("%", (lift(other), self))

    def __pow__(self, other: Operand) -> Expr:
        return Expr("**", (self, lift(other)))

    def __rpow__(self, other: Operand) -> Expr:
        return Expr("**", (lift(other), self))

    def __neg__(self) -> Expr:
        # A negated number becomes a constant: printed and parsed again the two would look the same.
        if self.op == "const" and isinstance(self.data, (int, float)) and not isinstance(self.data, bool):
            return const(-self.data)
        return Expr("neg", (self,))

    def __abs__(self) -> Expr:
        return Expr("abs", (self,))

    def __eq__(self, other: object) -> Expr:  # type: ignore[override]
        return Expr("==", (self, lift(other)))

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]
        return Expr("!=", (self, lift(other)))

    def __lt__(self, other: Operand) -> Expr:
        return Expr("<", (self, lift(other)))

    def __le__(self, other: Operand) -> Expr:
        return Expr("<=", (self, lift(other)))

    def __gt__(self, other: Operand) -> Expr:
        return Expr(">", (self, lift(other)))

    def __ge__(self, other: Operand) -> Expr:
        return Expr(">=", (self, lift(other)))

    def __and__(self, other: Operand) -> Expr:
        return all_of(self, other)

    def __rand__(self, other: Operand) -> Expr:
        return all_of(other, self)

    def __or__(self, other: Operand) -> Expr:
        return any_of(self, other)

    def __ror__(self, other: Operand) -> Expr:
        return any_of(other, self)

    def __invert__(self) -> Expr:
        return Expr("not", (self,))

    def __getitem__(self, place: Operand) -> Expr:
        """The element at an index of a tuple, such as the outermost loop of an order."""
        return Expr("item", (self, lift(place)))

    # Without this, Python would iterate an Expr through __getitem__ without end.
    __iter__ = None

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise BadInput(
            f"'{self}' is neither true nor false before its knobs have values",
            allowed="use & | ~ or implies() between conditions instead of and, or, not and chained comparisons",
        )

    def isin(self, values: Iterable[Value]) -> Expr:
        """Whether the value is one of `values`."""
        return Expr("isin", (self,), tuple(check_value(v) for v in values))

    def position(self, element: Operand) -> Expr:
        """The index of `element` in a tuple, such as the depth of a loop in an order."""
        return Expr("position", (self, lift(element)))

    def present(self) -> Expr:
        """Whether a conditional knob exists in a config."""
        if self.op != "knob":
            raise BadInput(f"'{self}' is not a knob, so it is always present", allowed="call present() on a knob")
        return Expr("present", (), self.data)

    def evaluate(self, values: Mapping[str, Value]) -> Value:
        """The value for given knobs; raises for an unknown name, a division by zero or a missing table key."""
        from deepgen.space.evaluate import evaluate_strictly

        return evaluate_strictly(self, values)

    def knobs(self) -> frozenset[str]:
        """The names of the knobs that it depends on."""
        return frozenset(name for node in walk(self) for name in _names(node))

    def same(self, other: Expr) -> bool:
        """Structural equality (== builds an expression instead)."""
        return bool(key(self) == key(other))

    def __str__(self) -> str:
        from deepgen.space.parse import to_text

        return to_text(self)

    def __repr__(self) -> str:
        return f"Expr({self})"


@dataclass(frozen=True, eq=False)
class Requirement:
    """A condition that every valid config meets, and its name in words."""

    name: str
    expr: Expr


def _names(node: Expr) -> tuple[str, ...]:
    if node.op in ("knob", "present"):
        return (node.data,)
    return tuple(node.data[0]) if node.op == "points" else ()


def walk(expr: Expr) -> Iterator[Expr]:
    """Every distinct node once, operands before operations."""
    seen: set[int] = set()
    stack = [(expr, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((arg, False) for arg in reversed(node.args))


def key(expr: Expr) -> Any:
    """A hashable form that is equal exactly for equal structures (1, 1.0 and True differ)."""
    return (expr.op, data_key(expr.data), tuple(key(a) for a in expr.args))


def data_key(data: Any) -> Any:
    if isinstance(data, tuple):
        return tuple(data_key(d) for d in data)
    return (type(data).__name__, data)


def check_value(value: Any) -> Value:
    """Check a knob's value or a constant: numbers, text, booleans, and tuples of these."""
    if isinstance(value, tuple):
        return tuple(check_value(v) for v in value)
    if isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if not isfinite(value):
            raise BadInput(f"{value} cannot be a value", allowed="finite numbers, text, booleans, tuples of them")
        return value
    item = getattr(value, "item", None)  # numpy scalars result from arithmetic on hardware facts
    if item is not None and getattr(value, "shape", None) == ():
        return check_value(item())
    raise BadInput(
        f"{value!r} of type {type(value).__name__} cannot be a value",
        allowed="int, float, str, bool, or a tuple of them",
    )


def lift(operand: object) -> Expr:
    """An operand as an expression."""
    return operand if isinstance(operand, Expr) else Expr("const", (), check_value(operand))


def const(value: Value) -> Expr:
    return Expr("const", (), check_value(value))


def knob_ref(name: str) -> Expr:
    return Expr("knob", (), name)


def _flat(op: str, operands: Iterable[Operand]) -> Expr:
    """Merge nested and/or chains into one node, so that printing and parsing agree."""
    args: list[Expr] = []
    for operand in operands:
        expr = lift(operand)
        args.extend(expr.args if expr.op == op else (expr,))
    if not args:
        return const(op == "and")
    return args[0] if len(args) == 1 else Expr(op, tuple(args))


def all_of(*conditions: Operand) -> Expr:
    """True if every condition is true."""
    return _flat("and", conditions)


def any_of(*conditions: Operand) -> Expr:
    """True if at least one condition is true."""
    return _flat("or", conditions)


def implies(condition: Operand, consequence: Operand) -> Expr:
    """False only where the condition holds and the consequence does not."""
    return Expr("implies", (lift(condition), lift(consequence)))


def where(condition: Operand, then: Operand, otherwise: Operand) -> Expr:
    """`then` if the condition holds, otherwise `otherwise`."""
    return Expr("where", (lift(condition), lift(then), lift(otherwise)))


def minimum(*operands: Operand) -> Expr:
    return _extreme("min", operands)


def maximum(*operands: Operand) -> Expr:
    return _extreme("max", operands)


def _extreme(op: str, operands: Sequence[Operand]) -> Expr:
    if not operands:
        raise BadInput(f"{op}() of nothing", allowed="at least one operand")
    return lift(operands[0]) if len(operands) == 1 else Expr(op, tuple(lift(o) for o in operands))


def divides(divisor: Operand, number: Operand) -> Expr:
    """Whether `number` is a multiple of `divisor`."""
    return Expr("divides", (lift(divisor), lift(number)))


def ceil_div(number: Operand, divisor: Operand) -> Expr:
    """The quotient, rounded up."""
    return Expr("ceil_div", (lift(number), lift(divisor)))


def product(operands: Iterable[Operand]) -> Expr:
    """The product of all operands; 1 if there are none."""
    result: Expr | None = None
    for operand in operands:
        result = lift(operand) if result is None else result * operand
    return const(1) if result is None else result


def table(index: Operand | Sequence[Operand], entries: Mapping[Any, Value], default: Value | None = None) -> Expr:
    """A table lookup. Several indices form tuple keys; a missing key gives `default`, or breaks the requirement."""
    many = isinstance(index, (list, tuple))
    args = tuple(lift(i) for i in index) if isinstance(index, (list, tuple)) else (lift(index),)
    pairs = tuple((check_value(k), check_value(v)) for k, v in entries.items())
    if many and any(not isinstance(k, tuple) or len(k) != len(args) for k, _ in pairs):
        raise BadInput("a look-up with several indices needs a tuple of as many values for each key")
    return Expr("table", args, (pairs, None if default is None else check_value(default), many))


def points(names: Sequence[str], rows: Iterable[Sequence[Value | None]]) -> Expr:
    """Whether the combination of the knobs `names` is one of `rows` (None: the knob is absent in that row)."""
    return Expr("points", (), (tuple(names), tuple(tuple(row) for row in rows)))
