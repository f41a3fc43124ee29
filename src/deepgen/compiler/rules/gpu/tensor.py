"""Matrix units: a sum of products is tiled for blocks, warps and matrix products.

Rows and columns of the products may be several axes: in a convolution, the images and positions of its result. Operands
have the same layout in shared memory as in their tensors, and lanes load matrix rows by the operands' own indices. So
one copy of an image is used for all taps of a filter.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from deepgen.compiler.rules import facts
from deepgen.compiler.rules.gpu import operands, tensor_tiles
from deepgen.compiler.rules.gpu.contraction import MatrixContraction, along_columns, along_of, order, packed_name
from deepgen.compiler.rules.gpu.operands import Flat
from deepgen.compiler.rules.gpu.plan import WIDEST, Plan
from deepgen.compiler.rules.gpu.stored import flat_in_runs, in_runs
from deepgen.compiler.rules.gpu.tensor_tiles import Tiling, tiling
from deepgen.compiler.rules.template import Extent, covered, divided, least, plus, span, text, times
from deepgen.compiler.schedule import steps as s
from deepgen.operators.expr.nodes import Expression, Read, Stage
from deepgen.vocabulary import dtype

_CHUNKS = (16, 32, 64, 128, 256)  # bytes along the reduced axis between two barriers
_WIDE_CHUNKS = (2, 4)
_DEPTHS = (1, 2, 3, 4)
_WIDE_DEPTHS = (2, 3, 4, 5, 6)


def by_matrices(
    plan: Plan,
    out: Stage,
    c: MatrixContraction,
    *,
    all_taps: bool,
    staged: Stage | None = None,
    flat: Flat | None = None,
    transposed_in_block: str = "",
) -> None:
    """The steps of a launch. With `all_taps`, one copy of an operand serves all taps of a filter.

    `staged` is the result in shared memory: it is stored from there in runs of 16 bytes. `transposed_in_block` is the
    operand that is contiguous along its rows or columns in memory, and along the reduced axis in shared memory.
    """
    sums, mma = c.stage.name, c.intrinsic
    wide = mma.warps > 1
    one_image = wide and any(not facts.depends(c.left, axis.name) for axis in c.both)
    kind = "flat" if flat else "wide_images" if one_image else "wide" if wide else "matrix"
    plan.names += (f"{kind}{'_taps' if all_taps and c.taps else ''}{'_turned' if transposed_in_block else ''}",)
    parts = tiling(plan, c, flat is not None)
    inner, block, threads_y = parts.inner, parts.block, parts.teams
    chunks = [n for n in _chunks(c, flat is not None) if c.along.extent % (n * mma.k) == 0]
    chunk = plan.knob("chunk", chunks, 64 // mma.step_bytes)
    depth = plan.knob("depth", _WIDE_DEPTHS if wide else _DEPTHS, 4 if wide else 3)
    if staged and flat:
        flat_in_runs(plan, c, out, staged, block, threads_y, flat)
    elif staged:
        in_runs(plan, c, out, staged, block, threads_y)
    host = staged or out
    _result(plan, parts, host, inside=staged is not None)
    plan.step(s.SetScope(sums, "warp"), s.ComputeAt(sums, host.name, plan.lanes))
    step_loop = _sums(plan, c, inner, chunk, all_taps)
    shared: list[Extent] = []
    extents: dict[str, Extent] = {**block, c.along.name: times([chunk, mma.k])}
    if all_taps:
        extents |= {tap.name: tap.extent for tap in c.taps}
    for read in (c.left, c.right):
        transposes_it = read.tensor == transposed_in_block
        shared.append(_copied(plan, c, read, extents, step_loop, threads_y, depth, flat is not None, transposes_it))
    iterations = covered(c.along.extent, times([chunk, mma.k]))
    if not all_taps:
        iterations = times([iterations, *(tap.extent for tap in c.taps)])
    held = times([least(depth, iterations), plus(shared)])
    tensor_tiles.limits(plan, parts, held)
    beside = 1 if flat else tensor_tiles.beside(out, c, (block if staged else inner))
    stored, late = times([2, *block.values(), beside]), tensor_tiles.late(parts, chunk, all_taps)
    packs = [r for r in (c.left, c.right) if order(r, c) is not None and r.tensor != transposed_in_block]
    packed = sum(dtype(r.dtype).bytes * prod(plan.base.shape_of(r.tensor)) for r in packs)
    if flat and flat.packed:
        packed += dtype(c.left.dtype).bytes * prod(plan.base.shape_of(flat.source))
    moved = [covered(part, dtype(c.left.dtype).bytes) for part, r in zip(shared, (c.left, c.right), strict=True)
             if r.tensor == transposed_in_block]  # fmt: skip
    plan.counts = tensor_tiles.counts(
        plan.target, parts, depth, iterations, plus(shared), held, stored, late, packed, plus(moved)
    )


def _chunks(c: MatrixContraction, flat: bool) -> Sequence[int]:
    """Products along the reduced axis between two barriers."""
    mma = c.intrinsic
    if mma.warps > 1:
        return _WIDE_CHUNKS if along_columns(c) and not flat else (mma.line // mma.k,)
    return [n // mma.step_bytes for n in (_CHUNKS if mma.lanes > 1 else _CHUNKS[:3]) if n >= mma.step_bytes]


def _result(plan: Plan, parts: Tiling, out: Stage, *, inside: bool) -> None:
    """The loops of the results: blocks, warps, lanes, and the elements of a lane. With `inside`, a block has no other
    loops."""
    c, name, axis_of = parts.c, out.name, facts.places_in(out, parts.c.stage)
    level: dict[str, list[str]] = {}
    for a in (one.name for one in (*c.rows, *c.columns)):
        level[a] = plan.split(name, axis_of[a], (parts.warps[a], parts.tiles[a], parts.inner[a]))
    rows = [level[a.name] for a in c.rows]
    columns = [level[a.name] for a in c.columns]
    blocks = [axis_of[a.name] for a in c.both] + [one[0] for one in (*rows, *columns)]
    warps = [one[1] for one in (*rows, *columns)]
    tiles = [one[2] for one in (*rows, *columns)]
    inner_rows, inner_columns = [one[3] for one in rows], [one[3] for one in columns]
    plan.step(s.Reorder(name, (*blocks, *warps, *tiles, *inner_rows, *inner_columns)))
    fragment = c.intrinsic.fragment
    half, row = plan.split(name, plan.fuse(name, inner_rows), (fragment.rows,))
    *group, quad, pair = plan.split(name, plan.fuse(name, inner_columns), fragment.splits)
    lanes = [quad, row] if fragment.across else [row, quad]
    held = [*tiles, half, *group, pair]
    plan.step(s.Reorder(name, (*lanes, *held)))
    whole = plan.fuse(name, blocks)
    if not inside:
        plan.annotate(name, "block.x", whole)
    plan.annotate(name, "thread.y", plan.fuse(name, warps))
    plan.lanes = plan.fuse(name, lanes)
    plan.annotate(name, "thread.x", plan.lanes)
    if fragment.run == 1:
        held = held[: len(tiles)]  # neighbours belong to successive products
    plan.annotate(name, "unroll", *held[:-1])
    plan.annotate(name, "vector", held[-1])


def _sums(plan: Plan, c: MatrixContraction, inner: dict[str, Extent], chunk: Extent, all_taps: bool) -> str:
    """The loops of the sums. Returns the one at which operands are copied."""
    name, mma = c.stage.name, c.intrinsic
    level = {a.name: plan.split(name, a.name, (inner[a.name],)) for a in (*c.rows, *c.columns)}
    outer, steps, along = plan.split(name, c.along.name, (chunk, mma.k))
    taps, batches = [t.name for t in c.taps], [a.name for a in c.both]
    rows, columns = [level[a.name][1] for a in c.rows], [level[a.name][1] for a in c.columns]
    tiles = [level[a.name][0] for a in (*c.rows, *c.columns)]
    plan.step(s.Reorder(name, (outer, *taps, steps, *batches, *tiles, *rows, *columns, along)))
    copies = outer if all_taps or not taps else plan.fuse(name, [outer, *taps])
    # When unrolled, loads for one tap are in flight while products of the previous one are computed.
    plan.annotate(name, "unroll", *(taps[-1:] if all_taps else ()), steps)
    first = plan.fuse(name, rows)
    plan.fuse(name, columns)
    places = _places(c, inner)
    order = (*(s.LayoutPlace(n, by) for n, by in places), *(s.LayoutPlace[s.Number](n, 1, by) for n, by in places))
    plan.step(s.Layout(name, order), s.Tensorize(name, first, mma.name))
    return copies


def _places(c: MatrixContraction, inner: dict[str, Extent]) -> list[tuple[int, s.Number]]:
    """The dimensions of the sums, rows before columns, and how much of each one product covers."""
    places = [a.name for a in c.stage.axes]
    order = (*c.both, *c.rows, *c.columns)
    return [(places.index(a.name), text(inner.get(a.name, 1))) for a in order]


def _copied(
    plan: Plan,
    c: MatrixContraction,
    read: Read,
    extents: dict[str, Extent],
    loop: str,
    threads_y: Extent,
    depth: Extent,
    rows_in_lines: bool,
    transposes_it: bool,
) -> Extent:
    """An operand's part in shared memory. Returns its bytes. With `transposes_it`, threads transpose it."""
    sums, tensor = c.stage.name, read.tensor
    stages = facts.computed_in_blocks(plan.base)
    places = order(read, c)
    own = tensor in stages and (places is None or transposes_it)
    name = tensor if own else f"{tensor}.shared"
    shape = plan.base.shape_of(tensor)
    sizes = [span(i, extents) for i in read.indices]
    taps: dict[str, Extent] = {**extents, **{tap.name: tap.extent for tap in c.taps}}
    for size, i, whole in zip(sizes, read.indices, shape, strict=True):
        # A part as large as the whole starts at the beginning of the whole, for any tap.
        fits = span(i, taps) <= whole
        plan.require(size <= whole, f"a block's part of {tensor} is not larger than all of it")
        if not isinstance(fits, bool) or not fits:
            plan.require((size < whole) | fits, f"a block's part of {tensor} has room for all taps")
    bytes_each = dtype(read.dtype).bytes
    width = WIDEST // bytes_each
    last = sizes[places[-1] if places else max(n for n, i in enumerate(read.indices) if i.iterators)]
    plan.require(divided(last, width), f"rows of {tensor} in shared memory are whole runs of {WIDEST} bytes")
    if own:
        plan.step(s.SetScope(name, "shared"))
        axes = [a.name for a in stages[tensor].axes]
    else:
        axes = [f"a{n}" for n in range(len(shape))]
    plan.step(s.ComputeAt(name, sums, loop))
    if places is not None:
        for copy in (name,) if transposes_it else (packed_name(tensor, set(stages)), name):
            plan.step(s.Layout(copy, s.whole(*places)))
    by_threads = (("thread.y", threads_y), ("thread.x", c.intrinsic.lanes))
    if transposes_it:
        # Lanes take elements that are contiguous in memory, and each of them a run along the reduced axis.
        summed = axes[along_of(read, c)]
        groups, run = plan.split(name, summed, (width,))
        others = [axis for axis in axes if axis != summed]
        plan.step(s.Reorder(name, (groups, *others, run)))
        plan.deal(name, [groups, *others], *by_threads)
        plan.annotate(name, "vector", run)
    else:
        if places is not None:
            axes = [axes[n] for n in places]
            plan.step(s.Reorder(name, tuple(axes)))
        plan.deal(name, axes, *by_threads, ("vector", width))
    lines = c.intrinsic.warps > 1 and read == c.right
    if lines and along_columns(c):
        along = along_of(read, c)
        column = next(n for n, i in enumerate(read.indices) if facts.plain(i) == c.columns[0].name)
        rest = s.whole(*(n for n in range(len(shape)) if n not in (along, column)))
        within, line = s.LayoutPlace[s.Number](column, 1, c.intrinsic.line), c.intrinsic.line
        plan.step(s.Layout(name, (*rest, s.LayoutPlace(column, line), *s.whole(along), within)))
    swizzle = plan.knob(f"swizzle_{tensor}", (3,) if lines or rows_in_lines else (0, 1, 2, 3), 3)
    plan.step(s.Pipeline(name, text(depth)), s.Swizzle(name, text(swizzle)))
    return times([bytes_each, *sizes])


def copies(
    expression: Expression, c: MatrixContraction, reader: str, transposed_in_block: str = ""
) -> tuple[s.Step, ...]:
    """Steps that create stages: operands in shared memory, reordered before that if necessary."""
    names = set(facts.computed_in_blocks(expression))
    steps: list[s.Step] = []
    for read in (c.left, c.right):
        source = read.tensor
        packs = order(read, c) is not None and source != transposed_in_block
        if packs:
            source = packed_name(read.tensor, names)
            if read.tensor not in names:
                steps.append(s.CacheRead(read.tensor, source, "global", (reader,)))
            steps += operands.tile(expression, read.tensor, source)
        if packs or source not in names:
            steps.append(s.CacheRead(source, f"{read.tensor}.shared", "shared", (reader,)))
    return tuple(steps)
