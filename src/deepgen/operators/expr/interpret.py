"""The numpy reference of an expression: its results, and the allowed error of each.

numpy computes every stage in float64 or int64, in blocks of elements.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Protocol

import numpy as np

from deepgen.operators.base import Answer, Array
from deepgen.operators.expr import rounding
from deepgen.operators.expr.contraction import Contraction, Factor, affine, contraction, plain_contraction
from deepgen.operators.expr.facts import Facts
from deepgen.operators.expr.index import Index, Iter, Quotient
from deepgen.operators.expr.nodes import (
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
    Unary,
    Value,
    reads,
)
from deepgen.operators.expr.rounding import NONE, REDUCTIONS, Numbers, Reducer, multiplied, norms, scanned
from deepgen.vocabulary.dtypes import dtype
from deepgen.vocabulary.parallel import in_chunks, in_parts, usual_threads

_POINTS = 1 << 20  # computed at once: a few arrays of this size take some tens of megabytes
_FACTOR_POINTS = 1 << 22  # of each factor of a product


class Points(Protocol):
    """Some points of a stage, as arrays with this many dimensions."""

    @property
    def dimensions(self) -> int: ...

    def places(self, index: Index) -> Array:
        """The values of an index at the points."""
        ...

    def read(self, read: Read, done: Computed) -> Numbers: ...


@dataclass(frozen=True)
class ElementBlock:
    """Part of a stage's points: start and end along each axis; each axis is a dimension of the arrays."""

    axes: tuple[Axis, ...]
    start: tuple[int, ...]
    stop: tuple[int, ...]

    def along(self, name: str) -> tuple[int, int, int]:
        """The dimension of an axis, and its range."""
        place = next(i for i, axis in enumerate(self.axes) if axis.name == name)
        return place, self.start[place], self.stop[place]

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        return {axis.name: (a, b - 1) for axis, a, b in zip(self.axes, self.start, self.stop, strict=True)}

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(b - a for a, b in zip(self.start, self.stop, strict=True))

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(a, b) for a, b in zip(self.start, self.stop, strict=True))

    @property
    def dimensions(self) -> int:
        return len(self.axes)

    def places(self, index: Index) -> Array:
        return _places(index, self)

    def read(self, read: Read, done: Computed) -> Numbers:
        return _read(read, self, done)


@dataclass
class Computed:
    """Tensors and stages computed so far. `sizes`: for sums of products, the typical magnitude of a product for each
    element."""

    expression: Expression
    held: dict[str, Numbers]
    sizes: dict[str, Array] = field(default_factory=dict)
    padded: dict[tuple[str, tuple[tuple[int, int], ...]], Array] = field(default_factory=dict)


def interpret(expression: Expression, inputs: Mapping[str, Array], only: Collection[str] = ()) -> Computed:
    """Computes all stages, or `only` some and what they depend on. `inputs`: float64 or int64 arrays."""
    done = Computed(expression, {name: Numbers(values) for name, values in inputs.items()})
    wanted = ancestors(expression, only or expression.outputs)
    with np.errstate(all="ignore"):
        for stage in expression.stages:
            if stage.name not in wanted:
                continue
            product = contraction(expression, stage)
            done.held[stage.name] = _contracted(product, done) if product is not None else _stage(stage, done)
    return done


def ancestors(expression: Expression, names: Collection[str], but: Collection[str] = ()) -> set[str]:
    """Tensors and stages on which these depend, including themselves; dependencies of the stages in `but` are left
    out."""
    wanted = set(names)
    for stage in reversed(expression.stages):
        if stage.name in wanted and stage.name not in but:
            wanted |= {read.tensor for read in reads(stage.value)}
    return wanted


