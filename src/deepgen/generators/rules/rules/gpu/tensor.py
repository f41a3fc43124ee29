"""Matrix units: a sum of products is tiled for blocks, warps and products of matrices.

Rows and columns of the products may be several axes: of a convolution, the images and places of its result. Operands
lie in shared memory as in their tensors, and lanes ask for rows of matrices by the operands' own indices. So one copy
of an image serves all taps of a filter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from deepgen.generators.rules.intrinsics.matrix import MatrixProduct
from deepgen.generators.rules.rules import facts
from deepgen.generators.rules.rules.gpu import turned
from deepgen.generators.rules.rules.gpu.contraction import (
    Contraction,
    along_columns,
    along_of,
    order,
    packed_name,
    turned_along,
)
from deepgen.generators.rules.rules.gpu.counts import Counts
from deepgen.generators.rules.rules.gpu.flat import Flat
from deepgen.generators.rules.rules.gpu.plan import WIDEST, Plan, product_of, reach, total_of
from deepgen.generators.rules.rules.gpu.stored import SPARE, axes_of, flat_in_runs, in_runs
from deepgen.generators.rules.rules.numbers import Extent, covered, least, text
from deepgen.generators.rules.schedule import steps as s
from deepgen.operators.expr.nodes import Axis, Expression, Read, Stage
from deepgen.space import divides
from deepgen.targets.gpu import Gpu
from deepgen.vocabulary.dtypes import dtype

_TILES = (1, 2, 4, 8)  # products along a side of a warp's tile
_WARPS = (1, 2, 4, 8)
_CHUNKS = (16, 32, 64, 128, 256)  # bytes along what is summed over, between two barriers
_DEPTHS = (1, 2, 3, 4)
_WIDE_DEPTHS = (2, 3, 4, 5, 6)
_SECTOR = 32  # bytes of memory that are written together
_FLAT_WARPS = (4, 8, 16)
_LONE = (1, 2, 4, 8, 16, 32)  # threads along a side of a block, where each has its own sums
_WIDE_TILES = (8, 16, 32)  # along the columns of four warps: whole lines of swizzled memory
_WIDE_CHUNKS = (2, 4)
_TURNED = 8  # elements of two bytes in a row of a matrix
_RESERVED = 48  # registers for addresses and the like


def by_matrices(
    plan: Plan,
    out: Stage,
    c: Contraction,
    *,
    all_taps: bool,
    staged: Stage | None = None,
    flat: Flat | None = None,
    turned_in_block: str = "",
) -> None:
    """The steps of a launch. With `all_taps`, a copy of an operand serves all taps of a filter.

    `staged` is what is stored, in shared memory: from there it is stored in runs of 16 bytes. `turned_in_block` is the
    operand whose neighbours in memory differ in their place, and in shared memory in what is summed over.
    """
    sums, mma = c.stage.name, c.intrinsic
    wide = mma.warps > 1
    one_image = wide and any(not facts.depends(c.left, axis.name) for axis in c.both)
    kind = "flat" if flat else "wide_images" if one_image else "wide" if wide else "matrix"
    plan.names.append(f"{kind}{'_taps' if all_taps and c.taps else ''}{'_turned' if turned_in_block else ''}")
    parts = _tiling(plan, c, flat is not None)
    inner, tiles, warps = parts.inner, parts.tiles, parts.warps
    chunks = [n for n in _chunks(c, flat is not None) if c.along.extent % (n * mma.k) == 0]
    chunk = plan.knob("chunk", chunks, 64 // mma.step_bytes)
    depth = plan.knob("depth", _WIDE_DEPTHS if wide else _DEPTHS, 4 if wide else 3)
    block = {name: product_of(warps[name], tiles[name], inner[name]) for name in inner}
    threads_y = product_of(*warps.values())
    if staged and flat:
        flat_in_runs(plan, c, out, staged, block, threads_y, flat)
    elif staged:
        in_runs(plan, c, out, staged, block, threads_y)
    host = staged or out
    _result(plan, c, host, {n: (warps[n], tiles[n], inner[n]) for n in inner}, inside=staged is not None)
    plan.step(s.SetScope(sums, "warp"), s.ComputeAt(sums, host.name, plan.lanes))
    step_loop = _sums(plan, c, inner, chunk, all_taps)
    shared: list[Extent] = []
    extents: dict[str, Extent] = {**block, c.along.name: product_of(chunk, mma.k)}
    if all_taps:
        extents |= {tap.name: tap.extent for tap in c.taps}
    for read in (c.left, c.right):
        turns_it = read.tensor == turned_in_block
        shared.append(_copied(plan, c, read, extents, step_loop, threads_y, depth, flat is not None, turns_it))
    turns = covered(c.along.extent, product_of(chunk, mma.k))
    if not all_taps:
        turns = product_of(turns, *(tap.extent for tap in c.taps))
    held = product_of(least(depth, turns), total_of(*shared))
    _limits(plan, c, tiles, threads_y, held)
    beside = 1 if flat else _beside(out, c, (block if staged else inner))
    stored, late = product_of(2, *block.values(), beside), _late(c, tiles, chunk, all_taps)
    counts = _counts(plan.gpu, c, inner, tiles, threads_y, block, depth, turns, total_of(*shared), held, stored, late)
    packs = [r for r in (c.left, c.right) if order(r, c) is not None and r.tensor != turned_in_block]
    packed = sum(dtype(r.dtype).bytes * prod(plan.expression.shape_of(r.tensor)) for r in packs)
    if flat and flat.packed:
        packed += dtype(c.left.dtype).bytes * prod(plan.expression.shape_of(flat.source))
    moved = [covered(part, dtype(c.left.dtype).bytes) for part, r in zip(shared, (c.left, c.right), strict=True)
             if r.tensor == turned_in_block]  # fmt: skip
    plan.counts = replace(counts, packed=packed, turned=total_of(*moved))


def _chunks(c: Contraction, flat: bool) -> Sequence[int]:
    """Products along what is summed over, between two barriers."""
    mma = c.intrinsic
    if mma.warps > 1:
        return _WIDE_CHUNKS if along_columns(c) and not flat else (mma.line // mma.k,)
    return [n // mma.step_bytes for n in (_CHUNKS if mma.lanes > 1 else _CHUNKS[:3]) if n >= mma.step_bytes]


@dataclass(frozen=True)
class _Tiling:
    """Of each axis of rows and columns: what is in a product, products of a warp, warps of a block."""

    inner: dict[str, Extent]
    tiles: dict[str, Extent]
    warps: dict[str, Extent]


def _tiling(plan: Plan, c: Contraction, flat: bool) -> _Tiling:
    mma, wide = c.intrinsic, c.intrinsic.warps > 1
    inner: dict[str, Extent] = {}
    tiles: dict[str, Extent] = {}
    warps: dict[str, Extent] = {}
    for side, size, words in ((c.rows, mma.m, "rows"), (c.columns, mma.n, "columns")):
        usual = _usual(side, size)
        for axis in side:
            few, last = usual[axis.name], axis == side[-1]
            inner[axis.name] = plan.knob(f"{axis.name}_inner", _inner(axis, side, size), few.inner)
            counts: tuple[int, ...] = _TILES if last else _TILES[:3]
            teams: tuple[int, ...] = _WARPS if last else _WARPS[:3]
            if wide and side == c.columns:
                counts, teams = _WIDE_TILES, (1,)
            elif flat:
                counts, teams = (1,), _FLAT_WARPS
            elif mma.lanes == 1:
                teams = _LONE if last else _LONE[:3]
            tiles[axis.name] = plan.knob(f"{axis.name}_tiles", counts, few.tiles)
            warps[axis.name] = plan.knob(f"{axis.name}_warps", teams, few.warps)
            own = product_of(tiles[axis.name], inner[axis.name])
            # A warp's part as large as the whole begins where that begins.
            fits = (own < axis.extent) | (product_of(own, warps[axis.name]) <= axis.extent)
            plan.require(fits, f"a warp's part of {axis.name} is not larger than all of it")
        plan.require(product_of(*(inner[a.name] for a in side)) == size, f"{size} {words} of a product")
    for read in (c.left, c.right):
        if not mma.own and (axis_of_runs := turned_along(read, c)) is not None:
            run = inner[axis_of_runs]
            whole = divides(_TURNED, run) if not isinstance(run, int) else run % _TURNED == 0
            plan.require(whole, f"rows of matrices of {read.tensor} are {WIDEST} bytes of it")
    if wide:
        team = product_of(*(warps[a.name] for a in c.rows))
        plan.require(divides(4, team) if not isinstance(team, int) else team % 4 == 0, "four warps along rows")
    return _Tiling(inner, tiles, warps)


def _inner(axis: Axis, side: tuple[Axis, ...], size: int) -> list[int]:
    """How much of an axis may lie in one product."""
    if len(side) == 1:
        return [size]
    return [n for n in (1, 2, 4, 8, 16) if n <= min(size, axis.extent)]


@dataclass(frozen=True)
class _Parts:
    inner: int
    tiles: int
    warps: int


def _usual(side: tuple[Axis, ...], size: int) -> dict[str, _Parts]:
    """A tile for two warps of four products each along a side, with as few elements beyond the edges as can be."""
    inner: dict[str, int] = {}
    for exact in (True, False):
        for axis in reversed(side):
            left = size // inner.get(axis.name, 1)
            for other in side:
                left //= inner.get(other.name, 1) if other != axis else 1
            before = inner.get(axis.name, 1)
            fitting = [n for n in (1, 2, 4, 8, 16) if before * n <= axis.extent and n <= left]
            inner[axis.name] = before * max(n for n in fitting if not exact or axis.extent % (before * n) == 0)
    found: dict[str, _Parts] = {}
    tiles, warps = 4, 2
    for axis in reversed(side):
        room = max(1, axis.extent // inner[axis.name])
        own = _power(min(room, tiles))
        beside = _power(min(room // own, warps))
        tiles, warps = tiles // own, warps // beside
        found[axis.name] = _Parts(inner[axis.name], own, beside)
    return found


def _power(number: int) -> int:
    return 1 << (max(number, 1).bit_length() - 1)


def _result(
    plan: Plan, c: Contraction, out: Stage, parts: dict[str, tuple[Extent, Extent, Extent]], *, inside: bool
) -> None:
    """The loops of the results: blocks, warps, lanes, and what a lane has. `inside` of a block there are no others."""
    name, axis_of = out.name, axes_of(out, c)
    level: dict[str, list[str]] = {}
    for axis in (*c.rows, *c.columns):
        level[axis.name] = plan.split(name, axis_of[axis.name], *parts[axis.name])
    rows = [level[a.name] for a in c.rows]
    columns = [level[a.name] for a in c.columns]
    blocks = [axis_of[a.name] for a in c.both] + [one[0] for one in (*rows, *columns)]
    warps = [one[1] for one in (*rows, *columns)]
    tiles = [one[2] for one in (*rows, *columns)]
    inner_rows, inner_columns = [one[3] for one in rows], [one[3] for one in columns]
    plan.step(s.Reorder(name, (*blocks, *warps, *tiles, *inner_rows, *inner_columns)))
    fragment = c.intrinsic.fragment
    half, row = plan.split(name, plan.fuse(name, inner_rows), fragment.rows)
    *group, quad, pair = plan.split(name, plan.fuse(name, inner_columns), *fragment.splits)
    lanes = [quad, row] if fragment.across else [row, quad]
    held = [*tiles, half, *group, pair]
    plan.step(s.Reorder(name, (*lanes, *held)))
    whole = plan.fuse(name, blocks)
    if not inside:
        plan.bind(name, "block.x", whole)
    plan.bind(name, "thread.y", plan.fuse(name, warps))
    plan.lanes = plan.fuse(name, lanes)
    plan.bind(name, "thread.x", plan.lanes)
    if fragment.run == 1:
        held = held[: len(tiles)]  # neighbours are in products after each other
    plan.bind(name, "unroll", *held[:-1])
    plan.bind(name, "vector", held[-1])


def _sums(plan: Plan, c: Contraction, inner: dict[str, Extent], chunk: Extent, all_taps: bool) -> str:
    """The loops of the sums; the one at which operands are copied."""
    name, mma = c.stage.name, c.intrinsic
    level = {a.name: plan.split(name, a.name, inner[a.name]) for a in (*c.rows, *c.columns)}
    outer, steps, along = plan.split(name, c.along.name, chunk, mma.k)
    taps, batches = [t.name for t in c.taps], [a.name for a in c.both]
    rows, columns = [level[a.name][1] for a in c.rows], [level[a.name][1] for a in c.columns]
    tiles = [level[a.name][0] for a in (*c.rows, *c.columns)]
    plan.step(s.Reorder(name, (outer, *taps, steps, *batches, *tiles, *rows, *columns, along)))
    copies = outer if all_taps or not taps else plan.fuse(name, [outer, *taps])
    # Written out, loads of one tap are under way while products of the one before are computed.
    plan.bind(name, "unroll", *(taps[-1:] if all_taps else ()), steps)
    first = plan.fuse(name, rows)
    plan.fuse(name, columns)
    order = [f"{n}/{s_}" for n, s_ in _places(c, inner)] + [f"{n}%{s_}" for n, s_ in _places(c, inner)]
    plan.step(s.Layout(name, tuple(order)), s.Tensorize(name, first, mma.name))
    return copies


def _places(c: Contraction, inner: dict[str, Extent]) -> list[tuple[int, str]]:
    """The dimensions of the sums, rows before columns, and how much of each is in one product."""
    places = [a.name for a in c.stage.axes]
    order = (*c.both, *c.rows, *c.columns)
    return [(places.index(a.name), str(inner.get(a.name, 1))) for a in order]


def _copied(
    plan: Plan,
    c: Contraction,
    read: Read,
    extents: dict[str, Extent],
    loop: str,
    threads_y: Extent,
    depth: Extent,
    rows_in_lines: bool,
    turns_it: bool,
) -> Extent:
    """An operand's part in shared memory; its bytes. With `turns_it`, threads read it as it lies and turn it."""
    sums, tensor = c.stage.name, read.tensor
    stages = {stage.name: stage for stage in plan.expression.stages}
    places = order(read, c)
    own = tensor in stages and (places is None or turns_it)
    name = tensor if own else f"{tensor}.shared"
    shape = plan.expression.shape_of(tensor)
    sizes = [reach(i, extents) for i in read.indices]
    taps: dict[str, Extent] = {**extents, **{tap.name: tap.extent for tap in c.taps}}
    for size, i, whole in zip(sizes, read.indices, shape, strict=True):
        # A part as large as the whole begins where that begins, whichever tap is at work.
        fits = reach(i, taps) <= whole
        plan.require(size <= whole, f"a block's part of {tensor} is not larger than all of it")
        if not isinstance(fits, bool) or not fits:
            plan.require((size < whole) | fits, f"a block's part of {tensor} has room for all taps")
    bytes_each = dtype(read.dtype).bytes
    width = WIDEST // bytes_each
    last = sizes[places[-1] if places else max(n for n, i in enumerate(read.indices) if i.iterators)]
    plan.require(divides(width, last) if not isinstance(last, int) else last % width == 0,
                 f"rows of {tensor} in shared memory are whole runs of {WIDEST} bytes")  # fmt: skip
    if own:
        plan.step(s.SetScope(name, "shared"))
        axes = [a.name for a in stages[tensor].axes]
    else:
        axes = [f"a{n}" for n in range(len(shape))]
    plan.step(s.ComputeAt(name, sums, loop))
    if places is not None:
        for copy in (name,) if turns_it else (packed_name(tensor, set(stages)), name):
            plan.step(s.Layout(copy, tuple(map(str, places))))
    if turns_it:
        # Lanes have neighbours in memory, and each of them a run of what is summed over.
        summed = axes[along_of(read, c)]
        groups, run = plan.split(name, summed, width)
        others = [axis for axis in axes if axis != summed]
        plan.step(s.Reorder(name, (groups, *others, run)))
        _, by_y, by_x = plan.split(name, plan.fuse(name, [groups, *others]), threads_y, c.intrinsic.lanes)
    else:
        if places is not None:
            axes = [axes[n] for n in places]
            plan.step(s.Reorder(name, tuple(axes)))
        _, by_y, by_x, run = plan.split(name, plan.fuse(name, axes), threads_y, c.intrinsic.lanes, width)
    plan.bind(name, "thread.y", by_y)
    plan.bind(name, "thread.x", by_x)
    plan.bind(name, "vector", run)
    lines = c.intrinsic.warps > 1 and read == c.right
    if lines and along_columns(c):
        along = along_of(read, c)
        column = next(n for n, i in enumerate(read.indices) if facts.plain(i) == c.columns[0].name)
        rest = [str(n) for n in range(len(shape)) if n not in (along, column)]
        line = c.intrinsic.line
        plan.step(s.Layout(name, (*rest, f"{column}/{line}", str(along), f"{column}%{line}")))
    swizzle = plan.knob(f"swizzle_{tensor}", (3,) if lines or rows_in_lines else (0, 1, 2, 3), 3)
    plan.step(s.Pipeline(name, text(depth)), s.Swizzle(name, text(swizzle)))
    return product_of(bytes_each, *sizes)


