"""Random expressions, and their meaning: evaluated one element at a time in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import reduce
from itertools import accumulate, product
from typing import Any

import numpy as np
from hypothesis import reject
from hypothesis import strategies as st

import deepgen as dg
from deepgen.operators.expr.elements import Element, Operand, Position
from deepgen.operators.expr.index import Index, Iter, Quotient
from deepgen.operators.expr.nodes import (
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
    Unary,
    Value,
)
from deepgen.vocabulary.dtypes import DTYPES, narrow, widen
from deepgen.vocabulary.errors import BadInput

UNARY = {
    "neg": lambda x: -x,
    "abs": abs,
    "exp": lambda x: math.exp(x) if x < 700 else math.inf,
    "log": math.log,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "tanh": math.tanh,
    "erf": math.erf,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)) if x > -700 else 0.0,
    "sin": math.sin,
    "cos": math.cos,
    "floor": math.floor,
}
BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a // b if isinstance(a, int) else a / b,
    "max": max,
    "min": min,
    "pow": lambda a, b: a**b,
}
REDUCE = {"sum": BINARY["add"], "prod": BINARY["mul"], "max": max, "min": min}
COMPARE = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}


Round = Callable[[Any, str], Any]


def exactly(value: Any, dtype: str) -> Any:
    """In Python numbers."""
    return value


def rounded(value: Any, dtype: str) -> Any:
    """Like a kernel that rounds each operation to the format of the expression."""
    if dtype in ("f64", "bool") or isinstance(value, int):
        return value
    of = DTYPES[dtype]
    with np.errstate(all="ignore"):
        return widen(narrow(np.array(value, np.float64), of), of).item()


def naive(expression: Expression, inputs: Mapping[str, Any], to: Round = exactly, *, back: bool = False) -> Any:
    """Evaluate every stage with loops. `inputs`: float64 or int64 arrays. `back`: reductions start with their last
    term.
    """
    held: dict[str, Any] = dict(inputs)
    for stage in expression.stages:
        held[stage.name] = _stage(stage, held, to, back)
    return {name: held[name] for name in expression.outputs}


def _stage(stage: Stage, held: Mapping[str, Any], to: Round, back: bool) -> Any:
    kind = np.int64 if stage.dtype.startswith(("i", "u")) else np.float64
    result = np.zeros(stage.shape, kind)
    names = [axis.name for axis in (*stage.axes, *stage.reduced)]

    def join(a: Any, b: Any) -> Any:
        return to(REDUCE[str(stage.reduce)](a, b), stage.dtype)

    for place in product(*map(range, stage.shape)):
        terms = [
            _value(stage.value, dict(zip(names, (*place, *over), strict=True)), held, to)
            for over in product(*(range(axis.extent) for axis in stage.reduced))
        ]
        result[place] = reduce(join, reversed(terms) if back else terms) if stage.reduced else terms[0]
    if stage.scan is not None:
        along = [axis.name for axis in stage.axes].index(stage.scan)
        moved = np.moveaxis(result, along, -1)
        for place in product(*map(range, moved.shape[:-1])):
            moved[place] = list(accumulate(moved[place].tolist(), join))
    return result


def _value(value: Value, at: Mapping[str, int], held: Mapping[str, Any], to: Round) -> Any:
    def of(node: Value) -> Any:
        return _value(node, at, held, to)

    if isinstance(value, Const):
        return to(value.value, value.dtype)
    if isinstance(value, Place):
        return _index(value.index, at)
    if isinstance(value, Read):
        place = tuple(_index(index, at) for index in value.indices)
        assert min(place) >= 0, "a read outside of its tensor"
        return held[value.tensor][place].item()
    if isinstance(value, Cast):
        integer = value.dtype.startswith(("i", "u"))
        return of(value.value) if integer else to(float(of(value.value)), value.dtype)
    if isinstance(value, Unary):
        return to(UNARY[value.op](of(value.value)), value.dtype)
    if isinstance(value, Binary):
        return to(BINARY[value.op](of(value.left), of(value.right)), value.dtype)
    if isinstance(value, Compare):
        return COMPARE[value.op](of(value.left), of(value.right))
    if isinstance(value, Logic):
        left = of(value.left)
        return left and of(value.right) if value.op == "and" else left or of(value.right)
    assert isinstance(value, Select)
    return of(value.then) if of(value.condition) else of(value.otherwise)


def _index(index: Index, at: Mapping[str, int]) -> int:
    total = index.constant
    for atom, times in index.terms:
        if isinstance(atom, Iter):
            total += times * at[atom.name]
        else:
            inner = _index(atom.of, at)
            total += times * (inner // atom.by if isinstance(atom, Quotient) else inner % atom.by)
    return total


@st.composite
def expressions(draw: st.DrawFn, *, dtypes: tuple[str, ...] = ("f32", "f64", "i32"), most: int = 5) -> Expression:
    """Up to three stages over small tensors, in one dtype, from tensors of that or a narrower one.

    Indices have strides, dilation, offsets, guards, remainders and quotients; stages are elementwise, reductions or
    scans. Integers stay far from the limits of i32, and no float grows without bound.
    """
    dtype = draw(st.sampled_from(dtypes))
    narrow = draw(st.sampled_from({"f32": ("f32", "f16", "bf16"), "f64": ("f64",)}.get(dtype, ("i8", "u8"))))
    size = st.integers(1, most)
    operands = [
        dg.tensor(f"T{n}", draw(st.lists(size, min_size=1, max_size=3).map(tuple)), narrow)
        for n in range(draw(st.integers(1, 3)))
    ]
    stages: list[Operand] = []
    for n in range(draw(st.integers(1, 3))):
        # The previous stage is always read, so that none is unused.
        used = [stages[-1]] if stages else []
        used += draw(st.lists(st.sampled_from(operands), min_size=1 - len(used), max_size=2, unique_by=id))
        stages.append(_random_stage(draw, f"S{n}", used, dtype, size))
        operands.append(stages[-1])
    try:
        return dg.expression(stages[-1])
    except BadInput as error:  # with its guards it reads nothing
        assert "reads no tensor" in str(error)
        return reject()


def _random_stage(draw: st.DrawFn, name: str, used: list[Operand], dtype: str, size: Any) -> Operand:
    shape = draw(st.lists(size, min_size=1, max_size=3).map(tuple))
    kind = draw(st.sampled_from(["elementwise", "reduction", "reduction", "scan"]))
    over = [(dg.reduce_axis(f"k{n}", e), e) for n, e in enumerate(draw(st.lists(size, min_size=1, max_size=2)))]
    op = draw(st.sampled_from(["sum", "sum", "max", "min", *(["prod"] if dtype.startswith("f") else [])]))

    def element(*axes: Position) -> Element:
        known = list(zip(axes, shape, strict=True))
        if kind == "scan":
            return _random_value(draw, used, dtype, known)
        if kind == "elementwise":
            return _random_value(draw, used, dtype, known)
        inner = _random_value(draw, used, dtype, [*known, *over])
        made = getattr(dg, op)(inner, *(axis for axis, _ in over))
        return _epilogue(draw, made) if draw(st.booleans()) else made

    if kind == "scan":
        return dg.scan(name, shape, element, axis=draw(st.integers(0, len(shape) - 1)), op=op)
    return dg.compute(name, shape, element)


def _random_value(draw: st.DrawFn, used: list[Operand], dtype: str, axes: list[tuple[Any, int]]) -> Element:
    total = None
    for operand in used:
        one = _random_read(draw, operand, axes).cast(dtype)
        total = one if total is None else _joined(draw, total, one, product_of_floats=not dtype.startswith("i"))
    assert total is not None
    return total


def _joined(draw: st.DrawFn, left: Element, right: Element, *, product_of_floats: bool) -> Element:
    ways = [
        lambda a, b: a + b,
        lambda a, b: a - b * 2,
        lambda a, b: a * b if product_of_floats or a.dtype == "i32" else a + b,
        dg.maximum,
        lambda a, b: dg.where(a < b, a, b + 1),
    ]
    return draw(st.sampled_from(ways))(left, right)


def _epilogue(draw: st.DrawFn, value: Element) -> Element:
    ways = [lambda x: -x, abs, lambda x: dg.maximum(x, 0), lambda x: x + 3]
    if value.dtype.startswith("f"):
        ways += [dg.tanh, dg.sigmoid, lambda x: x / (1 + abs(x)), lambda x: dg.exp(-abs(x)), lambda x: dg.sqrt(abs(x))]
    else:
        ways += [lambda x: x // 3]
    return draw(st.sampled_from(ways))(value)


def _random_read(draw: st.DrawFn, operand: Operand, axes: list[tuple[Any, int]]) -> Element:
    indices, guards = [], []
    for extent in operand.shape:
        index, low, high = 0, 0, 0
        for axis, length in draw(st.lists(st.sampled_from(axes), max_size=2, unique_by=id)):
            times = draw(st.sampled_from([1, 1, 1, 2, 3, -1]))
            index, ends = index + axis * times, (0, times * (length - 1))
            low, high = low + min(ends), high + max(ends)
        shift = draw(st.sampled_from([0, 0, -1, 1, -low]))
        index, low, high = index + shift, low + shift, high + shift
        if low < 0 or high >= extent:
            way = draw(st.sampled_from(["guard", "guard", "wrap", "divide"]))
            if isinstance(index, int):
                index = index % extent
            elif way == "guard":
                guards += [index >= 0] if low < 0 else []
                guards += [index < extent] if high >= extent else []
            elif way == "wrap":
                index = index % extent
            else:
                index = (index - low) // -(-(high - low + 1) // extent)
        indices.append(index)
    if not guards:
        return operand[tuple(indices)]
    holds = reduce(lambda a, b: a & b, guards)
    return dg.where(holds, operand[tuple(indices)], draw(st.sampled_from([0, 0, 1])))