def _stage(stage: Stage, done: Computed) -> Numbers:
    kind = np.int64 if dtype(stage.dtype).integer else np.float64
    values = np.empty(stage.shape, kind)
    error = np.zeros(stage.shape if kind is np.float64 else ())
    along = next((i for i, axis in enumerate(stage.axes) if axis.name == stage.scan), None)
    reduced = prod(axis.extent for axis in stage.reduced)
    whole = () if along is None else (along,)

    def compute(part: ElementBlock) -> None:
        numbers = _reduced(stage, part, done) if stage.reduced else evaluate(stage.value, part, done)
        if along is not None:
            numbers = scanned(str(stage.reduce), broadcast(numbers, part.shape), along, stage.dtype)
        values[part.slices] = numbers.values
        if error.ndim:
            error[part.slices] = numbers.error

    _on_threads([*blocks(stage.axes, max(1, _POINTS // reduced), whole)], compute)
    return Numbers(values, error if error.ndim and error.any() else NONE)


def _on_threads(parts: Sequence[ElementBlock], compute: Callable[[ElementBlock], None]) -> None:
    """Runs independent blocks on several threads: numpy releases the lock."""

    def some(first: int, last: int) -> None:
        with np.errstate(all="ignore"):  # is set per thread
            for part in parts[first:last]:
                compute(part)

    in_parts(len(parts), usual_threads(), some)


def _reduced(stage: Stage, part: ElementBlock, done: Computed) -> Numbers:
    """A reduction for some elements, in blocks of its points."""
    reduction: Reducer = REDUCTIONS[str(stage.reduce)](stage.dtype)
    dimensions = tuple(range(len(stage.axes), len(stage.axes) + len(stage.reduced)))
    for over in blocks(stage.reduced, max(1, _POINTS // prod(part.shape))):
        points = ElementBlock((*part.axes, *over.axes), (*part.start, *over.start), (*part.stop, *over.stop))
        reduction.add(broadcast(evaluate(stage.value, points, done), points.shape), dimensions)
    return reduction.finished(prod(axis.extent for axis in stage.reduced))


def _contracted(product: Contraction, done: Computed) -> Numbers:
    """A sum of products by matrix multiplication."""
    stage, sums = product.stage, dtype(product.stage.dtype)
    values = np.empty(stage.shape, np.int64 if sums.integer else np.float64)
    error = np.zeros(() if sums.integer else stage.shape)
    size = np.zeros(() if sums.integer else stage.shape, np.float64 if sums.name == "f64" else np.float32)
    reduced = tuple(axis.extent for axis in stage.reduced)
    absolute, relative = rounding.sum_share(product.products, sums, tuple(map(dtype, product.formats)))

    def compute(part: ElementBlock) -> None:
        points = ElementBlock(
            (*stage.axes, *stage.reduced), (*part.start, *(0 for _ in reduced)), (*part.stop, *reduced)
        )
        left, right = (_factor(one, points, done) for one in (product.left, product.right))
        product_of = multiplied(left.values, right.values, points.shape, len(stage.axes))
        values[part.slices] = product_of
        if sums.integer:
            return
        sized = norms(left.values, points.shape, len(stage.axes)) * norms(right.values, points.shape, len(stage.axes))
        own = sized * (absolute / product.products) + np.abs(product_of) * relative
        for one, other in ((left, right), (right, left)):
            if not one.exact:
                off = np.broadcast_to(one.error, one.values.shape)
                own = own + multiplied(off, np.abs(other.values) + other.error, points.shape, len(stage.axes))
        error[part.slices] = own
        size[part.slices] = sized / product.products

    _on_threads([*_product_blocks(product)], compute)
    if not sums.integer:
        done.sizes[stage.name] = size
    return Numbers(values, error)


def _factor(factor: Factor, points: ElementBlock, done: Computed) -> Numbers:
    """A factor over the points that it depends on; a padded one is a view of its tensor with zeros around it."""
    if not factor.padded:
        return evaluate(factor.value, points, done)
    source, read = done.held[factor.read.tensor], factor.read
    stage_ranges = {axis.name: (0, axis.extent - 1) for axis in points.axes}
    around = []
    for index, extent in zip(read.indices, done.expression.shape_of(read.tensor), strict=True):
        low, high = Facts(stage_ranges).bounds(index)
        around.append((max(0, -low), max(0, high - extent + 1)))
    shifted = tuple(index + before for index, (before, _) in zip(read.indices, around, strict=True))
    key = (read.tensor, tuple(around))
    if key not in done.padded:
        done.padded[key] = np.pad(source.values, around)
    error = NONE if source.exact else _viewed(np.pad(np.broadcast_to(source.error, source.values.shape), around),
                                              shifted, points)  # fmt: skip
    numbers = Numbers(_viewed(done.padded[key], shifted, points), error)
    return rounding.cast(numbers, read.dtype, factor.value.dtype) if factor.value.dtype != read.dtype else numbers


def _product_blocks(sums: Contraction) -> Iterator[ElementBlock]:
    """Blocks of a product with factors of limited size: an axis of the largest is halved until they fit."""
    stage = sums.stage
    shape = [axis.extent for axis in stage.axes]
    reduced = {axis.name: axis.extent for axis in stage.reduced}
    used = [frozenset().union(*(i.iterators for i in one.read.indices)) for one in (sums.left, sums.right)]
    used.append(frozenset(axis.name for axis in stage.axes))
    while True:
        sizes = [
            prod([n for axis, n in zip(stage.axes, shape, strict=True) if axis.name in names])
            * prod([extent for name, extent in reduced.items() if name in names])
            for names in used
        ]
        largest = used[sizes.index(max(sizes))]
        wide = [i for i, axis in enumerate(stage.axes) if axis.name in largest and shape[i] > 1]
        if max(sizes) <= _FACTOR_POINTS or not wide:
            break
        shape[wide[0]] = -(-shape[wide[0]] // 2)
    yield from _parts(stage.axes, shape)


def blocks(axes: tuple[Axis, ...], most: int, whole: tuple[int, ...] = ()) -> Iterator[ElementBlock]:
    """Blocks of at most `most` points, except that axes in `whole` are not divided."""
    shape = [axis.extent for axis in axes]
    for place, extent in enumerate(shape):
        if place not in whole and prod(shape) > most:
            shape[place] = max(1, min(extent, most * extent // prod(shape)))
    yield from _parts(axes, shape)


def _parts(axes: tuple[Axis, ...], shape: list[int]) -> Iterator[ElementBlock]:
    for start in product(*(range(0, axis.extent, step) for axis, step in zip(axes, shape, strict=True))):
        stop = tuple(min(axis.extent, a + step) for axis, a, step in zip(axes, start, shape, strict=True))
        yield ElementBlock(axes, start, stop)


def evaluate(value: Value, points: Points, done: Computed) -> Numbers:
    """A value at some points, as arrays with the block's dimensions; a dimension is 1 if the value does not depend on
    it."""

    def of(node: Value) -> Numbers:
        return evaluate(node, points, done)

    if isinstance(value, Const):
        kind = np.int64 if dtype(value.dtype).integer else np.float64
        return Numbers(np.full((1,) * points.dimensions, value.value, kind))
    if isinstance(value, Place):
        return Numbers(points.places(value.index))
    if isinstance(value, Read):
        return points.read(value, done)
    if isinstance(value, Cast):
        return rounding.cast(of(value.value), value.value.dtype, value.dtype)
    if isinstance(value, Unary):
        return rounding.unary(value.op, of(value.value), value.dtype)
    if isinstance(value, Binary):
        return rounding.binary(value.op, of(value.left), of(value.right), value.dtype)
    if isinstance(value, Compare):
        return rounding.compare(value.op, of(value.left), of(value.right))
    if isinstance(value, Logic):
        return rounding.logic(value.op, of(value.left), of(value.right))
    assert isinstance(value, Select)
    return rounding.select(of(value.condition), of(value.then), of(value.otherwise))


def _read(read: Read, points: ElementBlock, done: Computed) -> Numbers:
    """A view if the indices allow it. Indices outside the tensor are clamped: a guard discards those elements."""
    source = done.held[read.tensor]
    shape = done.expression.shape_of(read.tensor)
    facts = Facts(points.ranges)
    inside = all(
        affine(index) and facts.bounds(index)[0] >= 0 and facts.bounds(index)[1] < extent
        for index, extent in zip(read.indices, shape, strict=True)
    )
    if inside:
        error = NONE if source.exact else _viewed(source.error, read.indices, points)
        return Numbers(_viewed(source.values, read.indices, points), error)
    places = tuple(
        np.clip(_places(index, points), 0, extent - 1) for index, extent in zip(read.indices, shape, strict=True)
    )
    return Numbers(source.values[places], NONE if source.exact else source.error[places])


def _places(index: Index, points: ElementBlock) -> Array:
    total = np.full((1,) * len(points.axes), index.constant, np.int64)
    for atom, times in index.terms:
        if isinstance(atom, Iter):
            place, start, stop = points.along(atom.name)
            shape = [1] * len(points.axes)
            shape[place] = stop - start
            values = np.arange(start, stop).reshape(shape)
        else:
            inner = _places(atom.of, points)
            values = inner // atom.by if isinstance(atom, Quotient) else inner % atom.by
        total = total + times * values
    return total


def _viewed(source: Array, indices: tuple[Index, ...], points: ElementBlock) -> Array:
    """The elements at affine indices that are all inside, without a copy."""
    shape, strides, first = [1] * len(points.axes), [0] * len(points.axes), []
    for dimension, index in enumerate(indices):
        at = index.constant
        for atom, times in index.terms:
            assert isinstance(atom, Iter)
            place, start, stop = points.along(atom.name)
            shape[place] = stop - start
            strides[place] += times * source.strides[dimension]
            at += times * start
        first.append(slice(at, at + 1))
    corner = source[tuple(first)]
    view: Array = np.lib.stride_tricks.as_strided(corner, shape, strides, writeable=False)
    return view


def broadcast(numbers: Numbers, shape: tuple[int, ...]) -> Numbers:
    error = numbers.error if numbers.exact else np.broadcast_to(numbers.error, shape)
    return Numbers(np.broadcast_to(numbers.values, shape), error)


def answers(expression: Expression, inputs: Mapping[str, Array]) -> dict[str, Answer]:
    done = interpret(expression, inputs)
    results = {}
    for name in expression.outputs:
        of, values = dtype(expression.dtype_of(name)), done.held[name].values
        if of.integer:
            results[name] = Answer(values)
            continue
        product = plain_contraction(expression, name)
        # Sums may have been padded, with rows that no result reads.
        own = tuple(map(slice, values.shape))
        scale = done.held[name].error if product is None else done.sizes[product.stage.name][own]
        results[name] = Answer(values, finite_scale(scale, values, wide=of.name == "f64"))
    return results


def finite_scale(scale: Array, values: Array, *, wide: bool) -> Array:
    """The scale as finite numbers in f32, or in f64 for f64. A value without an error bound is always accepted."""
    kind = np.float64 if wide else np.float32
    limits = np.finfo(kind)
    of, each = np.asarray(values).reshape(-1), np.broadcast_to(scale, np.shape(values)).reshape(-1)
    scales: Array = np.empty(of.size, kind)

    def some(piece: slice) -> None:
        with np.errstate(all="ignore"):
            scales[piece] = np.fmin(each[piece], limits.max)
            scales[piece][~np.isfinite(of[piece])] = 0.0

    in_chunks(of.size, some)
    return scales.reshape(np.shape(values))
