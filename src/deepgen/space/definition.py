"""Knobs, and JSON for spaces and expressions: a scalar is a constant, a list is an operation with its operands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from deepgen.space.evaluate import STRICT
from deepgen.space.expr import Expr, Requirement, Value, check_value, const, key, knob_ref
from deepgen.vocabulary import BadInput, Json, JsonObject

FORMAT = "deepgen.space/1"
_PLAIN = (*STRICT, "and", "or", "not", "implies", "where")
_OPERANDS = {"neg": 1, "abs": 1, "not": 1, "where": 3}  # all others have two
_MANY = ("and", "or", "min", "max")  # or more than two


@dataclass(frozen=True, eq=False)
class Knob:
    """A choice: its values in order, and the condition under which it exists (None: always).

    An optional knob has no condition: other requirements determine where it exists (points may lack it).
    """

    name: str
    values: tuple[Value, ...]
    when: Expr | None = None
    optional: bool = False

    @property
    def places(self) -> int:
        """The number of its states: its values, plus being absent if that is possible."""
        return len(self.values) + (self.when is not None or self.optional)


def space_to_json(
    name: str, knobs: Iterable[Knob], derived: Mapping[str, Expr], requirements: Iterable[Requirement]
) -> JsonObject:
    return {
        "format": FORMAT,
        "name": name,
        "knobs": [knob_to_json(k) for k in knobs],
        "derived": [[name, expr_to_json(expr.args[0])] for name, expr in derived.items()],
        "requirements": [[r.name, expr_to_json(r.expr)] for r in requirements],
    }


def knob_to_json(knob: Knob) -> JsonObject:
    data: JsonObject = {"name": knob.name, "values": [value_to_json(v) for v in knob.values]}
    if knob.when is not None:
        data["when"] = expr_to_json(unnamed(knob.when))  # knobs are read before derived values are defined
    if knob.optional:
        data["optional"] = True
    return data


def value_to_json(value: Value) -> Json:
    """Tuples become lists, which is unambiguous because no value is a list."""
    return [value_to_json(v) for v in value] if isinstance(value, tuple) else value


_MOST_PARTS = 10_000  # of one value


def value_from_json(data: Any) -> Value:
    if isinstance(data, list) and len(data) > _MOST_PARTS:
        raise BadInput(f"a value has {len(data)} parts", allowed=f"at most {_MOST_PARTS}")
    return check_value(tuple(value_from_json(d) for d in data) if isinstance(data, list) else data)


def expr_to_json(expr: Expr) -> Json:
    op = expr.op
    if op == "const":
        return ["const", value_to_json(expr.data)] if isinstance(expr.data, tuple) else expr.data
    if op in ("knob", "named", "present"):
        return [op, expr.data]
    args = [expr_to_json(a) for a in expr.args]
    if op == "isin":
        return [op, *args, [value_to_json(v) for v in expr.data]]
    if op == "table":
        pairs, default, many = expr.data
        entries: Json = [[value_to_json(k), value_to_json(v)] for k, v in pairs]
        return [op, args, entries, None if default is None else value_to_json(default), many]
    if op == "points":
        names, rows = expr.data
        return [op, list(names), [[None if v is None else value_to_json(v) for v in row] for row in rows]]
    return [op, *args]


def unnamed(expr: Expr) -> Expr:
    """The expression with derived values replaced by their definitions."""
    if expr.op == "named":
        return unnamed(expr.args[0])
    return Expr(expr.op, tuple(unnamed(a) for a in expr.args), expr.data) if expr.args else expr


def expr_from_json(data: Any, named: dict[str, Expr]) -> Expr:
    """The expression from JSON; `named` has the derived values that it may use."""
    if not isinstance(data, list):
        return const(data)
    if not data or not isinstance(data[0], str):
        raise BadInput(f"{data!r} is not an expression", allowed="a constant or [operation, operands...]")
    op, *rest = data
    try:
        return _operation(op, rest, named)
    except (ValueError, TypeError, IndexError) as error:
        raise BadInput(f"operation {op!r} has operands that do not match: {rest!r}") from error


def _operation(op: str, rest: list[Any], named: dict[str, Expr]) -> Expr:
    if op == "const":
        return const(value_from_json(rest[0]))
    if op == "knob":
        return knob_ref(_text(rest[0]))
    if op == "present":
        return Expr("present", (), _text(rest[0]))
    if op == "named":
        if rest[0] not in named:
            raise BadInput(
                f"derived value {rest[0]!r} is used before it is defined", allowed=", ".join(named) or "none"
            )
        return named[rest[0]]
    if op == "isin":
        inner, values = rest
        return expr_from_json(inner, named).isin(value_from_json(v) for v in values)
    if op == "table":
        index, entries, default, many = rest
        args = tuple(expr_from_json(i, named) for i in index)
        pairs = tuple((value_from_json(k), value_from_json(v)) for k, v in entries)
        if not args or (many and any(not isinstance(k, tuple) or len(k) != len(args) for k, _ in pairs)):
            raise ValueError("a key for each index")
        return Expr("table", args, (pairs, None if default is None else value_from_json(default), bool(many)))
    if op == "points":
        names, rows = rest
        read = tuple(tuple(None if v is None else value_from_json(v) for v in row) for row in rows)
        if any(len(row) != len(names) for row in read):
            raise ValueError("a value for each name")
        return Expr("points", (), (tuple(_text(n) for n in names), read))
    if op not in _PLAIN:
        raise BadInput(f"unknown operation {op!r}", allowed=", ".join((*_PLAIN, "isin", "table", "points")))
    wanted = _OPERANDS.get(op, 2)
    if len(rest) != wanted and not (op in _MANY and len(rest) > wanted):
        raise ValueError(f"{wanted} operands")
    return Expr(op, tuple(expr_from_json(r, named) for r in rest))


def _text(data: Any) -> str:
    if not isinstance(data, str):
        raise BadInput(f"{data!r} is not a name")
    return data


def same_condition(a: Expr | None, b: Expr | None) -> bool:
    if a is None or b is None:
        return a is b
    return bool(key(a) == key(b))
