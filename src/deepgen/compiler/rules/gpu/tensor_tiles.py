"""Tiles for matrix units: how rows and columns are divided among blocks, warps and matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from deepgen.compiler.costs import Counts
from deepgen.compiler.rules.gpu.contraction import MatrixContraction, transposed_along
from deepgen.compiler.rules.gpu.plan import WIDEST, Plan
from deepgen.compiler.rules.gpu.stored import SPARE
from deepgen.compiler.rules.template import Extent, covered, divided, plus, times
from deepgen.operators.expr.nodes import Axis, Stage
from deepgen.space import divides
from deepgen.targets import Gpu

_TILES = (1, 2, 4, 8)  # products along a side of a warp's tile
_WARPS = (1, 2, 4, 8)
_FLAT_WARPS = (4, 8, 16)
_LONE = (1, 2, 4, 8, 16, 32)  # threads along a side of a block, if each has its own sums
_WIDE_TILES = (8, 16, 32)  # along the columns of four warps: whole lines of swizzled memory
_TRANSPOSED = 8  # elements of two bytes in a row of a matrix


@dataclass(frozen=True)
class Tiling:
    """The tile along each axis of rows and columns: extent in a product, products per warp, warps per block."""

    c: MatrixContraction
    inner: dict[str, Extent]
    tiles: dict[str, Extent]
    warps: dict[str, Extent]

    @cached_property
    def block(self) -> dict[str, Extent]:
        return {name: times([self.warps[name], self.tiles[name], self.inner[name]]) for name in self.inner}

    @property
    def teams(self) -> Extent:
        """The warps of a block."""
        return times(self.warps.values())

    @property
    def sides(self) -> tuple[Extent, Extent]:
        """The products of a warp along rows and columns."""
        rows, columns = (times(self.tiles[a.name] for a in side) for side in (self.c.rows, self.c.columns))
        return rows, columns

    @property
    def registers(self) -> Extent:
        """Of a thread: its sums, operands, addresses and the like."""
        (rows, columns), mma = self.sides, self.c.intrinsic
        operands = times([rows, mma.words(mma.m)]), times([columns, mma.words(mma.n)])
        return plus([times([rows, columns, mma.fragment.sums]), *operands, _RESERVED])


def tiling(plan: Plan, c: MatrixContraction, flat: bool) -> Tiling:
    mma, wide = c.intrinsic, c.intrinsic.warps > 1
    inner: dict[str, Extent] = {}
    tiles: dict[str, Extent] = {}
    warps: dict[str, Extent] = {}
    for side, size, words in ((c.rows, mma.m, "rows"), (c.columns, mma.n, "columns")):
        usual = _usual(side, size)
        for axis in side:
            (part, few, beside), last = usual[axis.name], axis == side[-1]
            inner[axis.name] = plan.knob(f"{axis.name}_inner", _inner(axis, side, size), part)
            counts: tuple[int, ...] = _TILES if last else _TILES[:3]
            teams: tuple[int, ...] = _WARPS if last else _WARPS[:3]
            if wide and side == c.columns:
                counts, teams = _WIDE_TILES, (1,)
            elif flat:
                counts, teams = (1,), _FLAT_WARPS
            elif mma.lanes == 1:
                teams = _LONE if last else _LONE[:3]
            tiles[axis.name] = plan.knob(f"{axis.name}_tiles", counts, few)
            warps[axis.name] = plan.knob(f"{axis.name}_warps", teams, beside)
            own = times([tiles[axis.name], inner[axis.name]])
            # A warp's part as large as the whole starts at the beginning of the whole.
            fits = (own < axis.extent) | (times([own, warps[axis.name]]) <= axis.extent)
            plan.require(fits, f"a warp's part of {axis.name} is not larger than all of it")
        plan.require(times(inner[a.name] for a in side) == size, f"{size} {words} of a product")
    for read in (c.left, c.right):
        if not mma.own and (axis_of_runs := transposed_along(read, c)) is not None:
            run = inner[axis_of_runs]
            plan.require(divided(run, _TRANSPOSED), f"rows of matrices of {read.tensor} are {WIDEST} bytes of it")
    if wide:
        team = times(warps[a.name] for a in c.rows)
        plan.require(divided(team, 4), "four warps along rows")
    return Tiling(c, inner, tiles, warps)


def _inner(axis: Axis, side: tuple[Axis, ...], size: int) -> list[int]:
    """The extents of an axis that one product can cover."""
    if len(side) == 1:
        return [size]
    return [n for n in (1, 2, 4, 8, 16) if n <= min(size, axis.extent)]


def _usual(side: tuple[Axis, ...], size: int) -> dict[str, tuple[int, int, int]]:
    """The extent in a product, products and warps along each axis: a tile for two warps of four products each along a
    side, with as few elements beyond the edges as possible."""
    inner: dict[str, int] = {}
    for exact in (True, False):
        for axis in reversed(side):
            left = size // inner.get(axis.name, 1)
            for other in side:
                left //= inner.get(other.name, 1) if other != axis else 1
            before = inner.get(axis.name, 1)
            fitting = [n for n in (1, 2, 4, 8, 16) if before * n <= axis.extent and n <= left]
            inner[axis.name] = before * max(n for n in fitting if not exact or axis.extent % (before * n) == 0)
    usual: dict[str, tuple[int, int, int]] = {}
    tiles, warps = 4, 2
    for axis in reversed(side):
        room = max(1, axis.extent // inner[axis.name])
        own = _power(min(room, tiles))
        beside = _power(min(room // own, warps))
        tiles, warps = tiles // own, warps // beside
        usual[axis.name] = inner[axis.name], own, beside
    return usual


def _power(number: int) -> int:
    return 1 << (max(number, 1).bit_length() - 1)


_SECTOR = 32  # bytes of memory that are written together
_RESERVED = 48  # registers for addresses and the like


def limits(plan: Plan, of: Tiling, shared: Extent) -> None:
    gpu, c = plan.target, of.c
    if c.columns and not c.intrinsic.own:
        plan.require(divides(2, of.tiles[c.columns[-1].name]), "an even number of products along columns")
    registers = of.registers
    plan.require(registers <= min(gpu.registers_per_thread, 255), "a thread's sums and operands fit in its registers")
    threads = times([of.teams, c.intrinsic.lanes])
    plan.require(threads <= gpu.threads_per_block, "threads of a block")
    if c.intrinsic.lanes < gpu.warp:
        plan.require(divides(gpu.warp, threads), "whole warps")
    plan.require(times([threads, registers]) <= gpu.registers_per_sm, "a block's registers fit in a multiprocessor")
    plan.require(
        shared <= gpu.shared_per_block - (SPARE if c.intrinsic.warps > 1 else 1024), "copies fit in shared memory"
    )
    plan.derive("shared_bytes", shared)
    plan.derive("threads", threads)
    plan.derive("registers", registers)


def beside(out: Stage, c: MatrixContraction, runs: dict[str, Extent]) -> Extent:
    """How many elements are written per result, including those between results and the rest of their sectors."""
    between = covered(prod(out.shape), prod(c.stage.shape))
    return times([between, covered(_SECTOR // 2, runs.get(c.stage.axes[-1].name, 1))])


def counts(
    gpu: Gpu,
    of: Tiling,
    depth: Extent,
    iterations: Extent,
    copied: Extent,
    held: Extent,
    stored: Extent,
    late: Extent,
    packed: int,
    transposed: Extent,
) -> Counts:
    """The work of a block, for an estimate of its time."""
    c, (rows, columns), warps = of.c, of.sides, of.teams
    mma, places = c.intrinsic, (*c.rows, *c.columns)
    steps = prod((c.along.extent // mma.k, *(tap.extent for tap in c.taps)))
    peak = (gpu.peak(mma.operand) or 1.0) * 1e9
    # Rows of a matrix that are not contiguous in memory may fall on the same banks.
    by_rows = times([rows, 3 + covered(8, of.inner[c.rows[-1].name])])
    return Counts(
        blocks=times([*(a.extent for a in c.both), *(covered(a.extent, of.block[a.name]) for a in places)]),
        threads=times([warps, mma.lanes]),
        registers=of.registers,
        shared_bytes=held,
        operations=times([2 * mma.m * mma.n * mma.k * steps, rows, columns, warps]),
        loads=times([steps, warps, plus([by_rows, 0 if mma.warps > 1 else times([columns, 2])])]),
        iterations=iterations,
        copied=copied,
        depth=depth,
        late=late,
        stored=stored,
        packed=packed,
        transposed=transposed,
        rate=peak * mma.share_of_peak(gpu.arch, late=False),
        rate_late=peak * mma.share_of_peak(gpu.arch, late=True),
    )


def late(of: Tiling, chunk: Extent, all_taps: bool) -> Extent:
    """1 if matrix units read rows from lines of shared memory. Rows of several axes may be stored in lines too."""
    c = of.c
    if (
        c.intrinsic.warps == 1
        or len(c.rows) > 1
        or transposed_along(c.left, c)
        or (all_taps and any(tap.extent > 1 for tap in c.taps))
    ):
        return 0
    return (of.tiles[c.rows[0].name] == 1) & (times([chunk, c.intrinsic.k]) == c.intrinsic.line)
