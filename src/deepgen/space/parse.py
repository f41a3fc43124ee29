"""Parses text to expressions and to lists of values, and writes expressions as text in the same grammar.

The grammar is a whitelist of Python's. No code is ever executed.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from deepgen.space.evaluate import power
from deepgen.space.expr import (
    Expr,
    Value,
    all_of,
    any_of,
    ceil_div,
    check_value,
    const,
    divides,
    implies,
    knob_ref,
    maximum,
    minimum,
    product,
    table,
    where,
)
from deepgen.vocabulary import BadInput

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitAnd: all_of,
    ast.BitOr: any_of,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: dict[str, Callable[..., Expr]] = {
    "min": minimum,
    "max": maximum,
    "minimum": minimum,
    "maximum": maximum,
    "abs": abs,
    "divides": divides,
    "ceil_div": ceil_div,
    "product": lambda *factors: product(factors),
    "where": where,
    "implies": implies,
    "all_of": all_of,
    "any_of": any_of,
    "not_": lambda x: ~x,
    "present": lambda x: x.present(),
    "position": lambda sequence, element: sequence.position(element),
    "item": lambda sequence, place: sequence[place],
}
_MOST_VALUES = 1_000_000
_LONGEST = 100_000  # characters of a text; Python's parser takes some 500 bytes for each of `[],[],[]`


def parse(text: str, named: Mapping[str, Expr] | None = None) -> Expr:
    """Parse an expression from text such as `32 <= bx * by <= 1024 or not pad`; `named` has derived values by name."""
    return _Reader(text, named or {}).expression(_tree(text))


def parse_values(text: str) -> list[Value]:
    """Parse the values of a knob from text such as `[2**i for i in range(6)] + list(range(32, 65, 32))`."""
    result = _constant(_tree(text).body, {}, text)
    if not isinstance(result, list):
        raise BadInput(f"'{text}' is not a list of values", allowed="such as [1, 2, 4] or [2**i for i in range(6)]")
    return [check_value(tuple(v) if isinstance(v, list) else v) for v in result]


def _tree(text: str) -> ast.Expression:
    if len(text) > _LONGEST:
        raise BadInput(f"'{text[:20]}...' has {len(text)} characters", allowed=f"up to {_LONGEST} in an expression")
    try:
        return ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadInput(f"'{text}' is not an expression: {getattr(error, 'msg', error)}") from error


def _refuse(node: ast.AST, text: str) -> BadInput:
    return BadInput(
        f"'{ast.unparse(node)}' in '{text}' is not allowed",
        allowed="numbers, text, knobs, + - * / // % **, comparisons, and or not, in, x if c else y, and the functions "
        + ", ".join(sorted(_FUNCTIONS)),
    )


class _Reader:
    """Reads one text, which it keeps for error messages."""

    def __init__(self, text: str, named: Mapping[str, Expr]) -> None:
        self.text, self.named = text, named

    def expression(self, tree: ast.Expression) -> Expr:
        return self.read(tree.body)

    def read(self, node: ast.expr) -> Expr:
        if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float, str)):
            return const(node.value)
        if isinstance(node, ast.Name):
            return self.named[node.id] if node.id in self.named else knob_ref(node.id)
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return _BINARY[type(node.op)](self.read(node.left), self.read(node.right))  # type: ignore[no-any-return]
        if isinstance(node, ast.BoolOp):
            join = all_of if isinstance(node.op, ast.And) else any_of
            return join(*(self.read(v) for v in node.values))
        if isinstance(node, ast.UnaryOp):
            return self._unary(node)
        if isinstance(node, ast.Compare):
            return self._compare(node)
        if isinstance(node, ast.IfExp):
            return where(self.read(node.test), self.read(node.body), self.read(node.orelse))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            return self._call(node, node.func.id)
        if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice):
            return self.read(node.value)[self.read(node.slice)]
        if isinstance(node, ast.Tuple):
            return const(tuple(_constant(e, {}, self.text) for e in node.elts))
        raise _refuse(node, self.text)

    def _unary(self, node: ast.UnaryOp) -> Expr:
        inner = self.read(node.operand)
        if isinstance(node.op, ast.USub):
            return -inner
        if isinstance(node.op, ast.UAdd):
            return inner
        return ~inner

    def _compare(self, node: ast.Compare) -> Expr:
        parts: list[Expr] = []
        left = node.left
        for op, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(op, (ast.In, ast.NotIn)):
                inside = self.read(left).isin(_values(_constant(right, {}, self.text), right, self.text))
                parts.append(inside if isinstance(op, ast.In) else ~inside)
            elif type(op) in _COMPARISONS:
                parts.append(_COMPARISONS[type(op)](self.read(left), self.read(right)))
            else:
                raise _refuse(node, self.text)
            left = right
        return all_of(*parts)

    def _call(self, node: ast.Call, name: str) -> Expr:
        if name == "table":
            return self._table(node)
        if name not in _FUNCTIONS:
            raise _refuse(node, self.text)
        try:
            return _FUNCTIONS[name](*(self.read(a) for a in node.args))
        except TypeError as error:
            raise BadInput(f"'{ast.unparse(node)}' in '{self.text}' has the wrong number of operands") from error

    def _table(self, node: ast.Call) -> Expr:
        if len(node.args) not in (2, 3) or not isinstance(node.args[1], ast.Dict):
            raise BadInput(f"'{ast.unparse(node)}' is not a look-up", allowed="table(index, {key: value}, default)")
        index, entries = node.args[0], node.args[1]
        places: Any = [self.read(i) for i in index.elts] if isinstance(index, ast.List) else self.read(index)
        pairs = {
            _constant(k, {}, self.text): _constant(v, {}, self.text)
            for k, v in zip(entries.keys, entries.values, strict=True)
            if k is not None
        }
        default = _constant(node.args[2], {}, self.text) if len(node.args) == 3 else None
        return table(places, pairs, default)


def _values(result: Any, node: ast.expr, text: str) -> list[Value]:
    if not isinstance(result, (list, tuple)):
        raise _refuse(node, text)
    return [check_value(v) for v in result]


def _constant(node: ast.expr, local: Mapping[str, Any], text: str) -> Any:
    """Evaluate a constant expression without knobs: numbers, text, tuples and lists."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float, str)):
        return node.value
    if isinstance(node, ast.Name) and node.id in local:
        return local[node.id]
    if isinstance(node, ast.List):
        return [_constant(e, local, text) for e in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_constant(e, local, text) for e in node.elts)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(_constant(node.operand, local, text), node, text)
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _arithmetic(node, local, text)
    if isinstance(node, ast.Compare) and all(type(op) in _COMPARISONS for op in node.ops):
        terms = [_constant(e, local, text) for e in (node.left, *node.comparators)]
        return all(_COMPARISONS[type(op)](a, b) for op, a, b in zip(node.ops, terms, terms[1:], strict=False))
    if isinstance(node, ast.ListComp):
        return _bounded(_comprehension(node, 0, dict(local), text), text)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        operands = [_constant(a, local, text) for a in node.args]
        if node.func.id == "range" and 1 <= len(operands) <= 3 and all(type(o) is int for o in operands):
            return _bounded(iter(range(*operands)), text)
        if node.func.id == "list" and len(operands) == 1 and isinstance(operands[0], (list, tuple)):
            return list(operands[0])
    raise _refuse(node, text)


