"""The Python API for expressions: tensors, axes, elements, and the stages computed from them.

    A, B = dg.tensor("A", (M, K), "i8"), dg.tensor("B", (N, K), "i8")
    k = dg.reduce_axis("k", K)
    C = dg.compute("C", (M, N), lambda i, j: dg.sum(A[i, k].cast("i32") * B[j, k].cast("i32"), k))

Elements of one operation have one dtype; a plain number takes that of the other operand. Axes get names of their own
(i0, i1, ... and r0, r1, ... for those of a reduction), so that the same computation is the same data, whatever the
parameters of a lambda are called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from deepgen.operators.expr import check, facts
from deepgen.operators.expr.elements import Element, Operand, Position, ReduceAxis, binary, combined, pair, unary, whole
from deepgen.operators.expr.facts import Facts
from deepgen.operators.expr.index import Index, iterator
from deepgen.operators.expr.layouts import packed_layout
from deepgen.operators.expr.nodes import (
    BOOL,
    REDUCE,
    Axis,
    Expression,
    Place,
    Read,
    Select,
    Stage,
    TensorSpec,
    Value,
    children,
    reads,
    substituted,
    with_children,
)
from deepgen.vocabulary.dtypes import our_name
from deepgen.vocabulary.errors import BadInput

_serial = count()  # makes the names of iterators of different stages unique, so that use in another stage is detected


def tensor(name: str, shape: Sequence[int], dtype: str = "f32", layout: str | None = None) -> Operand:
    """An input tensor: dense and row-major, or packed: `layout="OIhw4i16o4i"`.

    A packed one is indexed as `shape`, but calls pass an array with more dimensions. A separate stage unpacks it:
    `name` with `_plain`.
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
    """Defines a stage: `value` is called once, with one index for each dimension, and returns the element there."""
    axes, element = _called(name, shape, value)
    return _stage(name, axes, element.value, element.sources)


def scan(name: str, shape: Sequence[int], value: Callable[..., Any], *, axis: int, op: str = "sum") -> Operand:
    """Defines a stage with the inclusive running sum (prod, max, min) along one dimension."""
    axes, element = _called(name, shape, value)
    if isinstance(axis, bool) or not isinstance(axis, int) or not -len(axes) <= axis < len(axes):
        raise BadInput(f"{name}: a scan along dimension {axis!r}", allowed=f"0 to {len(axes) - 1}")
    if op not in REDUCE:
        raise BadInput(f"{name}: unknown reduction {op!r}", allowed="one of " + ", ".join(REDUCE))
    return _stage(name, axes, element.value, element.sources, scan=(op, axis % len(axes)))


def expression(*outputs: Operand, name: str | None = None, inputs: Sequence[Operand] | None = None) -> Expression:
    """The expression with these results. Tensors are in the order of their first read, or as in `inputs`."""
    for one in (*outputs, *(inputs or ())):
        if not isinstance(one, Operand):
            raise BadInput(f"{one!r} is not a tensor", allowed="pass what dg.compute, dg.scan or dg.tensor returned")
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
                f"the inputs are given as {', '.join(one.name for one in listed)}", allowed=", ".join(tensors)
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
            raise BadInput(f"{name} reads a tensor or stage of the same name", allowed="give each its own name")
        check.check_stage(stage, defined)
        defined[stage.name] = stage
    read = [one.tensor for stage in stages for one in reads(stage.value)]
    return Operand(stages[-1], {one: sources[one] for one in dict.fromkeys(read) if one in sources}, stages[:-1])


def _collect(one: Operand, seen: dict[str, Operand], tensors: dict[str, TensorSpec], stages: dict[str, Stage]) -> None:
    """Collects the tensors and stages that an operand depends on, in the order of their first read."""
    if seen.setdefault(one.name, one) is not one:
        raise BadInput(f"two tensors or stages are named {one.name}", allowed="give each its own name")
    if one.name in tensors or one.name in stages:
        return
    for before in one.before.values():
        _collect(before, seen, tensors, stages)
    if isinstance(one.definition, TensorSpec):
        tensors[one.name] = one.definition
        return
    for stage in (*one.lifted, one.definition):
        if stage.name in stages or stage.name in tensors:
            raise BadInput(f"two tensors or stages are named {stage.name}", allowed="give each its own name")
        stages[stage.name] = stage


