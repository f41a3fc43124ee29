"""Expressions as readable text, in the grammar that `parse` reads back."""

from __future__ import annotations

from deepgen.space.expr import Expr

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
    """The text and how tightly it binds."""
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
