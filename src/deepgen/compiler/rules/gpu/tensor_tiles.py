"""Tiles for matrix units: how rows and columns are divided among blocks, warps and products of matrices."""

from __future__ import annotations

from dataclasses import dataclass

from deepgen.compiler.rules.gpu.contraction import Contraction, turned_along
from deepgen.compiler.rules.gpu.plan import WIDEST, Plan, product_of
from deepgen.compiler.rules.numbers import Extent
from deepgen.operators.expr.nodes import Axis
from deepgen.space import divides

_TILES = (1, 2, 4, 8)  # products along a side of a warp's tile
_WARPS = (1, 2, 4, 8)
_FLAT_WARPS = (4, 8, 16)
_LONE = (1, 2, 4, 8, 16, 32)  # threads along a side of a block, where each has its own sums
_WIDE_TILES = (8, 16, 32)  # along the columns of four warps: whole lines of swizzled memory
_TURNED = 8  # elements of two bytes in a row of a matrix


@dataclass(frozen=True)
class Tiling:
    """Of each axis of rows and columns: what is in a product, products of a warp, warps of a block."""

    inner: dict[str, Extent]
    tiles: dict[str, Extent]
    warps: dict[str, Extent]


def tiling(plan: Plan, c: Contraction, flat: bool) -> Tiling:
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
    return Tiling(inner, tiles, warps)


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
