"""How expressions are written in Python: tensors, axes, elements, and stages that are computed from them.

    A, B = dg.tensor("A", (M, K), "i8"), dg.tensor("B", (N, K), "i8")
    k = dg.reduce_axis("k", K)
    C = dg.compute("C", (M, N), lambda i, j: dg.sum(A[i, k].cast("i32") * B[j, k].cast("i32"), k))

Elements of one operation have one dtype; a plain number takes that of the other operand. Axes get names of their own
(i0, i1, ... and r0, r1, ... for those of a reduction), so that the same computation is the same data, whatever the
parameters of a lambda are called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from deepgen.operators.expr import check
from deepgen.operators.expr.elements import Element, Operand, Position, ReduceAxis, whole
from deepgen.operators.expr.index import iterator
from deepgen.operators.expr.layouts import packed_layout
from deepgen.operators.expr.lift import stages_of
from deepgen.operators.expr.nodes import REDUCE, Axis, Expression, Stage, TensorSpec, Value, reads
from deepgen.vocabulary.dtypes import our_name
from deepgen.vocabulary.errors import BadInput

_serial = count()  # iterators of different stages never have one name, so that one that is used elsewhere is noticed


def tensor(name: str, shape: Sequence[int], dtype: str = "f32", layout: str | None = None) -> Operand:
    """A tensor that a call gives: dense, row by row, or packed: `layout="OIhw4i16o4i"`.

    A packed one is read by the indices of `shape`, and the call gives an array of more dimensions. A stage of its own
    unpacks it, `name` with `_plain`.
    """
    if layout is not None:
        return _unpacked(name, _shape(name, shape), dtype, layout)
    spec = TensorSpec(name, _shape(name, shape), our_name(dtype))
    check.check_tensor(spec)
    return Operand(spec, {})


def _unpacked(name: str, shape: tuple[int, ...], dtype: str, text: str) -> Operand:
    layout = packed_layout(text)
    if len(shape) != layout.dimensions:
        raise BadInput(f"{name} has the shape {shape} and the layout {text}", allowed=f"{layout.dimensions} dimensions")
    check.check_tensor(TensorSpec(name, shape, our_name(dtype)))
    stored = tensor(name, layout.shape(shape), dtype)
    plain = compute(f"{name}_plain", shape, lambda *at: stored[layout.places(at)])
    plain.stored = stored
    return plain


def reduce_axis(name: str, extent: int) -> ReduceAxis:
    """An axis from 0 to extent - 1 for sum, prod, max and min to run over."""
    check.name(name, "an axis")
    return ReduceAxis(check.axis(f"{name}#{next(_serial)}", extent, name))


def compute(name: str, shape: Sequence[int], value: Callable[..., Any]) -> Operand:
    """A stage: `value` is called once, with one index for each dimension, and tells what the element there is."""
    axes, element = _called(name, shape, value)
    return _stage(name, axes, element.value, element.sources)


def scan(name: str, shape: Sequence[int], value: Callable[..., Any], *, axis: int, op: str = "sum") -> Operand:
    """A stage whose elements are the running sum (prod, max, min) along one dimension, each with its own value."""
    axes, element = _called(name, shape, value)
    if isinstance(axis, bool) or not isinstance(axis, int) or not -len(axes) <= axis < len(axes):
        raise BadInput(f"{name}: a scan along dimension {axis!r}", allowed=f"0 to {len(axes) - 1}")
    if op not in REDUCE:
        raise BadInput(f"{name}: unknown reduction {op!r}", allowed="one of " + ", ".join(REDUCE))
    return _stage(name, axes, element.value, element.sources, scan=(op, axis % len(axes)))


def expression(*outputs: Operand, name: str | None = None, inputs: Sequence[Operand] | None = None) -> Expression:
    """The expression whose results these are. Tensors are in the order in which they are read first, or as told."""
    for one in (*outputs, *(inputs or ())):
        if not isinstance(one, Operand):
            raise BadInput(f"{one!r} is not a tensor", allowed="what dg.compute, dg.scan and dg.tensor give")
    tensors: dict[str, TensorSpec] = {}
    stages: dict[str, Stage] = {}
    seen: dict[str, Operand] = {}
    for output in outputs:
        _collect(output, seen, tensors, stages)
    order = list(tensors.values())
    if inputs is not None:
        listed = [one.stored.definition if one.stored else one.definition for one in inputs]
        if sorted(one.name for one in listed) != sorted(tensors) or any(tensors[one.name] != one for one in listed):
            raise BadInput(
                f"the inputs are told as {', '.join(one.name for one in listed)}", allowed=", ".join(tensors)
            )
        order = [tensors[one.name] for one in listed]
    results = tuple(one.name for one in outputs)
    return check.check(Expression(name or "_".join(results), tuple(order), tuple(stages.values()), results))


def _called(name: str, shape: Sequence[int], value: Callable[..., Any]) -> tuple[tuple[Axis, ...], Element]:
    check.name(name, "a stage")
    axes = tuple(Axis(f"i{n}#{next(_serial)}", size) for n, size in enumerate(_shape(name, shape)))
    try:
        element = value(*(Position(iterator(axis.name)) for axis in axes))
    except TypeError as error:
        raise BadInput(f"{name}: {error}", allowed=f"a function of {len(axes)} indices") from error
    if not isinstance(element, Element):
        raise BadInput(f"{name}: its element is {element!r}", allowed="made of elements of tensors, such as A[i, j]")
    return axes, element


def _stage(
    name: str,
    axes: tuple[Axis, ...],
    value: Value,
    sources: Mapping[str, Operand],
    scan: tuple[str, int] | None = None,
) -> Operand:
    stages = stages_of(name, axes, value, frozenset(sources), scan)
    defined = {one.name: one.definition for one in sources.values()}
    for stage in stages:
        if stage.name in defined:
            raise BadInput(f"{name} reads a tensor or stage of the same name", allowed="a name each")
        check.check_stage(stage, defined)
        defined[stage.name] = stage
    read = [one.tensor for stage in stages for one in reads(stage.value)]
    return Operand(stages[-1], {one: sources[one] for one in dict.fromkeys(read) if one in sources}, stages[:-1])


def _collect(one: Operand, seen: dict[str, Operand], tensors: dict[str, TensorSpec], stages: dict[str, Stage]) -> None:
    """What an operand is made of, in the order in which it is read first."""
    if seen.setdefault(one.name, one) is not one:
        raise BadInput(f"two tensors or stages are named {one.name}", allowed="a name each")
    if one.name in tensors or one.name in stages:
        return
    for before in one.before.values():
        _collect(before, seen, tensors, stages)
    if isinstance(one.definition, TensorSpec):
        tensors[one.name] = one.definition
        return
    for stage in (*one.lifted, one.definition):
        if stage.name in stages or stage.name in tensors:
            raise BadInput(f"two tensors or stages are named {stage.name}", allowed="a name each")
        stages[stage.name] = stage


def _shape(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    if isinstance(shape, (str, bytes)) or not isinstance(shape, Sequence):
        raise BadInput(f"{name} has the shape {shape!r}", allowed="a tuple of whole numbers")
    return tuple(whole(size) for size in shape)
