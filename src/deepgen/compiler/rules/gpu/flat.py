"""Rows of matrix products as one axis: the places of all images after each other.

A convolution is then a product of two matrices, of which the first is never made: where a part of it is copied to
shared memory, each row of the part is found in the image. Parts have as many rows as a block likes, whatever the sizes
of images are, and lie in lines as matrix units read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from deepgen.compiler.rules import facts
from deepgen.compiler.rules.gpu import turned
from deepgen.compiler.rules.gpu.contraction import Contraction, by_four_warps, contraction
from deepgen.compiler.schedule import steps as s
from deepgen.operators.expr.index import Index, iterator
from deepgen.operators.expr.nodes import Axis, Expression, Read, Stage, Value, reads, substituted
from deepgen.operators.expr.rewrite import with_reads
from deepgen.targets.gpu import Gpu


@dataclass(frozen=True)
class Flat:
    """An expression of four stages: `operand` has the rows, `sums` the products, `staged` the results by rows, and
    `out` those in their places. `along` is the dimension of the tensor `source` that is summed over."""

    expression: Expression
    operand: str
    source: str
    along: int
    sums: str
    staged: str
    out: str
    rows: tuple[str, ...]  # axes of `out` that are one axis of the products
    turned_in_block: bool = False  # the source is read as it lies, and turned on its way to shared memory

    @property
    def packed(self) -> str:
        """The copy of the source whose neighbours differ in what is summed over; empty where the source is so."""
        last = self.along == len(self.expression.shape_of(self.source)) - 1
        return "" if last or self.turned_in_block else f"{self.source}.packed"

    @property
    def steps(self) -> tuple[s.Step, ...]:
        """Those that make the copy."""
        if not self.packed:
            return ()
        copy = s.CacheRead(self.source, self.packed, "global", (self.operand,))
        return (copy, *turned.tile(self.expression, self.source, self.packed))

    @property
    def order(self) -> tuple[int, ...]:
        """The dimensions of the copy, the innermost last."""
        places = range(len(self.expression.shape_of(self.source)))
        return (*(n for n in places if n != self.along), self.along)


def flattened(plain: Expression, gpu: Gpu) -> Flat | None:
    """`plain` is an expression with stages for operands, for one sum of products, and for its result."""
    found = [one for stage in plain.stages if (c := contraction(stage, gpu)) and (one := by_four_warps(c, gpu))]
    if len(found) != 1 or found[0].both or len(found[0].rows) < 2 or found[0].along.extent % found[0].intrinsic.line:
        return None
    (c,) = found
    out = c.stage if c.stage.name in plain.outputs else facts.fusible_consumer(plain, c.stage)
    operand = _operand(plain, c)
    if out is None or operand is None or {s.name for s in plain.stages} - {c.left.tensor} != {c.stage.name, out.name}:
        return None
    (source,) = reads(operand)
    along = [n for n, i in enumerate(source.indices) if facts.plain(i) == c.along.name]
    axes = {axis.name for stage in plain.stages for axis in (*stage.axes, *stage.reduced)}
    m = Axis(next(n for n in ("m", *(f"m{i}" for i in range(len(axes)))) if n not in axes), prod(_extents(c.rows)))
    taps = tuple(tap for tap in c.taps if tap.extent > 1)
    if not along or source.tensor in {stage.name for stage in plain.stages}:
        return None
    rows = Stage(f"{source.tensor}_rows", (m, *taps, c.along), substituted(operand, _places(m, c.rows)))
    summed = out is c.stage
    sums = _sums(c, m, rows, taps, f"{c.stage.name}.sums" if summed else c.stage.name)
    same = tuple(axis.name for axis in out.axes) if summed else facts.same_places(out, c.stage)
    assert same is not None
    of = dict(zip((axis.name for axis in c.stage.axes), same, strict=True))
    column = next(axis for axis in out.axes if axis.name == of[c.columns[0].name])
    own = tuple(replace(axis, name=of[axis.name]) for axis in c.rows)
    here = Read(sums.name, (iterator(m.name), iterator(column.name)), sums.dtype)
    value = here if summed else substituted(out.value, _places(m, own))
    value = with_reads(value, lambda read: here if read.tensor == c.stage.name else read)
    staged = Stage(f"{out.name}.rows", (m, column), value)
    place = Index()
    for axis in own:
        place = place * axis.extent + iterator(axis.name)
    last = Stage(out.name, out.axes, Read(staged.name, (place, iterator(column.name)), staged.dtype))
    expression = replace(plain, stages=(rows, sums, staged, last))
    names = tuple(axis.name for axis in own)
    return Flat(expression, rows.name, source.tensor, along[0], sums.name, staged.name, out.name, names)


def _operand(plain: Expression, c: Contraction) -> Value | None:
    """What rows are read from, as a value over the axes of the sums; None of what is more than one read."""
    stage = next((one for one in plain.stages if one.name == c.left.tensor), None)
    value: Value = c.left
    if stage is not None:
        value = substituted(stage.value, {a.name: i for a, i in zip(stage.axes, c.left.indices, strict=True)})
    return value if len(reads(value)) == 1 and value.dtype == c.left.dtype else None


def _sums(c: Contraction, m: Axis, rows: Stage, taps: tuple[Axis, ...], name: str) -> Stage:
    single: Mapping[str, Index | int] = {tap.name: 0 for tap in c.taps if tap.extent == 1}
    here = Read(rows.name, tuple(iterator(axis.name) for axis in rows.axes), rows.dtype)
    value = with_reads(c.stage.value, lambda read: here if read.tensor == c.left.tensor else read)
    return Stage(name, (m, c.columns[0]), substituted(value, single), "sum", (*taps, c.along))


def _places(m: Axis, rows: tuple[Axis, ...]) -> dict[str, Index | int]:
    """The axes that rows run over, as parts of one."""
    found: dict[str, Index | int] = {}
    rest = iterator(m.name)
    for axis in reversed(rows[1:]):
        found[axis.name], rest = rest % axis.extent, rest // axis.extent
    return {**found, rows[0].name: rest}


def _extents(axes: tuple[Axis, ...]) -> list[int]:
    return [axis.extent for axis in axes]
