"""Functions of elements: choices, reductions, and what Python has no sign for."""

from __future__ import annotations

from typing import Any

from deepgen.operators.expr.elements import Element, ReduceAxis, binary, combined, pair, unary
from deepgen.operators.expr.facts import Facts
from deepgen.operators.expr.lift import LiftedReduction
from deepgen.operators.expr.nodes import BOOL, Place, Read, Select, children
from deepgen.vocabulary.errors import BadInput


def where(condition: Element, then: Any, otherwise: Any) -> Element:
    """One of two values. The other is not read: guard reads outside of a tensor by it, for padding."""
    if not isinstance(condition, Element) or condition.dtype != BOOL:
        raise BadInput("dg.where: its first argument is not a condition", allowed="a comparison, such as i >= 1")
    left, right = pair(then, otherwise, "dg.where")
    if BOOL in (left.dtype, right.dtype):
        raise BadInput("dg.where chooses between conditions", allowed="numbers")
    decided = Facts({}).decided(condition.value) if not _depends(condition.value) else None
    if decided is not None:
        return left if decided else right
    return combined(Select(condition.value, left.value, right.value), condition, left, right)


def sum(value: Element, *axes: ReduceAxis) -> Element:
    """The sum over axes."""
    return _reduction("sum", value, axes)


def prod(value: Element, *axes: ReduceAxis) -> Element:
    """The product over axes."""
    return _reduction("prod", value, axes)


def max(value: Element, *axes: ReduceAxis) -> Element:
    """The greatest value over axes; of two numbers: dg.maximum."""
    return _reduction("max", value, axes)


def min(value: Element, *axes: ReduceAxis) -> Element:
    """The least value over axes; of two numbers: dg.minimum."""
    return _reduction("min", value, axes)


def maximum(left: Any, right: Any) -> Element:
    return binary("max", left, right)


def minimum(left: Any, right: Any) -> Element:
    return binary("min", left, right)


def abs(value: Element) -> Element:
    return unary("abs", value)


def exp(value: Element) -> Element:
    return unary("exp", value)


def log(value: Element) -> Element:
    return unary("log", value)


def sqrt(value: Element) -> Element:
    return unary("sqrt", value)


def rsqrt(value: Element) -> Element:
    return unary("rsqrt", value)


def tanh(value: Element) -> Element:
    return unary("tanh", value)


def erf(value: Element) -> Element:
    return unary("erf", value)


def sigmoid(value: Element) -> Element:
    return unary("sigmoid", value)


def sin(value: Element) -> Element:
    return unary("sin", value)


def cos(value: Element) -> Element:
    return unary("cos", value)


def floor(value: Element) -> Element:
    return unary("floor", value)


def _reduction(op: str, value: Any, axes: tuple[Any, ...]) -> Element:
    if not isinstance(value, Element) or value.dtype == BOOL:
        raise BadInput(f"dg.{op} of {value!r}", allowed="an element; dg.maximum and dg.minimum are of two numbers")
    if not axes or not all(isinstance(axis, ReduceAxis) for axis in axes):
        raise BadInput(
            f"dg.{op} over {', '.join(map(repr, axes)) or 'nothing'}", allowed="axes that dg.reduce_axis made"
        )
    over = tuple(axis.axis for axis in axes)
    if len({axis.name for axis in over}) < len(over):
        raise BadInput(f"dg.{op} over one axis twice", allowed="each once")
    return combined(LiftedReduction(op, value.value, over), value)


def _depends(condition: Any) -> bool:
    """Whether a condition depends on anything: an axis, an element, a reduction."""
    if isinstance(condition, Place):
        return bool(condition.index.terms)
    return isinstance(condition, (Read, LiftedReduction)) or any(map(_depends, children(condition)))