def _number(value: Any, node: ast.expr, text: str) -> Any:
    if not isinstance(value, (int, float)):
        raise _refuse(node, text)
    return value


def _arithmetic(node: ast.BinOp, local: Mapping[str, Any], text: str) -> Any:
    left, right = _constant(node.left, local, text), _constant(node.right, local, text)
    if isinstance(left, list) and isinstance(right, list) and isinstance(node.op, ast.Add):
        return _bounded(iter(left + right), text)
    _number(left, node, text), _number(right, node, text)
    try:
        return power(left, right) if isinstance(node.op, ast.Pow) else _BINARY[type(node.op)](left, right)
    except (ZeroDivisionError, OverflowError) as error:
        raise BadInput(f"'{ast.unparse(node)}' in '{text}' cannot be computed: {error}") from error


def _comprehension(node: ast.ListComp, depth: int, local: dict[str, Any], text: str) -> Iterator[Any]:
    if depth == len(node.generators):
        yield _constant(node.elt, local, text)
        return
    loop = node.generators[depth]
    if not isinstance(loop.target, ast.Name) or loop.is_async:
        raise _refuse(node, text)
    for value in _constant(loop.iter, local, text):
        local[loop.target.id] = value
        if all(_constant(test, local, text) for test in loop.ifs):
            yield from _comprehension(node, depth + 1, local, text)


