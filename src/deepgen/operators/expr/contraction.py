"""Finds contractions in an expression: sums of products of two tensors, as in GEMM and convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod
from typing import Protocol

from deepgen.operators.expr.facts import limits
from deepgen.operators.expr.index import Index, Iter, iterator
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
    Value,
    walk,
)
from deepgen.vocabulary.dtypes import dtype


@dataclass(frozen=True)
class Factor:
    """An element of a tensor as a factor of a sum of products, which is zero outside the tensor.

    `padded`: whether a guard keeps the read inside, and holds exactly where the read is inside.
    """

    value: Value
    read: Read
    padded: bool = False


@dataclass(frozen=True)
class Contraction:
    """stage = sum over its reduced axes of left * right."""

    stage: Stage
    left: Factor
    right: Factor

    @property
    def products(self) -> int:
        """The number of products added up for one element."""
        return prod(axis.extent for axis in self.stage.reduced)

    @property
    def formats(self) -> tuple[str, str]:
        """The formats of the factors in memory."""
        return self.left.read.dtype, self.right.read.dtype


def contraction(expression: Expression, stage: Stage) -> Contraction | None:
    """A stage as a sum of products, if it is one."""
    sides = factors(stage)
    left, right = (factor(expression, side) for side in sides) if sides and stage.reduced else (None, None)
    return None if left is None or right is None else Contraction(stage, left, right)


class _Sums(Protocol):
    """A stage, or a store in loops."""

    @property
    def reduce(self) -> str | None: ...

    @property
    def value(self) -> Value: ...


def factors(sums: _Sums) -> tuple[Value, Value] | None:
    """The two factors, if it is a sum of products; None for anything else."""
    value = sums.value
    if sums.reduce != "sum" or getattr(sums, "scan", None) or not isinstance(value, Binary) or value.op != "mul":
        return None
    return value.left, value.right


def factor(expression: Expression, value: Value) -> Factor | None:
    """An element of one tensor, with or without a cast and a guard; None for anything else."""
    inner = value
    while isinstance(inner, Cast):
        inner = inner.value
    if isinstance(inner, Select) and isinstance(inner.otherwise, Const) and inner.otherwise.value == 0:
        inside = factor(expression, inner.then)
        if inside is None or isinstance(inner.then, Select):
            return None
        exact = _is_padding(inner.condition, inside.read, expression.shape_of(inside.read.tensor))
        return Factor(value, inside.read, exact)
    return Factor(value, inner) if isinstance(inner, Read) else None


def plain_contraction(expression: Expression, output: str) -> Contraction | None:
    """The sum of products that an output consists of, except for a final cast, if its factors are not computed; None
    otherwise, and if it was rounded to fewer digits than the output has."""
    stage = expression.stage(output)
    inner, coarsest = stage.value, 0.0
    while isinstance(inner, Cast):
        inner = inner.value
        coarsest = max(coarsest, dtype(inner.dtype).epsilon)
    if stage.reduce is None and isinstance(inner, Read) and _reads_all(inner, stage):
        staged = any(one.name == inner.tensor for one in expression.stages)
        sums = plain_contraction(expression, inner.tensor) if staged else None
        finest = max(dtype(stage.dtype).epsilon, dtype(sums.stage.dtype).epsilon) if sums else 0.0
        return sums if coarsest <= finest else None
    product = contraction(expression, stage)
    if product is None or not all(copies(expression, one.read.tensor) for one in (product.left, product.right)):
        return None
    return product


@dataclass(frozen=True)
class BandProduct:
    """C[*, m, n] = sum over k of left * right where m - n is from `least` to `most`, and zero elsewhere.

    `left` and `right` are read in place, with dimensions (*, m, k) and (*, k, n), or with the last two exchanged.
    """

    sums: Stage
    left: Read
    right: Read
    least: int
    most: int

    @property
    def layout(self) -> str:
        """Like that of a GEMM."""
        along = iterator(self.sums.reduced[0].name)
        return ("n" if self.left.indices[-1] == along else "t") + ("t" if self.right.indices[-1] == along else "n")


def band_product(expression: Expression) -> BandProduct | None:
    """The product that an expression consists of, if it is one of matrices of which only a band of diagonals is kept,
    such as a triangle."""
    if len(expression.stages) != 2:
        return None
    sums, last = expression.stages
    kept = last.value
    if last.reduce or len(sums.axes) < 2 or len(sums.reduced) != 1 or not isinstance(kept, Select):
        return None
    holds = kept.otherwise == Const(0, kept.dtype)
    read, zero = (kept.then, kept.otherwise) if holds else (kept.otherwise, kept.then)
    if zero != Const(0, kept.dtype) or not isinstance(read, Read) or read.tensor != sums.name:
        return None
    ends = _diagonals(kept.condition, last, holds=holds) if _reads_all(read, last) else None
    sides = factors(sums)
    if ends is None or sides is None or not all(isinstance(side, Read) for side in sides):
        return None
    *batch, row, column = (iterator(axis.name) for axis in sums.axes)
    along = iterator(sums.reduced[0].name)
    for left, right in (sides, sides[::-1]):
        assert isinstance(left, Read) and isinstance(right, Read)
        own = {left.tensor, right.tensor} <= {one.name for one in expression.tensors}
        placed = [*left.indices[:-2]] == batch == [*right.indices[:-2]]
        rows, columns = left.indices[-2:], right.indices[-2:]
        if own and placed and {*rows} == {row, along} and {*columns} == {along, column}:
            return BandProduct(sums, left, right, *ends)
    return None


def _diagonals(condition: Value, stage: Stage, *, holds: bool) -> tuple[int, int] | None:
    """The least and greatest number of a row less that of a column where a condition holds, or does not."""
    row, column = stage.axes[-2:]
    apart = iterator(row.name) - iterator(column.name)
    least, most = 1 - column.extent, row.extent - 1
    if not holds and len(parts(condition)) > 1:
        return None
    for part in parts(condition):
        limit = limits(part, holds=holds)
        if limit is None or limit[0] not in (apart, -apart):
            return None
        low, high = limit[1:] if limit[0] == apart else (-limit[2], -limit[1])
        least, most = max(least, int(max(low, least))), min(most, int(min(high, most)))
    return least, most


def is_matrix_product(expression: Expression) -> bool:
    """Whether all its sums are matrix products, batched or not: no index adds two iterators."""
    sums = [contraction(expression, stage) for stage in expression.stages if stage.reduced]
    reads = [one.read for product in sums if product is not None for one in (product.left, product.right)]
    return bool(sums) and None not in sums and all(len(index.terms) == 1 for read in reads for index in read.indices)


def copies(expression: Expression, name: str) -> bool:
    """Whether a tensor is an input, or a stage that only moves numbers: padding, another layout, a wider format."""
    named = next((stage for stage in expression.stages if stage.name == name), None)
    if named is None:
        return True
    return named.reduce is None and all(_moves(expression, node) for node in walk(named.value))


def _moves(expression: Expression, node: Value) -> bool:
    if isinstance(node, Read):
        return copies(expression, node.tensor)
    if isinstance(node, Cast):
        return dtype(node.dtype).epsilon <= dtype(node.value.dtype).epsilon
    return isinstance(node, (Const, Select, Place, Compare, Logic))


def _reads_all(read: Read, stage: Stage) -> bool:
    return read.indices == tuple(iterator(axis.name) for axis in stage.axes)


def affine(index: Index) -> bool:
    """Whether an index is a sum of iterators times constants, without divisions."""
    return all(isinstance(atom, Iter) for atom, _ in index.terms)


def _is_padding(condition: Value, read: Read, shape: tuple[int, ...]) -> bool:
    """Whether a condition only says that a read is inside its tensor.

    It cannot say less: a read that may leave the tensor would have been rejected.
    """
    ends = {}
    for index, extent in zip(read.indices, shape, strict=True):
        bare = Index(index.terms)
        ends[bare] = (-index.constant, extent - 1 - index.constant)
        ends[-bare] = (index.constant - extent + 1, index.constant)
    for part in parts(condition):
        limit = limits(part, holds=True)
        if limit is None or limit[0] not in ends:
            return False
        low, high = ends[limit[0]]
        if (limit[1], limit[2]) not in ((low, inf), (-inf, high), (low, high)):
            return False
    return all(map(affine, read.indices))


def parts(condition: Value) -> list[Value]:
    if isinstance(condition, Logic) and condition.op == "and":
        return [*parts(condition.left), *parts(condition.right)]
    return [condition]
