"""Which values knobs may have: sizes of tiles, and how many turns of a loop are unrolled."""

from __future__ import annotations

from collections.abc import Iterable

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)  # of a register tile
VECTORS = (1, 2, 3, 4, 6)  # in a row of a register tile
BLOCKS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)  # tiles of an axis
_LARGEST_TILE = 64


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def unrolls(extent: int, most: int = 8) -> list[int]:
    """Only whole turns are unrolled: what is left over would need its own code."""
    return [d for d in divisors(extent) if d <= most]


def blocks(extent: int, tiled: bool) -> list[int]:
    """How many tiles of an axis, or elements where it has no tiles, a block may have."""
    return up_to(BLOCKS, extent) if tiled else tiles(extent)


def tiles(extent: int, most: int = _LARGEST_TILE) -> list[int]:
    """Powers of two, and divisors, which leave no edge."""
    powers = {1 << i for i in range(most.bit_length())}
    exact = {d for d in divisors(extent) if d <= most} if extent <= 1 << 16 else set()
    return sorted(size for size in powers | exact if size <= min(extent, most))


def thread_counts(cores: int) -> list[int]:
    return [*(1 << i for i in range(cores.bit_length()) if 1 << i < cores), cores]


def up_to(values: Iterable[int], most: int) -> list[int]:
    """Those that are not larger, at least one."""
    return [v for v in values if v <= most] or [1]