def _shape(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    if isinstance(shape, (str, bytes)) or not isinstance(shape, Sequence):
        raise BadInput(f"{name} has the shape {shape!r}", allowed="a tuple of integers")
    return tuple(whole(size) for size in shape)


def where(condition: Element, then: Any, otherwise: Any) -> Element:
    """Select one of two values. The other is not read: use it to guard out-of-bounds reads, as for padding."""
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
    """The larger of two numbers."""
    return binary("max", left, right)


def minimum(left: Any, right: Any) -> Element:
    """The smaller of two numbers."""
    return binary("min", left, right)


def abs(value: Element) -> Element:
    """The absolute value."""
    return unary("abs", value)


def exp(value: Element) -> Element:
    """e to the power of a float."""
    return unary("exp", value)


def log(value: Element) -> Element:
    """The natural logarithm of a float."""
    return unary("log", value)


def sqrt(value: Element) -> Element:
    """The square root of a float."""
    return unary("sqrt", value)


def rsqrt(value: Element) -> Element:
    """One over the square root of a float."""
    return unary("rsqrt", value)


def tanh(value: Element) -> Element:
    """The hyperbolic tangent of a float."""
    return unary("tanh", value)


def erf(value: Element) -> Element:
    """The error function of a float."""
    return unary("erf", value)


def sigmoid(value: Element) -> Element:
    """1 / (1 + exp(-x)) of a float."""
    return unary("sigmoid", value)


def sin(value: Element) -> Element:
    """The sine of a float, in radians."""
    return unary("sin", value)


def cos(value: Element) -> Element:
    """The cosine of a float, in radians."""
    return unary("cos", value)


def floor(value: Element) -> Element:
    """The largest whole number not above a float, as a float."""
    return unary("floor", value)


def _reduction(op: str, value: Any, axes: tuple[Any, ...]) -> Element:
    if not isinstance(value, Element) or value.dtype == BOOL:
        raise BadInput(f"dg.{op} of {value!r}", allowed="an element; for two numbers use dg.maximum or dg.minimum")
    if not axes or not all(isinstance(axis, ReduceAxis) for axis in axes):
        raise BadInput(f"dg.{op} over {', '.join(map(repr, axes)) or 'nothing'}", allowed="axes made by dg.reduce_axis")
    over = tuple(axis.axis for axis in axes)
    if len({axis.name for axis in over}) < len(over):
        raise BadInput(f"dg.{op} over one axis twice", allowed="each once")
    return combined(LiftedReduction(op, value.value, over), value)


def _depends(condition: Any) -> bool:
    """Whether a condition depends on an axis, an element or a reduction."""
    if isinstance(condition, Place):
        return bool(condition.index.terms)
    return isinstance(condition, (Read, LiftedReduction)) or any(map(_depends, children(condition)))


@dataclass(frozen=True)
class LiftedReduction:
    """A reduction within a value. It exists only while an expression is built: in a finished one it is a stage."""

    op: str
    value: Value
    axes: tuple[Axis, ...]

    @property
    def dtype(self) -> str:
        return self.value.dtype


@dataclass
class _Lifting:
    """The stages that are lifted out of one."""

    name: str
    taken: set[str]
    stages: list[Stage] = field(default_factory=list)

    def lifted(self, value: Any, around: Sequence[Axis]) -> Value:
        """The value with reads in place of its reductions; `around`: the axes that may be used in it."""
        if isinstance(value, LiftedReduction):
            inner = self.lifted(value.value, (*around, *value.axes))
            return self._read(value, inner, around)
        below = children(value)
        return with_children(value, [self.lifted(child, around) for child in below]) if below else value

    def _read(self, reduction: LiftedReduction, inner: Value, around: Sequence[Axis]) -> Value:
        """Makes a stage over those enclosing axes that the reduction depends on, and returns a read of it."""
        bound = {axis.name for axis in reduction.axes}
        used = _iterators(inner) - bound
        kept = [axis for axis in around if axis.name in used and axis.name not in bound]
        axes = tuple(kept) or (Axis("one", 1),)
        built = _named("", axes, inner, reduction.op, reduction.axes)
        same = next((stage for stage in self.stages if _same(stage, built)), None)
        if same is None:
            same = Stage(self._free(reduction.op), built.axes, built.value, built.reduce, built.reduced)
            self.stages.append(same)
        places = tuple(iterator(axis.name) for axis in kept) or (Index(),)
        return Read(same.name, places, inner.dtype)

    def _free(self, op: str) -> str:
        """A name such as C_sum, with a number if that is taken."""
        names = (f"{self.name}_{op}{n or ''}" for n in range(1 << 16))
        result = next(name for name in names if name not in self.taken)
        self.taken.add(result)
        return result


def stages_of(
    name: str, axes: tuple[Axis, ...], value: Any, sources: frozenset[str], scan: tuple[str, int] | None
) -> list[Stage]:
    """The stage of a value, after those of the reductions inside it. `scan`: the reduction and the dimension."""
    lifting = _Lifting(name, {name, *sources})
    if scan is None and isinstance(value, LiftedReduction):
        inner = lifting.lifted(value.value, (*axes, *value.axes))
        stage = _named(name, axes, inner, value.op, value.axes)
    else:
        stage = _named(name, axes, lifting.lifted(value, axes))
    if scan is not None:
        stage = Stage(name, stage.axes, stage.value, scan[0], (), stage.axes[scan[1]].name)
    return _needed(lifting.stages, stage)


def _needed(lifted: list[Stage], last: Stage) -> list[Stage]:
    """The stages that are needed, without those that were only read by selects that were removed."""
    kept = [last]
    for stage in reversed(lifted):
        if any(read.tensor == stage.name for reader in kept for read in reads(reader.value)):
            kept.insert(0, stage)
    return kept


def _named(
    name: str, axes: tuple[Axis, ...], value: Value, reduce: str | None = None, reduced: tuple[Axis, ...] = ()
) -> Stage:
    """A stage with axes i0, i1, ... and r0, r1, ..., and without selects that always make the same choice."""
    own = tuple(Axis(f"i{n}", axis.extent) for n, axis in enumerate(axes))
    over = tuple(Axis(f"r{n}", axis.extent) for n, axis in enumerate(reduced))
    # The axis of a reduction hides an enclosing axis of the same name.
    renamed = {old.name: iterator(new.name) for old, new in zip((*axes, *reduced), (*own, *over), strict=True)}
    value = substituted(value, renamed)
    names = {axis.name for axis in (*own, *over)}
    if _iterators(value) <= names:  # otherwise the check of the stage reports the unknown name
        value = facts.simplified(value, facts.of_axes((*own, *over)))
    return Stage(name, own, value, reduce, over)


def _same(one: Stage, other: Stage) -> bool:
    return (one.axes, one.value, one.reduce, one.reduced) == (other.axes, other.value, other.reduce, other.reduced)


def _iterators(value: Value) -> frozenset[str]:
    if isinstance(value, Place):
        return value.index.iterators
    if isinstance(value, Read):
        return frozenset().union(*(index.iterators for index in value.indices))
    return frozenset().union(*map(_iterators, children(value)))
