"""Expressions as JSON, and as readable text: one line for the tensors, one for each stage.

In JSON the nodes of a value form one flat list and refer to their operands by index.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any

from deepgen.operators.expr import check
from deepgen.operators.expr.index import Atom, Index, Iter, Quotient
from deepgen.operators.expr.nodes import (
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
    TensorSpec,
    Unary,
    Value,
    children,
)
from deepgen.vocabulary import foreign
from deepgen.vocabulary.errors import BadInput
from deepgen.vocabulary.json import Json, JsonObject, digest

_WITH_OP = {"unary": Unary, "binary": Binary, "compare": Compare, "logic": Logic}
_INFINITE = {"inf": inf, "-inf": -inf}


def to_json(expression: Expression) -> JsonObject:
    return {
        "name": expression.name,
        "tensors": [[t.name, t.dtype, list(t.shape)] for t in expression.tensors],
        "stages": [_stage(stage) for stage in expression.stages],
        "outputs": list(expression.outputs),
    }


def from_json(data: Mapping[str, Any], where: str = "expression") -> Expression:
    """The expression that JSON describes, checked in the same way as one built in Python."""
    with foreign.shaped(where, "is not an expression"):
        expression = Expression(
            _text(data["name"]),
            tuple(TensorSpec(_text(n), tuple(map(_whole, s)), _text(d)) for n, d, s in data["tensors"]),
            tuple(_read_stage(one) for one in data["stages"]),
            tuple(map(_text, data["outputs"])),
        )
        return check.check(expression)


def expression_digest(expression: Expression, length: int = 64) -> str:
    """The hash of its content."""
    return digest(to_json(expression), length)


def _stage(stage: Stage) -> JsonObject:
    nodes: list[Json] = []
    _add(stage.value, nodes, {})
    row: JsonObject = {"name": stage.name, "axes": _axes(stage.axes), "nodes": nodes}
    if stage.reduce is not None:
        row["reduce"] = stage.reduce
    if stage.reduced:
        row["reduced"] = _axes(stage.reduced)
    if stage.scan is not None:
        row["scan"] = stage.scan
    return row


def _axes(axes: Sequence[Axis]) -> list[Json]:
    return [[axis.name, axis.extent] for axis in axes]


def _add(value: Value, nodes: list[Json], places: dict[Value, int]) -> int:
    """The index of a value in the list of nodes; equal values are stored once."""
    if value in places:
        return places[value]
    operands: list[Json] = [_add(child, nodes, places) for child in children(value)]
    nodes.append([*_head(value), *operands])
    places[value] = len(nodes) - 1
    return places[value]


def _head(value: Value) -> list[Json]:
    if isinstance(value, Const):
        number = value.value
        return ["const", value.dtype, str(number) if number in _INFINITE.values() else number]
    if isinstance(value, Place):
        return ["place", _index(value.index)]
    if isinstance(value, Read):
        return ["read", value.tensor, value.dtype, [_index(index) for index in value.indices]]
    if isinstance(value, Cast):
        return ["cast", value.dtype]
    if isinstance(value, Select):
        return ["select"]
    return [next(kind for kind, cls in _WITH_OP.items() if isinstance(value, cls)), value.op]


def _index(index: Index) -> list[Json]:
    return [index.constant, *([times, _atom(atom)] for atom, times in index.terms)]


def _atom(atom: Atom) -> Json:
    if isinstance(atom, Iter):
        return atom.name
    return ["//" if isinstance(atom, Quotient) else "%", _index(atom.of), atom.by]


def _read_stage(data: Mapping[str, Any]) -> Stage:
    nodes: list[Value] = []
    sizes: list[int] = []
    name = _text(data["name"])
    for row in data["nodes"]:
        node, used = _node(row, nodes)
        sizes.append(1 + sum(sizes[place] for place in used))
        if sizes[-1] > check.MOST_NODES:
            raise check.too_long(name)
        nodes.append(node)
    scan = data.get("scan")
    return Stage(
        name,
        _read_axes(data["axes"]),
        nodes[-1],
        None if data.get("reduce") is None else _text(data["reduce"]),
        _read_axes(data.get("reduced", ())),
        None if scan is None else _text(scan),
    )


def _read_axes(data: Sequence[Any]) -> tuple[Axis, ...]:
    return tuple(Axis(_text(name), _whole(extent)) for name, extent in data)


def _node(row: Sequence[Any], nodes: Sequence[Value]) -> tuple[Value, list[int]]:
    """A node, and the indices of its operands, which must all precede it."""
    kind = row[0]
    if kind == "const":
        _, dtype, number = row
        return Const(_INFINITE[number] if isinstance(number, str) else number, _text(dtype)), []
    if kind == "place":
        return Place(_read_index(row[1])), []
    if kind == "read":
        _, tensor, dtype, indices = row
        return Read(_text(tensor), tuple(map(_read_index, indices)), _text(dtype)), []
    named = kind in _WITH_OP or kind == "cast"
    places = [_whole(place) for place in row[1 + named :]]
    if not all(0 <= place < len(nodes) for place in places):
        raise BadInput(f"a node names the operands {places}", allowed="must be indices of earlier nodes")
    operands = [nodes[place] for place in places]
    if kind == "cast":
        (value,) = operands
        return Cast(value, _text(row[1])), places
    if kind == "select":
        condition, then, otherwise = operands
        return Select(condition, then, otherwise), places
    built: Value = _WITH_OP[kind](_text(row[1]), *operands)
    return built, places


def _read_index(data: Sequence[Any], depth: int = 0) -> Index:
    """Terms are sorted: an index has one canonical form, whatever the file contains."""
    if depth > 8:
        raise BadInput("an index nests too deeply", allowed="at most 8 divisions inside each other")
    total = Index((), _whole(data[0]))
    for times, atom in data[1:]:
        total = total + _read_atom(atom, depth) * _whole(times)
    return total


def _read_atom(data: Any, depth: int) -> Index:
    if isinstance(data, str):
        return Index(((Iter(data), 1),))
    sign, of, by = data
    inner = _read_index(of, depth + 1)
    if sign not in ("//", "%"):
        raise BadInput(f"unknown sign {sign!r}", allowed="// or %")
    return inner // _whole(by) if sign == "//" else inner % _whole(by)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise BadInput(f"{value!r} must be a string")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or abs(value) >= 1 << 62:
        raise BadInput(f"{value!r} must be an integer")
    return value


# Operators and their precedence; anything without one is written as a call.
_SIGNS = {
    "or": ("or", 1), "and": ("and", 2), "lt": ("<", 3), "le": ("<=", 3), "eq": ("==", 3), "ne": ("!=", 3),
    "add": ("+", 5), "sub": ("-", 5), "mul": ("*", 6), "div": ("/", 6), "pow": ("**", 8),
}  # fmt: skip
_SUM, _ALONE = 5, 9


def text(expression: Expression) -> str:
    """An expression as readable text: its tensors, and a line for each stage."""
    tensors = ", ".join(map(_tensor, expression.tensors))
    head = f"{expression.name}({tensors}) -> {', '.join(expression.outputs)}"
    return "\n".join([head, *(f"    {stage_text(stage)}" for stage in expression.stages)])


def stage_text(stage: Stage) -> str:
    over = f"{stage.reduce}[{_axes_text(stage.reduced)}] " if stage.reduced else ""
    along = f"scan {stage.reduce}[{stage.scan}] " if stage.scan is not None else ""
    return f"{stage.name}[{_axes_text(stage.axes)}]: {stage.dtype} = {over}{along}{value_text(stage.value)}"


def value_text(value: Value) -> str:
    return _written(value)[0]


def _tensor(tensor: TensorSpec) -> str:
    return f"{tensor.name}: {tensor.dtype}[{', '.join(map(str, tensor.shape))}]"


def _axes_text(axes: Iterable[Axis]) -> str:
    return ", ".join(f"{axis.name} < {axis.extent}" for axis in axes)


def _written(value: Value) -> tuple[str, int]:
    """The text, and the precedence of its outermost operator."""
    if isinstance(value, Const):
        text = repr(value.value)
        return text, _SUM if text.startswith("-") else _ALONE
    if isinstance(value, Place):
        return str(value.index), _ALONE if len(value.index.terms) <= 1 and not value.index.constant else _SUM
    if isinstance(value, Read):
        return f"{value.tensor}[{', '.join(map(str, value.indices))}]", _ALONE
    if isinstance(value, Cast):
        return f"{value.dtype}({_written(value.value)[0]})", _ALONE
    if isinstance(value, Unary):
        return f"{value.op}({_written(value.value)[0]})", _ALONE
    if isinstance(value, Select):
        parts = (value.condition, value.then, value.otherwise)
        return f"where({', '.join(_written(part)[0] for part in parts)})", _ALONE
    assert isinstance(value, (Binary, Compare, Logic))
    if value.op not in _SIGNS:
        return f"{value.op}({_written(value.left)[0]}, {_written(value.right)[0]})", _ALONE
    sign, tight = _SIGNS[value.op]
    return f"{_within(value.left, tight)} {sign} {_within(value.right, tight + 1)}", tight


def _within(value: Value, tight: int) -> str:
    text, own = _written(value)
    return text if own >= tight else f"({text})"
