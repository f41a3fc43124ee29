"""Evaluation for many configs at once: total expressions over arrays of knob values, and columns of configs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from deepgen.space.definition import Knob
from deepgen.space.evaluate import ABSENT, STRICT, UNDEFINED, evaluate, power
from deepgen.space.expr import Expr, const
from deepgen.space.nodes import Leaf, Nodes, misfit
from deepgen.space.rows import Array, variable
from deepgen.vocabulary import BadInput

_NUMERIC = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.true_divide,
    "//": np.floor_divide,
    "%": np.remainder,
    "**": np.power,
    "min": np.minimum,
    "max": np.maximum,
}
_COMPARE = {
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}
_FEW = 12
_DTYPES = {"bool": np.bool_, "int": np.int64, "float": np.float64}


def evaluate_arrays(
    nodes: Nodes, expr: Expr, places: dict[str, Array], cached: dict[int, Array] | None = None
) -> Array:
    """The value for arrays of places, one per knob in scope, which broadcast together.

    `cached` has values of nodes that are already computed, by node id.
    """
    objects = nodes.needs_objects(expr)

    def leaf(name: str) -> Array:
        values = nodes.variables[name].values
        return (values.astype(object) if objects else values)[places[name]]

    done: dict[int, Array] = dict(cached or {})
    try:
        with np.errstate(all="ignore"):
            for node in _needed(nodes, expr, done):
                operands = [done[id(a)] for a in node.args]
                done[id(node)] = _apply(nodes, node, operands, leaf, places, objects)
    except (TypeError, ValueError, OverflowError, ZeroDivisionError) as error:
        raise misfit(expr, error) from error
    return done[id(expr)]


def _needed(nodes: Nodes, expr: Expr, done: dict[int, Array]) -> list[Expr]:
    if not done:
        return nodes.walked(expr)
    order: list[Expr] = []
    seen = set(done)

    def visit(node: Expr) -> None:
        if id(node) not in seen:
            seen.add(id(node))
            for arg in node.args:
                visit(arg)
            order.append(node)

    visit(expr)
    return order


def _apply(
    nodes: Nodes, node: Expr, operands: list[Array], leaf: Leaf, places: dict[str, Array], objects: bool
) -> Array:
    op = node.op
    if op == "const":
        return constant(node.data, objects)
    if op == "knob":
        return leaf(node.data)
    if op == "present":
        return nodes.variables[node.data].present[places[node.data]]
    if op == "points":
        return _points(nodes, node, places)
    return apply(nodes, node, operands)


def constant(value: Any, objects: bool = False) -> Array:
    if isinstance(value, (str, tuple)) or (objects and isinstance(value, int)) or _long(value):
        boxed = np.empty((), dtype=object)
        boxed[()] = value
        return boxed
    return np.asarray(value)


def _long(value: Any) -> bool:
    return isinstance(value, int) and abs(value) >= 1 << 62


def apply(nodes: Nodes, node: Expr, operands: list[Array]) -> Array:
    """Apply one operation to the values of its operands."""
    op = node.op
    if op in _NUMERIC:
        numbers = [_number(o) for o in operands]
        if op in ("/", "//", "%"):
            numbers[1] = _nonzero(numbers[1])
        elif op == "**":
            numbers = _powers(numbers)
            if object in (numbers[0].dtype, numbers[1].dtype):  # numbers of any length, each checked by `power`
                return np.asarray(np.frompyfunc(power, 2, 1)(*numbers), dtype=object)
        result = numbers[0]
        for other in numbers[1:]:
            result = _NUMERIC[op](result, other)
        return result
    if op in _COMPARE:
        return np.asarray(_COMPARE[op](operands[0], operands[1])).astype(np.bool_, copy=False)
    if op == "ceil_div":
        return -np.floor_divide(-_number(operands[0]), _nonzero(_number(operands[1])))
    if op == "divides":
        return np.asarray(np.remainder(_number(operands[1]), _nonzero(_number(operands[0]))) == 0)
    if op in ("and", "or"):
        join = np.logical_and if op == "and" else np.logical_or
        result = operands[0]
        for other in operands[1:]:
            result = join(result, other)
        return result.astype(np.bool_, copy=False)
    if op == "not":
        return np.logical_not(operands[0].astype(np.bool_, copy=False))
    if op == "where":
        return _where(operands)
    if op in ("neg", "abs"):
        return -_number(operands[0]) if op == "neg" else np.abs(_number(operands[0]))
    if op == "isin":
        return _isin(operands[0], node.data)
    return _one_by_one(nodes, node, operands)


def _number(array: Array) -> Array:
    """Convert booleans to integers, because numpy adds booleans as an `or`. Texts and lists, which Python would repeat,
    are refused."""
    if array.dtype == object and any(isinstance(value, (str, tuple)) for value in array.flat):
        raise TypeError("texts and lists are not numbers")
    return array.astype(np.int64) if array.dtype == np.bool_ else array


def _nonzero(divisor: Array) -> Array:
    zero = divisor == 0
    return np.where(zero, 1, divisor) if np.any(zero) else divisor


def _powers(numbers: list[Array]) -> list[Array]:
    base, exponent = numbers
    bad = (base == 0) & (exponent < 0)
    return [np.where(bad, 1, base), exponent] if np.any(bad) else [base, exponent]


def _where(operands: list[Array]) -> Array:
    condition, then, otherwise = operands
    if object in (then.dtype, otherwise.dtype):
        then, otherwise = then.astype(object), otherwise.astype(object)
    return np.where(condition.astype(np.bool_, copy=False), then, otherwise)


def _isin(array: Array, values: tuple[Any, ...]) -> Array:
    if array.dtype == object:
        return np.frompyfunc(lambda v: v in values, 1, 1)(array).astype(np.bool_)  # type: ignore[no-any-return]
    numbers = [v for v in values if isinstance(v, (int, float))]
    if len(numbers) > _FEW:
        return np.isin(array, numbers)
    result = np.zeros(array.shape, dtype=np.bool_)
    for value in numbers:
        result |= array == value
    return result


def _one_by_one(nodes: Nodes, node: Expr, operands: list[Array]) -> Array:
    """Operations without a numpy loop: table lookups, and positions in tuples."""
    wanted: Expr = node.data if node.op == "defined" else node

    def scalar(*values: Any) -> Any:
        result = evaluate(Expr(wanted.op, tuple(map(const, values)), wanted.data), {})
        if node.op == "defined":
            return result is not UNDEFINED
        return 0 if result is UNDEFINED else result

    if wanted.op == "table":
        pairs, default, many = wanted.data
        entries = dict(pairs)

        def look_up(*values: Any) -> Any:
            value = entries.get(values if many else values[0], default)
            return value is not None if node.op == "defined" else (0 if value is None else value)

        scalar = look_up
    elif wanted.op not in STRICT:
        raise TypeError(f"{wanted.op} has no array form")
    boxed = [o.astype(object) for o in operands]
    result = np.asarray(np.frompyfunc(scalar, len(boxed), 1)(*boxed))
    kind = "bool" if node.op == "defined" else nodes.kind(node)
    return result.astype(_DTYPES[kind]) if kind in _DTYPES else result


def _points(nodes: Nodes, node: Expr, places: dict[str, Array]) -> Array:
    names, rows = node.data
    points = set(rows)
    fixed = nodes.fixed
    shape = np.broadcast_shapes(*(p.shape for p in places.values()))
    columns = []
    for name in names:
        if name in fixed:
            columns.append([fixed[name]] * int(np.prod(shape)))
            continue
        variable = nodes.variables[name]
        listed = [v if p else None for v, p in zip(variable.values.tolist(), variable.present.tolist(), strict=True)]
        columns.append([listed[i] for i in np.broadcast_to(places[name], shape).ravel().tolist()])
    return np.array([row in points for row in zip(*columns, strict=True)], dtype=np.bool_).reshape(shape)


class Derivations:
    """Some expressions over the knobs, prepared once to be computed for many rows at a time."""

    def __init__(self, knobs: Sequence[Knob], exprs: Mapping[str, Expr]) -> None:
        self._columns = [(i, k.name) for i, k in enumerate(knobs) if k.places > 1]
        nodes = Nodes(
            {knobs[i].name: variable(knobs[i]) for i, _ in self._columns},
            {k.name: k.values[0] for k in knobs if k.places == 1},
        )
        self._nodes, self._exprs = nodes, dict(exprs)
        self._totals = {name: nodes.total(expr) for name, expr in exprs.items()}

    def __call__(self, rows: Array) -> dict[str, tuple[Array, Array]]:
        """For each expression its values, one per row, and where it has none (the value is arbitrary there)."""
        places = {name: rows[:, i] for i, name in self._columns}
        values: dict[str, tuple[Array, Array]] = {}
        for name, (value, absent, undefined) in self._totals.items():
            try:
                holes = evaluate_arrays(self._nodes, self._nodes.any(absent, undefined), places)
                computed = evaluate_arrays(self._nodes, value, places), holes
            except BadInput:  # a value that cannot be computed for some rows may still be needed for others
                computed = self._one_by_one(self._exprs[name], rows, places)
            values[name] = tuple(np.broadcast_to(array, len(rows)) for array in computed)  # type: ignore[assignment]
        return values

    def _one_by_one(self, expr: Expr, rows: Array, places: Mapping[str, Array]) -> tuple[Array, Array]:
        listed = {
            name: [v if p else None for v, p in zip(own.values[at].tolist(), own.present[at].tolist(), strict=True)]
            for name, at in places.items()
            for own in (self._nodes.variables[name],)
        }
        results = np.empty(len(rows), dtype=object)
        for place in range(len(rows)):
            config: dict[str, Any] = {
                name: column[place] for name, column in listed.items() if column[place] is not None
            }
            results[place] = evaluate(expr, {**self._nodes.fixed, **config})
        holes = np.array([value is ABSENT or value is UNDEFINED for value in results], dtype=np.bool_)
        results[holes] = 0
        return results, holes
