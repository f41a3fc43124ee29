"""Reorders an operand in a separate launch: a block copies a part of it to shared memory in its original layout and
stores it with the new innermost dimension in runs of 16 bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from deepgen.compiler.rules import facts
from deepgen.compiler.rules.gpu.contraction import MatrixContraction, by_four_warps, contraction
from deepgen.compiler.rules.gpu.plan import WIDEST, Plan, powers
from deepgen.compiler.rules.template import times
from deepgen.compiler.schedule import steps as s
from deepgen.operators.expr.index import Index, iterator
from deepgen.operators.expr.nodes import Axis, Expression, Read, Stage, Value, reads, substituted, with_reads
from deepgen.targets import Gpu
from deepgen.vocabulary import dtype

_LARGE = 1 << 20  # elements: smaller operands are divided more finely, to give blocks to many multiprocessors
_PLACES = 64  # approximate extent of the other dimensions per block
_RUNS = 256  # approximate runs of 16 bytes per block of a filter


def tile(expression: Expression, tensor: str, packed: str) -> tuple[s.Step, ...]:
    """The step that creates the copy in shared memory; none if `packed` is more than a copy of one tensor."""
    stages = facts.computed_in_blocks(expression)
    sources = {read.tensor for read in reads(stages[tensor].value)} if tensor in stages else {tensor}
    inputs = {one.name for one in expression.tensors}
    if len(sources) != 1 or not sources <= inputs:
        return ()
    (source,) = sources
    return (s.CacheRead(source, tile_name(packed), "shared", (packed,)),)


def tile_name(packed: str) -> str:
    return f"{packed}.tile"


def by_tiles(plan: Plan, packed: Stage, along: int, source: Stage) -> None:
    """The steps of the launch. `along` is the dimension that becomes innermost."""
    name, axes = packed.name, [axis.name for axis in packed.axes]
    size = dtype(packed.dtype).bytes
    plan.names += ("packed",)
    channels = packed.axes[along]
    between = prod(axis.extent for axis in packed.axes[along + 1 :])
    # An odd number of elements inside, as in a filter: they are contiguous in memory, and fall on different banks.
    odd = between % 2 == 1 and between < _PLACES and source.shape == packed.shape
    width = WIDEST // size
    usual = 64 if prod(packed.shape) >= _LARGE else 16
    deep = plan.knob(f"{name}_deep", [n for n in (16, 32, 64, 128) if n < 2 * channels.extent], usual)
    # Shared by all operands, so that one launch packs them.
    threads = plan.shared_knob("packed_threads", powers(512, 64), 256)
    blocks: list[str] = []
    inner: list[str] = []
    places = 1
    for n in reversed(range(len(axes))):
        part = deep if n == along else _part(packed.axes[n].extent, places)
        if odd and n < along and places == between:
            part = min(packed.axes[n].extent, max(1, _RUNS * width // (between * 16)))  # one run per thread
        places *= part if n != along and isinstance(part, int) else 1
        outer, own = plan.split(name, axes[n], (part,))
        blocks.insert(0, outer)
        if n == along:
            runs = own
        elif part == 1:
            blocks.insert(1, own)
        else:
            inner.insert(0, own)
    plan.step(s.Reorder(name, (*blocks, *inner, runs)))
    block = plan.fuse(name, blocks)
    plan.annotate(name, "block.x", block)
    plan.deal(name, [*inner, runs], ("thread.x", threads), ("vector", width))
    copy = source.name
    side_by_side = channels.extent * between if odd else source.axes[-1].extent
    plan.step(s.ComputeAt(copy, name, block))
    run = min(width, side_by_side & -side_by_side)
    plan.deal(copy, [axis.name for axis in source.axes], ("thread.x", threads), ("vector", run))
    if not odd:
        # Rows an odd number of words apart fall on different banks.
        words = max(1, 4 // size)
        plan.step(s.StorageAlign(copy, along, 2 * words, words))
    plan.require(times([deep, places, 2, size]) <= plan.target.shared_per_block, f"a part of {name} in shared memory")


def _part(extent: int, places: int) -> int:
    """How much of a dimension a block covers, given how many elements it has of the dimensions inside it."""
    if places >= _PLACES // 2:
        return 1
    if extent <= 2 * _PLACES and places == 1:
        return extent
    return min(extent, 1 << (_PLACES // places).bit_length() - 1)


@dataclass(frozen=True)
class Flat:
    """An expression of four stages: `operand` holds the rows, `sums` the products, `staged` the results by rows, and
    `out` the results in their final layout. `along` is the reduced dimension of the tensor `source`."""

    expression: Expression
    operand: str
    source: str
    along: int
    sums: str
    staged: str
    out: str
    rows: tuple[str, ...]  # axes of `out` that are fused into one axis of the products
    transposed_in_block: bool = False  # the source is read in its layout, and transposed on its way to shared memory

    @property
    def packed(self) -> str:
        """The copy of the source that is contiguous along the reduced dimension; empty if the source is."""
        last = self.along == len(self.expression.shape_of(self.source)) - 1
        return "" if last or self.transposed_in_block else f"{self.source}.packed"

    @property
    def steps(self) -> tuple[s.Step, ...]:
        """The steps that create the copy."""
        if not self.packed:
            return ()
        copy = s.CacheRead(self.source, self.packed, "global", (self.operand,))
        return (copy, *tile(self.expression, self.source, self.packed))

    @property
    def order(self) -> tuple[int, ...]:
        """The dimensions of the copy, the innermost last."""
        places = range(len(self.expression.shape_of(self.source)))
        return (*(n for n in places if n != self.along), self.along)


def flattened(plain: Expression, gpu: Gpu) -> Flat | str:
    """`plain` is an expression with stages for operands, for one sum of products, and for its result. Returns the
    reason, as text, if its rows cannot be fused into one axis."""
    contractions = [one for stage in plain.stages if (c := contraction(stage, gpu)) and (one := by_four_warps(c, gpu))]
    if len(contractions) != 1:
        return "it has no single sum of products that four warps compute together"
    (c,) = contractions
    if c.both or len(c.rows) < 2:
        return "its rows are one axis already" if len(c.rows) < 2 else "it multiplies several pairs of matrices"
    if c.along.extent % c.intrinsic.line:
        return f"it does not sum over a multiple of {c.intrinsic.line}"
    out = c.stage if c.stage.name in plain.outputs else facts.fusible_consumer(plain, c.stage)
    operand = _operand(plain, c)
    if out is None or operand is None or {s.name for s in plain.stages} - {c.left.tensor} != {c.stage.name, out.name}:
        return "there are more stages than a sum of products and its result"
    (source,) = reads(operand)
    along = [n for n, i in enumerate(source.indices) if facts.plain(i) == c.along.name]
    axes = {axis.name for stage in plain.stages for axis in (*stage.axes, *stage.reduced)}
    m = Axis(next(n for n in ("m", *(f"m{i}" for i in range(len(axes)))) if n not in axes), prod(_extents(c.rows)))
    taps = tuple(tap for tap in c.taps if tap.extent > 1)
    if not along or source.tensor in {stage.name for stage in plain.stages}:
        return "rows are not read from a tensor as it lies"
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


def _operand(plain: Expression, c: MatrixContraction) -> Value | None:
    """The operand that rows are read from, as a value over the axes of the sums; None if it is more than one read."""
    stage = next((one for one in plain.stages if one.name == c.left.tensor), None)
    value: Value = c.left
    if stage is not None:
        value = substituted(stage.value, {a.name: i for a, i in zip(stage.axes, c.left.indices, strict=True)})
    return value if len(reads(value)) == 1 and value.dtype == c.left.dtype else None


def _sums(c: MatrixContraction, m: Axis, rows: Stage, taps: tuple[Axis, ...], name: str) -> Stage:
    single: Mapping[str, Index | int] = {tap.name: 0 for tap in c.taps if tap.extent == 1}
    here = Read(rows.name, tuple(iterator(axis.name) for axis in rows.axes), rows.dtype)
    value = with_reads(c.stage.value, lambda read: here if read.tensor == c.left.tensor else read)
    return Stage(name, (m, c.columns[0]), substituted(value, single), "sum", (*taps, c.along))


def _places(m: Axis, rows: tuple[Axis, ...]) -> dict[str, Index | int]:
    """The axes that rows cover, as parts of one fused axis."""
    places: dict[str, Index | int] = {}
    rest = iterator(m.name)
    for axis in reversed(rows[1:]):
        places[axis.name], rest = rest % axis.extent, rest // axis.extent
    return {**places, rows[0].name: rest}


def _extents(axes: tuple[Axis, ...]) -> list[int]:
    return [axis.extent for axis in axes]