def _bounded(values: Iterator[Any], text: str) -> list[Any]:
    """Limit the number of values, so that a file cannot exhaust the memory."""
    taken = list(islice(values, _MOST_VALUES + 1))
    if len(taken) > _MOST_VALUES:
        raise BadInput(f"'{text}' has too many values", allowed=f"up to {_MOST_VALUES}")
    return taken


_INFIX = {
    "or": 1,
    "and": 2,
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), 4),
    "+": 5,
    "-": 5,
    **dict.fromkeys(("*", "/", "//", "%"), 6),
    "**": 8,
}
_NOT, _COMPARISON, _UNARY, _POWER, _ATOM = 3, 4, 7, 8, 9
_SHOWN_ROWS = 3


def to_text(expr: Expr) -> str:
    return _write(expr)[0]


def _write(expr: Expr) -> tuple[str, int]:
    """The text, and its operator precedence."""
    op, args = expr.op, expr.args
    if op == "const":
        negative = isinstance(expr.data, (int, float)) and not isinstance(expr.data, bool) and expr.data < 0
        return repr(expr.data), _UNARY if negative else _ATOM
    if op in ("knob", "named"):
        return (expr.data, _ATOM)
    if op == "present":
        return f"present({expr.data})", _ATOM
    if op in _INFIX:
        return _infix(expr)
    if op == "not":
        return f"not {_at(args[0], _NOT)}", _NOT
    if op == "neg":
        return f"-{_at(args[0], _UNARY)}", _UNARY
    if op == "isin":
        return f"{_at(args[0], _COMPARISON + 1)} in {list(expr.data)!r}", _COMPARISON
    if op == "item":
        return f"{_at(args[0], _ATOM)}[{to_text(args[1])}]", _ATOM
    if op == "table":
        return _table(expr), _ATOM
    if op == "points":
        names, rows = expr.data
        shown = ", ".join(repr(r) for r in rows[:_SHOWN_ROWS]) + (", ..." if len(rows) > _SHOWN_ROWS else "")
        return f"({', '.join(names)}) is one of {len(rows)} points: {shown}", _COMPARISON
    return f"{op}({', '.join(to_text(a) for a in args)})", _ATOM


def _at(expr: Expr, least: int) -> str:
    text, binding = _write(expr)
    return text if binding >= least else f"({text})"


def _infix(expr: Expr) -> tuple[str, int]:
    binding = _INFIX[expr.op]
    if expr.op == "**":
        left, *rest = (_at(expr.args[0], _POWER + 1), _at(expr.args[1], _UNARY))
    elif expr.op in ("and", "or"):
        left, *rest = (_at(a, binding + 1) for a in expr.args)
    else:
        comparison = binding == _COMPARISON
        left, *rest = (_at(expr.args[0], binding + comparison), _at(expr.args[1], binding + 1))
    return f" {expr.op} ".join([left, *rest]), binding


def _table(expr: Expr) -> str:
    pairs, default, many = expr.data
    index = ", ".join(to_text(a) for a in expr.args)
    entries = ", ".join(f"{k!r}: {v!r}" for k, v in pairs)
    tail = "" if default is None else f", {default!r}"
    return f"table({f'[{index}]' if many else index}, {{{entries}}}{tail})"
