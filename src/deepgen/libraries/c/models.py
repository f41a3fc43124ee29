"""A family's model of a kernel's time as a function in C, so that C chooses as Python does.

The model is called with symbols in place of sizes. They record the arithmetic that is done to them. Where the model
branches on a condition, it is called once for each outcome, and the two results are merged, so that only what differs
depends on the condition. That is exact: models are arithmetic, minimum, maximum and conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from math import isfinite
from typing import Any

from deepgen import generators
from deepgen.kernels import Modelled
from deepgen.libraries.entry import Entry
from deepgen.operators import Operator
from deepgen.operators.signature import INOUT
from deepgen.vocabulary.dtypes import dtype

_MOST_CALLS = 4096  # of one model
_INFIX = {"+", "-", "*", "/", "<", "<=", ">", ">=", "==", "!="}


class NotTraced(Exception):
    """A model that uses sizes in a way that symbols cannot record."""


class _Node:
    """An operation on other nodes. Equal nodes are the same object: see `_Nodes`."""

    __slots__ = ("args", "op")

    def __init__(self, op: str, args: tuple[_Node, ...]) -> None:
        self.op, self.args = op, args


class _Nodes:
    """All operations of one model, each stored once."""

    def __init__(self) -> None:
        self._each: dict[tuple[str, tuple[int, ...]], _Node] = {}
        self._merged: dict[tuple[int, int, int], _Node] = {}

    def node(self, op: str, *args: _Node) -> _Node:
        return self._each.setdefault((op, tuple(map(id, args))), _Node(op, args))

    def constant(self, value: float) -> _Node:
        return self.node(repr(float(value)) if isfinite(value) else "NAN")

    def either(self, condition: _Node, yes: _Node, no: _Node) -> _Node:
        """One of two values. What they have in common is computed once, unconditionally."""
        if yes is no:
            return yes
        key = (id(condition), id(yes), id(no))
        if key not in self._merged:
            if yes.op == no.op and len(yes.args) == len(no.args) > 0:
                args = (self.either(condition, a, b) for a, b in zip(yes.args, no.args, strict=True))
                self._merged[key] = self.node(yes.op, *args)
            else:
                self._merged[key] = self.node("?", condition, yes, no)
        return self._merged[key]


class _Call:
    """One call of a model: the outcomes to give for its conditions, and the conditions that it evaluated."""

    def __init__(self, nodes: _Nodes, answers: Sequence[bool]) -> None:
        self.nodes, self.asked = nodes, list[_Node]()
        self._answers, self._decided = answers, dict[_Node, bool]()

    def answer(self, condition: _Node) -> bool:
        if condition not in self._decided:
            place = len(self.asked)
            self.asked.append(condition)
            self._decided[condition] = self._answers[place] if place < len(self._answers) else True
        return self._decided[condition]


class _Symbol:
    """A number that becomes known when the library is called."""

    def __init__(self, call: _Call, node: _Node) -> None:
        self.call, self.node = call, node

    def _with(self, op: str, *others: Any) -> _Symbol:
        return _Symbol(self.call, self.call.nodes.node(op, self.node, *(self._node_of(one) for one in others)))

    def _before(self, op: str, other: Any) -> _Symbol:
        return _Symbol(self.call, self.call.nodes.node(op, self._node_of(other), self.node))

    def _node_of(self, value: Any) -> _Node:
        if isinstance(value, _Condition):
            return self.call.nodes.constant(bool(value))
        return value.node if isinstance(value, _Symbol) else self.call.nodes.constant(value)

    def _asked(self, op: str, other: Any) -> _Condition:
        return _Condition(self.call, self._with(op, other).node)

    def __add__(self, other: Any) -> _Symbol:
        return self._with("+", other)

    def __radd__(self, other: Any) -> _Symbol:
        return self._before("+", other)

    def __sub__(self, other: Any) -> _Symbol:
        return self._with("-", other)

    def __rsub__(self, other: Any) -> _Symbol:
        return self._before("-", other)

    def __mul__(self, other: Any) -> _Symbol:
        return self._with("*", other)

    def __rmul__(self, other: Any) -> _Symbol:
        return self._before("*", other)

    def __truediv__(self, other: Any) -> _Symbol:
        return self._with("/", other)

    def __rtruediv__(self, other: Any) -> _Symbol:
        return self._before("/", other)

    def __floordiv__(self, other: Any) -> _Symbol:
        return self._with("/", other)._with("floor")

    def __rfloordiv__(self, other: Any) -> _Symbol:
        return self._before("/", other)._with("floor")

    def __mod__(self, other: Any) -> _Symbol:
        return self._with("-", (self // other)._with("*", other))

    def __pow__(self, other: Any) -> _Symbol:
        return self._with("pow", other)

    def __neg__(self) -> _Symbol:
        return self._before("-", 0.0)

    def __ceil__(self) -> _Symbol:
        return self._with("ceil")

    def __floor__(self) -> _Symbol:
        return self._with("floor")

    def __lt__(self, other: Any) -> _Condition:
        return self._asked("<", other)

    def __le__(self, other: Any) -> _Condition:
        return self._asked("<=", other)

    def __gt__(self, other: Any) -> _Condition:
        return self._asked(">", other)

    def __ge__(self, other: Any) -> _Condition:
        return self._asked(">=", other)

    def __eq__(self, other: object) -> _Condition:  # type: ignore[override]
        return self._asked("==", other)

    def __ne__(self, other: object) -> _Condition:  # type: ignore[override]
        return self._asked("!=", other)

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __hash__(self) -> int:
        raise NotTraced("it looks up a size")

    def __index__(self) -> int:
        raise NotTraced("it converts a size to a number")

    __int__ = __index__

    def __float__(self) -> float:
        raise NotTraced("it converts a size to a number")


class _Condition:
    """A comparison. As a bool it is decided for this call; in arithmetic it is 0 or 1."""

    def __init__(self, call: _Call, node: _Node) -> None:
        self.call, self.node = call, node

    def __bool__(self) -> bool:
        return self.call.answer(self.node)

    def __mul__(self, other: Any) -> Any:
        return bool(self) * other

    __rmul__ = __mul__

    def __add__(self, other: Any) -> Any:
        return bool(self) + other

    __radd__ = __add__


def model_text(entry: Entry, sizes: Sequence[str], name: str) -> str | None:
    """A C function of that name, of sizes in `v`: seconds by the family's model, NAN if it has no prediction.

    None if the family has no model, or if the model cannot be expressed in C.
    """
    if entry.family not in generators.FAMILIES or not isinstance(generators.by_name(entry.family), Modelled):
        return None
    nodes = _Nodes()
    try:
        result = _traced(lambda call: _result(call, entry, sizes), nodes, [], [0])
    except NotTraced:
        return None
    return _function(result, name)


def _traced(run: Callable[[_Call], _Node], nodes: _Nodes, answers: Sequence[bool], calls: list[int]) -> _Node:
    """The result, merged over all sequences of outcomes that begin with these."""
    calls[0] += 1
    if calls[0] > _MOST_CALLS:
        raise NotTraced("it has too many conditions")
    call = _Call(nodes, answers)
    result = run(call)
    for place in range(len(call.asked) - 1, len(answers) - 1, -1):
        assumed = [*answers, *[True] * (place - len(answers))]
        result = nodes.either(call.asked[place], result, _traced(run, nodes, [*assumed, False], calls))
    return result


def _result(call: _Call, entry: Entry, sizes: Sequence[str]) -> _Node:
    family = generators.by_name(entry.family)
    assert isinstance(family, Modelled), "model_text has checked"
    symbols = {size: _Symbol(call, call.nodes.node(f"v[{place}]")) for place, size in enumerate(sizes)}
    try:
        seconds: Any = family.modelled_seconds(_with_sizes(entry.operator, symbols), entry.target, entry.config)
    except TypeError as error:
        raise NotTraced("it uses sizes in a way that symbols do not support") from error
    except (ArithmeticError, KeyError, ValueError):  # as in Python's choice: no prediction
        seconds = None
    if seconds is None:
        return call.nodes.constant(float("nan"))
    return seconds.node if isinstance(seconds, _Symbol) else call.nodes.constant(seconds)


def _with_sizes(operator: Operator, symbols: dict[str, _Symbol]) -> Operator:
    """The operator with symbols in place of these sizes; its checks of sizes are not run again."""
    symbolic: Operator = object.__new__(type(operator))
    lower = {name.lower(): symbol for name, symbol in symbols.items()}
    names = [field.name for field in fields(operator)]  # type: ignore[arg-type]
    if missing := [name for name in lower if name not in names]:
        raise NotTraced(f"{operator.name} has no field {missing[0]}")
    for name in names:
        object.__setattr__(symbolic, name, lower.get(name, getattr(operator, name)))
    # Shapes of tensors must be integers, so their bytes are computed here, as the operator does.
    if _bytes(operator, operator.sizes()) != operator.least_bytes():
        raise NotTraced(f"{operator.name} moves other bytes than its tensors have")
    object.__setattr__(symbolic, "least_bytes", lambda: _bytes(operator, {**operator.sizes(), **symbols}))
    return symbolic


def _bytes(operator: Operator, sizes: Mapping[str, Any]) -> Any:
    """The bytes that must at least be read or written."""
    signature = operator.signature()
    whole: Any = 0
    for param in signature.tensors:
        size: Any = dtype(signature.dtype_of(param)).bytes * (2 if param.role == INOUT else 1)
        for length in param.shape:
            if isinstance(length, str) and length not in sizes:
                raise NotTraced(f"{param.name} has a shape of expressions")
            size = size * (sizes[length] if isinstance(length, str) else length)
        whole = whole + size
    return whole


def _function(result: _Node, name: str) -> str:
    """C with one variable per operation, defined after its operands."""
    places: dict[_Node, str] = {}
    lines: list[str] = []

    def spelled(node: _Node) -> str:
        if node not in places:
            args = [spelled(arg) for arg in node.args]
            if not args:
                places[node] = f"(double){node.op}" if node.op.startswith("v[") else node.op
                return places[node]
            if node.op == "?":
                text = f"{args[0]} ? {args[1]} : {args[2]}"
            else:
                text = f"{args[0]} {node.op} {args[1]}" if node.op in _INFIX else f"{node.op}({', '.join(args)})"
            places[node] = f"t{len(lines)}"
            lines.append(f"const double {places[node]} = {text};")
        return places[node]

    last = spelled(result)
    body = "\n    ".join(["(void)v;", *lines, f"return {last};"])
    return f"static double {name}(const int64_t *v) {{\n    {body}\n}}"
