"""Validates expressions: names, ranks, dtypes, and indices that stay inside their tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import isnan, prod
from typing import TypeAlias

from deepgen.operators.expr.facts import Facts, of_axes
from deepgen.operators.expr.index import shown
from deepgen.operators.expr.nodes import (
    BINARY,
    BOOL,
    COMPARE,
    LOGIC,
    PLACE_OF,
    PLACED,
    REDUCE,
    UNARY,
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
    reads,
)
from deepgen.vocabulary.dtypes import DTYPES, DType, dtype
from deepgen.vocabulary.errors import BadInput

MOST_NODES = 4096  # of one element's value; shared nodes count each time they are used
MOST_DEPTH = 200
MOST_DIMENSIONS = 8
MOST_STAGES = 64
MOST_ELEMENTS = 1 << 48  # of a tensor, and of the points of a stage
FORMATS = tuple(name for name in DTYPES if name != "tf32")  # tf32 is a way to multiply f32, not a storage format
OF_INTEGERS = ("neg", "abs")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")

Defined: TypeAlias = "Mapping[str, TensorSpec | Stage]"


def check(expression: Expression) -> Expression:
    """The expression itself. Raises BadInput."""
    if not expression.outputs:
        raise BadInput(f"{expression.name} has no output", allowed="one or more")
    name(expression.name, "the expression")
    if not expression.tensors:
        raise BadInput(f"{expression.name} reads no tensor", allowed="one or more")
    if len(expression.stages) > MOST_STAGES:
        raise BadInput(f"{expression.name} has {len(expression.stages)} stages", allowed=f"at most {MOST_STAGES}")
    defined: dict[str, TensorSpec | Stage] = {}
    read: set[str] = set()
    for tensor in expression.tensors:
        check_tensor(tensor)
        defined[_new(tensor.name, defined)] = tensor
    for stage in expression.stages:
        check_stage(stage, defined)
        defined[_new(stage.name, defined)] = stage
        read |= {one.tensor for one in reads(stage.value)}
    stages = [stage.name for stage in expression.stages]
    for place, output in enumerate(expression.outputs):
        if output not in stages or output in expression.outputs[:place]:
            raise BadInput(
                f"{expression.name}: {output} cannot be an output", allowed="each output must be a separate stage"
            )
    for one in defined:
        if one not in read and one not in expression.outputs:
            raise BadInput(f"{expression.name}: nothing reads {one}", allowed="omit it")
    return expression


def check_tensor(tensor: TensorSpec) -> None:
    name(tensor.name, "a tensor")
    check_format(tensor.dtype, tensor.name)
    _check_shape(tensor.name, tensor.shape)


def check_stage(stage: Stage, defined: Defined) -> None:
    """Raises BadInput if the stage cannot be computed from what is defined before it."""
    name(stage.name, "a stage")
    _check_shape(stage.name, stage.shape)
    axes = (*stage.axes, *stage.reduced)
    names = [axis.name for axis in axes]
    if len(set(names)) < len(names) or not all(map(_NAME.fullmatch, names)):
        raise BadInput(f"{stage.name}: its axes are {', '.join(names)}", allowed="give each its own name")
    _check_shape(stage.name, [axis.extent for axis in axes], most=2 * MOST_DIMENSIONS)
    _check_reduction(stage)
    if depth(stage.value) > MOST_DEPTH or size(stage.value) > MOST_NODES:
        raise too_long(stage.name)
    _check_value(stage.value, stage.name, of_axes(axes), defined)
    if stage.dtype == BOOL:
        raise BadInput(f"{stage.name} is a condition", allowed="a number, such as dg.where(condition, 1.0, 0.0)")


def name(text: object, what: str) -> str:
    if not isinstance(text, str) or not _NAME.fullmatch(text):
        raise BadInput(f"{text!r} cannot name {what}", allowed="letters, digits and _, not a digit first, at most 64")
    return text


def check_format(name: object, where: str) -> DType:
    if name not in FORMATS:
        raise BadInput(f"{where}: dtype {name!r}", allowed="one of " + ", ".join(FORMATS))
    return dtype(str(name))


def too_long(where: str) -> BadInput:
    return BadInput(
        f"{where}: one element takes too many operations", allowed="split it into several stages with dg.compute"
    )


def size(value: Value) -> int:
    """The number of nodes of a value, at most one over the limit; shared parts count each time."""
    total, left = 0, [value]
    while left and total <= MOST_NODES:
        total += 1
        left.extend(children(left.pop()))
    return total


def depth(value: Value) -> int:
    level, levels = [value], 0
    while level and levels <= MOST_DEPTH and len(level) <= MOST_NODES:
        level, levels = [child for one in level for child in children(one)], levels + 1
    return levels


def check_unary(op: str, of: str, where: str) -> None:
    if op == PLACE_OF and of == "i64":
        return
    if op not in UNARY:
        raise BadInput(f"{where}: unknown operation {op!r}", allowed="one of " + ", ".join(UNARY))
    if of == BOOL or (dtype(of).integer and op not in OF_INTEGERS):
        raise BadInput(f"{where}: {op} of {of}", allowed="a float: cast it first")


def check_binary(op: str, left: str, right: str, where: str) -> None:
    if op in PLACED and left == "i64" and not dtype(right).integer:
        return
    if op not in BINARY:
        raise BadInput(f"{where}: unknown operation {op!r}", allowed="one of " + ", ".join(BINARY))
    check_same(left, right, where, op)
    if left == BOOL or (op == "pow" and dtype(left).integer):
        raise BadInput(f"{where}: {op} of {left}", allowed="floats: cast them first")


def check_same(left: str, right: str, where: str, what: str) -> None:
    if left != right:
        raise BadInput(f"{where}: {what} of {left} and {right}", allowed="one dtype: cast one of them")


def check_cast(of: str, to: str, where: str) -> None:
    check_format(to, where)
    if of == BOOL:
        raise BadInput(f"{where}: a condition as {to}", allowed="dg.where(condition, 1, 0) of that dtype")
    if dtype(to).integer and not dtype(of).integer:
        what = f"{where}: a cast from {of} to {to}"
        raise BadInput(
            what, allowed="floats cannot be cast to integers: near a boundary either neighbour would be correct"
        )


def check_constant(value: object, of: str, where: str) -> None:
    integer = check_format(of, where).integer
    if integer and not (type(value) is int and dtype(of).whole[0] <= value <= dtype(of).whole[1]):
        raise BadInput(f"{where}: {value!r} as {of}", allowed="an integer that the dtype can represent")
    if not integer and (type(value) is not float or isnan(value)):
        raise BadInput(f"{where}: {value!r} as {of}", allowed="a number")


def _new(name: str, defined: Defined) -> str:
    if name in defined:
        raise BadInput(f"two tensors or stages are named {name}", allowed="give each its own name")
    return name


def _check_shape(of: str, shape: Sequence[object], most: int = MOST_DIMENSIONS) -> None:
    text = "x".join(map(str, shape))
    if not 1 <= len(shape) <= most:
        raise BadInput(f"{of} has {len(shape)} dimensions", allowed=f"1 to {most}")
    sizes = [one for one in shape if type(one) is int and one >= 1]
    if len(sizes) < len(shape) or prod(sizes) > MOST_ELEMENTS:
        raise BadInput(f"{of} has the shape {text}", allowed="positive integers whose product is at most 2**48")


def _check_reduction(stage: Stage) -> None:
    if stage.reduce not in (None, *REDUCE):
        raise BadInput(f"{stage.name}: unknown reduction {stage.reduce!r}", allowed="one of " + ", ".join(REDUCE))
    axes = [axis.name for axis in stage.axes]
    if stage.scan is not None and (stage.reduced or stage.scan not in axes):
        raise BadInput(
            f"{stage.name}: a scan along {stage.scan}", allowed="a scan runs along exactly one of the stage's own axes"
        )
    if (stage.reduce is not None) != (bool(stage.reduced) or stage.scan is not None):
        raise BadInput(
            f"{stage.name}: a reduction without axes, or reduction axes without a reduction",
            allowed="give both, or neither",
        )


def _check_value(value: Value, where: str, facts: Facts, defined: Defined) -> None:
    if isinstance(value, Select):
        _check_value(value.condition, where, facts, defined)
        _check_value(value.then, where, facts.assuming(value.condition), defined)
        _check_value(value.otherwise, where, facts.assuming(value.condition, holds=False), defined)
    else:
        for child in children(value):
            _check_value(child, where, facts, defined)
    _check_node(value, where, facts, defined)


def _check_node(value: Value, where: str, facts: Facts, defined: Defined) -> None:
    if isinstance(value, Const):
        check_constant(value.value, value.dtype, where)
    elif isinstance(value, Place):
        _check_iterators(value.index.iterators, where, facts)
        if value.dtype != "i64":
            raise BadInput(f"{where}: an index as {value.dtype}", allowed="i64, and a cast of it")
    elif isinstance(value, Read):
        _check_read(value, where, facts, defined)
    elif isinstance(value, Cast):
        check_cast(value.value.dtype, value.dtype, where)
    elif isinstance(value, Unary):
        check_unary(value.op, value.value.dtype, where)
    elif isinstance(value, Binary):
        check_binary(value.op, value.left.dtype, value.right.dtype, where)
    elif isinstance(value, Compare):
        if value.op not in COMPARE or value.left.dtype == BOOL:
            raise BadInput(f"{where}: {value.op} of {value.left.dtype}", allowed="one of " + ", ".join(COMPARE))
        check_same(value.left.dtype, value.right.dtype, where, value.op)
    elif isinstance(value, Logic):
        if value.op not in LOGIC or {value.left.dtype, value.right.dtype} != {BOOL}:
            raise BadInput(f"{where}: {value.op} of {value.left.dtype} and {value.right.dtype}", allowed="conditions")
    elif isinstance(value, Select):
        if value.condition.dtype != BOOL or value.then.dtype == BOOL:
            raise BadInput(f"{where}: a choice by {value.condition.dtype}", allowed="by a condition, between numbers")
        check_same(value.then.dtype, value.otherwise.dtype, where, "a choice")


def _check_read(read: Read, where: str, facts: Facts, defined: Defined) -> None:
    if read.tensor not in defined:
        raise BadInput(f"{where} reads {read.tensor}", allowed="a tensor, or a stage before it")
    of = defined[read.tensor]
    check_rank(read.tensor, of.shape, len(read.indices), where)
    if read.dtype != of.dtype:
        raise BadInput(f"{where} reads {read.tensor} as {read.dtype}", allowed=of.dtype)
    for place, (index, extent) in enumerate(zip(read.indices, of.shape, strict=True)):
        _check_iterators(index.iterators, where, facts)
        low, high = facts.bounds(index)
        if low <= high and not facts.never and (low < 0 or high >= extent):
            words = f"{where}: index {place} of {read.tensor}, {index}, is from {low} to {high}"
            raise BadInput(words, allowed=f"0 to {extent - 1}; dg.where can guard it")


def check_rank(of: str, shape: Sequence[int], indices: int, where: str) -> None:
    if indices != len(shape):
        sizes = "x".join(map(str, shape))
        raise BadInput(
            f"{where}: {of} is read with {indices} indices", allowed=f"{len(shape)}, one a dimension of {sizes}"
        )


def _check_iterators(names: frozenset[str], where: str, facts: Facts) -> None:
    for one in sorted(names):
        if one not in facts.ranges:
            what = f"{where}: axis {shown(one)} is unknown here"
            raise BadInput(what, allowed="only its own axes, and inside a reduction the reduced ones")


def axis(name: str, extent: object, where: str) -> Axis:
    """An axis, after its extent is checked."""
    if isinstance(extent, bool) or not hasattr(extent, "__index__") or extent.__index__() < 1:
        raise BadInput(f"{where}: the axis {shown(name)} has the extent {extent!r}", allowed="an integer of at least 1")
    return Axis(name, extent.__index__())
