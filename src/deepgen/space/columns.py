"""Evaluation for many configs at once, by columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from deepgen.space.evaluate import STRICT, evaluate
from deepgen.space.expr import Expr

Objects = npt.NDArray[np.object_]


def evaluate_many(exprs: Mapping[str, Expr], columns: Mapping[str, Objects]) -> dict[str, list[Any]]:
    """The values of some expressions for many configs, given as a column of Python values a knob, None where absent."""
    done: dict[int, Objects] = {}
    return {name: _many(expr, columns, done) for name, expr in exprs.items()}


def _many(expr: Expr, columns: Mapping[str, Objects], done: dict[int, Objects]) -> list[Any]:
    """Operation by operation, each on a whole column, or one by one where some configs have no value."""
    try:
        found: list[Any] = _column(expr, columns, done).tolist()
        return found
    except (_OneByOne, ArithmeticError, LookupError, TypeError, ValueError):
        names = sorted(expr.knobs())
        rows = zip(*(columns[name].tolist() for name in names), strict=True)
        configs = [{n: v for n, v in zip(names, row, strict=True) if v is not None} for row in rows]
        return [evaluate(expr, config) for config in configs]


class _OneByOne(Exception):
    """An expression that is not computed by columns."""


def _column(expr: Expr, columns: Mapping[str, Objects], done: dict[int, Objects]) -> Objects:
    known = done.get(id(expr))
    if known is not None:
        return known
    op = expr.op
    length = len(next(iter(columns.values())))
    if op == "const":
        found = np.empty(length, dtype=object)
        found[:] = [expr.data] * length
    elif op == "knob":
        found = columns[expr.data]
        if None in found.tolist():
            raise _OneByOne
    elif op == "named":
        found = _column(expr.args[0], columns, done)
    elif op in STRICT or op == "where":
        operands = [_column(a, columns, done) for a in expr.args]
        apply = STRICT.get(op, lambda condition, then, otherwise: then if condition else otherwise)
        found = np.frompyfunc(apply, len(operands), 1)(*operands)
    else:
        raise _OneByOne
    done[id(expr)] = found
    return found
