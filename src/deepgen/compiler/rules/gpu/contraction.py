"""Contractions for matrix units: which axes are rows and which are columns, and the required operand layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from deepgen.compiler.intrinsics.matrix import PRODUCTS, MatrixProduct
from deepgen.compiler.rules import facts
from deepgen.compiler.rules.padding import guard
from deepgen.compiler.rules.tensorize import alone, rounded
from deepgen.compiler.schedule.stages import identity
from deepgen.operators.expr.contraction import factors
from deepgen.operators.expr.index import Index, iterator
from deepgen.operators.expr.nodes import (
    Axis,
    Cast,
    Compare,
    Const,
    Expression,
    Place,
    Read,
    Select,
    Stage,
    reads,
    substituted,
)
from deepgen.targets import Gpu

_LONG = 64  # columns that justify a block of their own


@dataclass(frozen=True)
class MatrixContraction:
    """A sum of products with its axes by role: rows, columns, both (batch axes), and those that are reduced."""

    stage: Stage
    intrinsic: MatrixProduct
    left: Read
    right: Read
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    both: tuple[Axis, ...]
    along: Axis  # the reduced axis that the products step along
    taps: tuple[Axis, ...]


def contraction(stage: Stage, gpu: Gpu) -> MatrixContraction | None:
    product = matrix_product(stage, gpu)
    return None if isinstance(product, str) else product


def matrix_product(stage: Stage, gpu: Gpu) -> MatrixContraction | str:
    """A stage as a matrix product, or the reason why matrix units cannot compute it."""
    sides = factors(stage)
    if sides is None:
        return "it is not a sum of products"
    one, other = (side.value if isinstance(side, Cast) else side for side in sides)
    if not isinstance(one, Read) or not isinstance(other, Read) or one.tensor == other.tensor:
        return "it does not multiply elements of two tensors as they are"
    one, other = _settled(one, stage), _settled(other, stage)
    fitting = [
        p for p in PRODUCTS.values()
        if p.on(gpu) and one.dtype == other.dtype == p.operand
        and stage.dtype == p.sum and p.warps == 1
    ]  # fmt: skip
    if not fitting:
        return f"{gpu.arch} has no matrix instruction for {one.dtype} x {other.dtype} accumulated in {stage.dtype}"
    own = [tuple(a for a in stage.axes if facts.depends(r, a.name) and not facts.depends(q, a.name))
           for r, q in ((one, other), (other, one))]  # fmt: skip
    both = tuple(a for a in stage.axes if facts.depends(one, a.name) and facts.depends(other, a.name))
    if not own[0] or not own[1] or len(own[0]) + len(own[1]) + len(both) < len(stage.axes):
        return "rows or columns are missing: each operand needs an axis that the other one does not have"
    # The contiguous axis of the result becomes columns: a lane holds two neighbouring ones.
    if stage.axes[-1] in own[0]:
        one, other, own = other, one, own[::-1]
    inner = [a for a in stage.reduced if facts.depends(one, a.name) and facts.depends(other, a.name)]
    along = max(inner, key=lambda a: a.extent, default=None)
    several = [a for a in stage.reduced if a.extent > 1]
    if along is None or len(inner) < len(several):
        return "it sums over an axis that only one operand has"
    if along.extent % fitting[0].k:
        return f"the {along.extent} products of a sum are not a multiple of {fitting[0].k}"
    taps = tuple(a for a in stage.reduced if a != along)
    for read in (one, other):
        # The reduced axis must be a dimension of its own, or a part of one, so that it can be innermost.
        moved = [i for i in read.indices if along.name in i.iterators]
        if len(moved) != 1 or not _is_part(moved[0], along, both):
            return f"what it sums over is not a dimension of {read.tensor}"
    return MatrixContraction(stage, fitting[0], one, other, own[0], own[1], both, along, taps)


def _is_part(index: Index, along: Axis, both: tuple[Axis, ...]) -> bool:
    """Whether an index covers all of an axis, with an offset that depends only on batch axes."""
    start = index - iterator(along.name)
    return (
        start.iterators <= {a.name for a in both}
        and not start.constant
        and all(times % along.extent == 0 for _, times in start.terms)
    )


def by_four_warps(c: MatrixContraction, gpu: Gpu) -> MatrixContraction | None:
    """The same with products of four warps, if the chip has them; columns must be one axis, because their lines require
    it."""
    fitting = [
        p for p in PRODUCTS.values()
        if p.on(gpu) and p.warps > 1 and p.operand == c.intrinsic.operand
    ]  # fmt: skip
    if len(c.columns) > 1:
        # Positions in an image do not form contiguous lines: they become rows, and channels columns.
        c = replace(c, left=c.right, right=c.left, rows=c.columns, columns=c.rows)
    if not fitting or len(c.columns) > 1 or c.columns[0].name not in map(facts.plain, c.right.indices):
        return None
    return replace(c, intrinsic=fitting[0])


def by_images(c: MatrixContraction, gpu: Gpu) -> MatrixContraction | None:
    """The same where columns are several axes, one of which is contiguous: a block covers one position along the
    others. So tensors that are contiguous along image positions are read in place, and results are stored in that
    layout."""
    last = facts.plain(c.right.indices[-1])
    columns = tuple(axis for axis in c.columns if axis.name == last and axis.extent >= _LONG)
    if len(c.columns) < 2 or not columns:
        return None
    others = tuple(axis for axis in c.columns if axis not in columns)
    return by_four_warps(replace(c, columns=columns, both=(*c.both, *others)), gpu)


def along_columns(c: MatrixContraction) -> bool:
    """Whether columns are contiguous in the second operand, not the reduced axis."""
    last = max(n for n, i in enumerate(c.right.indices) if i.iterators)
    return order(c.right, c) is None and along_of(c.right, c) != last


def _settled(read: Read, stage: Stage) -> Read:
    """A read without the taps of a 1 x 1 filter, which do not change it."""
    single = {axis.name: 0 for axis in stage.reduced if axis.extent == 1}
    return replace(read, indices=tuple(i.substitute(single) for i in read.indices))


def order(read: Read, c: MatrixContraction) -> tuple[int, ...] | None:
    """An order of an operand's dimensions in which matrices can be loaded from it; None if they can be already.

    The operand must be contiguous along the reduced axis or, if loads can transpose, along an axis of rows or columns.
    """
    places = list(range(len(read.indices)))
    along = along_of(read, c)
    last = max(n for n in places if read.indices[n].iterators)
    chosen = {a.name for a in (*c.rows, *c.columns)}
    if along == last or (facts.plain(read.indices[last]) in chosen and c.intrinsic.transposes):
        return None
    own = [n for n in places if read.indices[n].iterators & chosen]
    inner = [*(own if len(own) == 1 else []), along]  # in a filter, the elements of each tap are contiguous
    return (*(n for n in places if n not in inner), *inner)


def transposed_along(read: Read, c: MatrixContraction) -> str | None:
    """The contiguous axis of an operand, if that is one of rows or columns, not the reduced axis."""
    last = max(n for n, i in enumerate(read.indices) if i.iterators)
    return facts.plain(read.indices[last]) if order(read, c) is None and along_of(read, c) != last else None


def along_of(read: Read, c: MatrixContraction) -> int:
    """The dimension of an operand that is summed over."""
    return next(n for n, i in enumerate(read.indices) if c.along.name in i.iterators)


def packed_name(tensor: str, stages: set[str]) -> str:
    """The stage that holds a reordered operand."""
    return tensor if tensor in stages else f"{tensor}.packed"


def with_whole_steps(expression: Expression, gpu: Gpu) -> Expression:
    return replace(expression, stages=tuple(_whole(stage, gpu) for stage in expression.stages))


def _whole(stage: Stage, gpu: Gpu) -> Stage:
    sides = factors(stage)
    if sides is None or any(
        not isinstance(one, Cast) or not (isinstance(one.value, Read) or guard(one)) for one in sides
    ):
        return stage
    operands = reads(stage.value)
    steps = {
        p.k for p in PRODUCTS.values()
        if p.on(gpu) and p.sum == stage.dtype
        and all(read.dtype == p.operand for read in operands)
    }  # fmt: skip
    axes = [axis for axis in stage.reduced if all(alone(read, axis.name) for read in operands)]
    if len(operands) != 2 or not steps or not axes or any(axis.extent % max(steps) == 0 for axis in axes):
        return stage
    return rounded(stage, max(axes, key=lambda axis: axis.extent), max(steps))


_TILE = 64 * 64  # least results per block
_LEAST = 256  # least elements per part of a sum
_MOST = 8  # parts
_AXIS = "part"


def split_counts(plain: Expression, gpu: Gpu) -> list[dict[str, int]] | str:
    """The numbers of parts into which an expression's sum can be split, to give work to more multiprocessors; or the
    reason why it should not be split."""
    contractions = [c for stage in plain.stages if (c := contraction(stage, gpu))]
    if len(contractions) != 1 or contractions[0].taps:
        return "it has no single sum of products without taps for matrix units"
    (c,) = contractions
    results = prod(c.stage.shape)
    blocks = -(-results // _TILE)
    if blocks * 2 >= 2 * gpu.multiprocessors:
        return "there are blocks for all multiprocessors"
    counts = [
        {c.stage.name: parts}
        for parts in (2, 4, _MOST)
        if blocks * parts < 2 * gpu.multiprocessors
        and c.along.extent % (parts * c.intrinsic.line) == 0
        and c.along.extent // parts >= _LEAST
        and workspace_bytes(results, parts) <= gpu.l2_bytes  # so that the second launch finds them in L2
    ][-2:]
    return counts or f"its {c.along.extent} products are too few, or cannot be divided evenly"


def workspace_bytes(results: int, parts: int) -> int:
    return 4 * results * parts


def with_parts(expression: Expression, counts: Mapping[str, int]) -> Expression:
    """The expression with reductions split in two: partial results, as many as are listed, and what these reduce to."""
    stages = [_split(stage, counts[stage.name]) if stage.name in counts else [stage] for stage in expression.stages]
    return replace(expression, stages=tuple(one for some in stages for one in some))


def _split(stage: Stage, parts: int) -> list[Stage]:
    assert stage.reduce is not None
    along = facts.longest(stage)
    own = replace(along, extent=-(-along.extent // parts))
    place = iterator(_AXIS) * own.extent + iterator(along.name)
    value = substituted(stage.value, {along.name: place})
    if own.extent * parts > along.extent:  # the last part is shorter
        inside = Compare("lt", Place(place), Const(along.extent, "i64"))
        value = Select(inside, value, identity(stage.reduce, stage.dtype))
    reduced = tuple(own if axis == along else axis for axis in stage.reduced)
    axis = Axis(_AXIS, parts)
    each = Stage(f"{stage.name}.parts", (axis, *stage.axes), value, stage.reduce, reduced)
    places = (iterator(_AXIS), *(iterator(one.name) for one in stage.axes))
    return [each, Stage(stage.name, stage.axes, Read(each.name, places, stage.dtype), stage.reduce, (axis,))]


def adds_parts(stage: Stage) -> bool:
    """Whether it adds up partial sums of other blocks."""
    return [axis.name for axis in stage.reduced] == [_AXIS] and isinstance(stage.value, Read)