def _limits(plan: Plan, c: Contraction, tiles: dict[str, Extent], warps: Extent, shared: Extent) -> None:
    gpu = plan.gpu
    rows = product_of(*(tiles[a.name] for a in c.rows))
    columns = product_of(*(tiles[a.name] for a in c.columns))
    if c.columns and not c.intrinsic.own:
        plan.require(divides(2, tiles[c.columns[-1].name]), "an even number of products along columns")
    registers = _registers(c.intrinsic, rows, columns)
    plan.require(registers <= min(gpu.registers_per_thread, 255), "a thread's sums and operands fit in its registers")
    threads = product_of(warps, c.intrinsic.lanes)
    plan.require(threads <= gpu.threads_per_block, "threads of a block")
    if c.intrinsic.lanes < gpu.warp:
        plan.require(divides(gpu.warp, threads), "whole warps")
    plan.require(product_of(threads, registers) <= gpu.registers_per_sm, "a block's registers fit in a multiprocessor")
    plan.require(
        shared <= gpu.shared_per_block - (SPARE if c.intrinsic.warps > 1 else 1024), "copies fit in shared memory"
    )
    plan.derive("shared_bytes", shared)
    plan.derive("threads", threads)
    plan.derive("registers", registers)


def _beside(out: Stage, c: Contraction, runs: dict[str, Extent]) -> Extent:
    """How many elements are written for each result: those between results, and those of the same sectors."""
    between = covered(prod(out.shape), prod(c.stage.shape))
    return product_of(between, covered(_SECTOR // 2, runs.get(c.stage.axes[-1].name, 1)))


def _counts(
    gpu: Gpu,
    c: Contraction,
    inner: dict[str, Extent],
    tiles: dict[str, Extent],
    warps: Extent,
    block: dict[str, Extent],
    depth: Extent,
    turns: Extent,
    copied: Extent,
    held: Extent,
    stored: Extent,
    late: Extent,
) -> Counts:
    """What a block does, for an estimate of its time."""
    mma, places = c.intrinsic, (*c.rows, *c.columns)
    rows, columns = (product_of(*(tiles[a.name] for a in side)) for side in (c.rows, c.columns))
    steps = prod((c.along.extent // mma.k, *(tap.extent for tap in c.taps)))
    peak = (gpu.peak(mma.operand) or 1.0) * 1e9
    return Counts(
        blocks=product_of(*(a.extent for a in c.both), *(covered(a.extent, block[a.name]) for a in places)),
        threads=product_of(warps, mma.lanes),
        registers=_registers(mma, rows, columns),
        shared_bytes=held,
        operations=product_of(2 * mma.m * mma.n * mma.k * steps, rows, columns, warps),
        # Rows of a matrix that do not follow each other in memory may lie on the same banks.
        loads=product_of(
            steps,
            warps,
            total_of(
                product_of(rows, 3 + covered(8, inner[c.rows[-1].name])), 0 if mma.warps > 1 else product_of(columns, 2)
            ),
        ),
        turns=turns,
        copied=copied,
        depth=depth,
        late=late,
        stored=stored,
        packed=0,
        turned=0,
        rate=peak * mma.share_of_peak(gpu.arch, late=False),
        rate_late=peak * mma.share_of_peak(gpu.arch, late=True),
    )


def _late(c: Contraction, tiles: dict[str, Extent], chunk: Extent, all_taps: bool) -> Extent:
    """1 where matrix units read rows from lines of shared memory. Rows of several axes may lie so too."""
    if (
        c.intrinsic.warps == 1
        or len(c.rows) > 1
        or turned_along(c.left, c)
        or (all_taps and any(tap.extent > 1 for tap in c.taps))
    ):
        return 0
    return (tiles[c.rows[0].name] == 1) & (product_of(chunk, c.intrinsic.k) == c.intrinsic.line)


def _registers(mma: MatrixProduct, rows: Extent, columns: Extent) -> Extent:
    """Of a thread: its sums, operands, addresses and the like."""
    operands = product_of(rows, mma.words(mma.m)), product_of(columns, mma.words(mma.n))
    return total_of(product_of(rows, columns, mma.fragment.sums), *operands, _RESERVED)


def copies(expression: Expression, c: Contraction, reader: str, turned_in_block: str = "") -> tuple[s.Step, ...]:
    """Steps that make stages: operands in shared memory, and before that in another order where it is needed."""
    names = {stage.name for stage in expression.stages}
    found: list[s.Step] = []
    for read in (c.left, c.right):
        source = read.tensor
        packs = order(read, c) is not None and source != turned_in_block
        if packs:
            source = packed_name(read.tensor, names)
            if read.tensor not in names:
                found.append(s.CacheRead(read.tensor, source, "global", (reader,)))
            found += turned.tile(expression, read.tensor, source)
        if packs or source not in names:
            found.append(s.CacheRead(source, f"{read.tensor}.shared", "shared", (reader,)))
    return tuple(found)
