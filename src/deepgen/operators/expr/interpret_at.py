"""The reference of an expression at selected output elements: numpy computes only what they depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from deepgen.operators.base import Answer, Array
from deepgen.operators.expr import rounding
from deepgen.operators.expr.contraction import Contraction, contraction, plain_contraction
from deepgen.operators.expr.index import Index, Iter, Quotient
from deepgen.operators.expr.interpret import Computed, blocks, broadcast, evaluate, finite_scale
from deepgen.operators.expr.nodes import Axis, Expression, Read, Stage
from deepgen.operators.expr.rounding import NONE, REDUCTIONS, Numbers, Reducer, scanned
from deepgen.vocabulary.dtypes import dtype, widen

_POINTS = 1 << 20  # computed at once


def answer_at(expression: Expression, inputs: Mapping[str, Array], output: str, places: Array) -> Answer:
    """`inputs`: in their storage dtype; `places`: flat indices."""
    source = _Demand(expression, inputs)
    of = dtype(expression.dtype_of(output))
    with np.errstate(all="ignore"):
        numbers, _ = source.stage(expression.stage(output), places)
        if of.integer:
            return Answer(numbers.values)
        product, scale = plain_contraction(expression, output), numbers.error
        if product is not None:
            size = source.stage(product.stage, places)[1]
            assert size is not None, "a sum of products has one"
            scale = size
    return Answer(numbers.values, finite_scale(scale, numbers.values, wide=of.name == "f64"))


@dataclass
class _Demand:
    """Computed elements by stage and indices: later stages may need them again."""

    expression: Expression
    inputs: Mapping[str, Array]
    held: dict[tuple[str, bytes], tuple[Numbers, Array | None]] = field(default_factory=dict)

    def stage(self, stage: Stage, places: Array) -> tuple[Numbers, Array | None]:
        """A stage at flat indices and, for sums of products, the typical magnitude of a product."""
        key = stage.name, places.tobytes()
        if key not in self.held:
            points = prod(axis.extent for axis in stage.reduced) * (_extent(stage, stage.scan) if stage.scan else 1)
            step = max(1, _POINTS // points)
            parts = [self._part(stage, places[at : at + step]) for at in range(0, len(places), step)]
            self.held[key] = _together([one for one, _ in parts]), _sizes([size for _, size in parts])
        return self.held[key]

    def _part(self, stage: Stage, places: Array) -> tuple[Numbers, Array | None]:
        along = np.unravel_index(places, stage.shape)
        at = {axis.name: np.asarray(one) for axis, one in zip(stage.axes, along, strict=True)}
        product, size = contraction(self.expression, stage), None
        if stage.scan is not None:
            numbers = self._scan(stage, at)
        elif product is not None:
            numbers, size = self._sum_of_products(product, at)
        elif stage.reduced:
            numbers = self._reduced(stage, at)
        else:
            numbers = broadcast(evaluate(stage.value, _Scattered(self, at), self.computed), (len(places),))
        return Numbers(numbers.values, NONE if dtype(stage.dtype).integer else numbers.error), size

    @property
    def computed(self) -> Computed:
        return Computed(self.expression, {})

    def _scan(self, stage: Stage, at: Mapping[str, Array]) -> Numbers:
        count, extent = len(at[str(stage.scan)]), _extent(stage, stage.scan)
        lines = _Scattered(self, {**at, str(stage.scan): np.arange(extent)[None]}, (Axis(str(stage.scan), extent),))
        terms = broadcast(evaluate(stage.value, lines, self.computed), (count, extent))
        running, which = scanned(str(stage.reduce), terms, 1, stage.dtype), (np.arange(count), at[str(stage.scan)])
        error = running.error if running.exact else running.error[which]
        return Numbers(running.values[which], error)

    def _reduced(self, stage: Stage, at: Mapping[str, Array]) -> Numbers:
        reduction: Reducer = REDUCTIONS[str(stage.reduce)](stage.dtype)
        count, dimensions = len(at[stage.axes[0].name]), tuple(range(1, 1 + len(stage.reduced)))
        for over in blocks(stage.reduced, max(1, _POINTS // count)):
            points = _Scattered(self, _with_ranges(at, over.axes, over.start, over.stop), over.axes)
            reduction.add(broadcast(evaluate(stage.value, points, self.computed), (count, *over.shape)), dimensions)
        return reduction.finished(prod(axis.extent for axis in stage.reduced))

    def _sum_of_products(self, product: Contraction, at: Mapping[str, Array]) -> tuple[Numbers, Array | None]:
        stage, sums = product.stage, dtype(product.stage.dtype)
        count, dimensions = len(at[stage.axes[0].name]), tuple(range(1, 1 + len(stage.reduced)))
        total: Array = np.zeros(count, np.int64 if sums.integer else np.float64)
        squares, off = [np.zeros(count), np.zeros(count)], np.zeros(count)
        for over in blocks(stage.reduced, max(1, _POINTS // count)):
            points, shape = (
                _Scattered(self, _with_ranges(at, over.axes, over.start, over.stop), over.axes),
                (count, *over.shape),
            )
            left, right = (
                broadcast(evaluate(one.value, points, self.computed), shape) for one in (product.left, product.right)
            )
            total = total + (left.values * right.values).sum(axis=dimensions)
            if sums.integer:
                continue
            for place, (one, other) in enumerate(((left, right), (right, left))):
                squares[place] = squares[place] + np.square(one.values).sum(axis=dimensions)
                if not one.exact:
                    off = off + (one.error * (np.abs(other.values) + other.error)).sum(axis=dimensions)
        if sums.integer:
            return Numbers(total), None
        absolute, relative = rounding.sum_share(product.products, sums, tuple(map(dtype, product.formats)))
        sized = np.sqrt(squares[0]) * np.sqrt(squares[1])
        own = sized * (absolute / product.products) + np.abs(total) * relative + off
        return Numbers(total, own), sized / product.products


@dataclass(frozen=True)
class _Scattered:
    """Arbitrary elements of a stage, along the first dimension of arrays; the axes of a reduction follow."""

    source: _Demand
    at: Mapping[str, Array]
    over: tuple[Axis, ...] = ()

    @property
    def dimensions(self) -> int:
        return 1 + len(self.over)

    def places(self, index: Index) -> Array:
        total = np.full((1,) * self.dimensions, index.constant, np.int64)
        for atom, times in index.terms:
            if isinstance(atom, Iter):
                along = self.at[atom.name]
                values = along.reshape(-1, *(1,) * len(self.over)) if along.ndim == 1 else along
            else:
                inner = self.places(atom.of)
                values = inner // atom.by if isinstance(atom, Quotient) else inner % atom.by
            total = total + times * values
        return total

    def read(self, read: Read, done: Computed) -> Numbers:
        shape = done.expression.shape_of(read.tensor)
        inside = [np.clip(self.places(i), 0, n - 1) for i, n in zip(read.indices, shape, strict=True)]
        if read.tensor in self.source.inputs:
            return Numbers(widen(self.source.inputs[read.tensor][tuple(inside)], dtype(read.dtype)))
        flat = np.ravel_multi_index(np.broadcast_arrays(*inside), shape)
        places, back = np.unique(flat, return_inverse=True)
        numbers, _ = self.source.stage(done.expression.stage(read.tensor), places)
        back = back.reshape(flat.shape)
        return Numbers(numbers.values[back], NONE if numbers.exact else numbers.error[back])


def _with_ranges(
    at: Mapping[str, Array], axes: tuple[Axis, ...], start: tuple[int, ...], stop: tuple[int, ...]
) -> dict[str, Array]:
    """The indices of the elements, and those of a block of a reduction, each along its own dimension."""
    ranges = {}
    for place, (axis, first, last) in enumerate(zip(axes, start, stop, strict=True)):
        shape = [1] * (1 + len(axes))
        shape[1 + place] = last - first
        ranges[axis.name] = np.arange(first, last).reshape(shape)
    return {**at, **ranges}


def _together(parts: list[Numbers]) -> Numbers:
    values = np.concatenate([one.values for one in parts])
    if all(one.exact for one in parts):
        return Numbers(values)
    return Numbers(values, np.concatenate([np.broadcast_to(one.error, one.values.shape) for one in parts]))


def _sizes(parts: list[Array | None]) -> Array | None:
    present = [one for one in parts if one is not None]
    return np.concatenate(present) if present else None


def _extent(stage: Stage, name: str | None) -> int:
    return next(axis.extent for axis in stage.axes if axis.name == name)
