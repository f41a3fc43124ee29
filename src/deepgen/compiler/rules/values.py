"""The values that knobs can have: tile sizes, and how many iterations of a loop are unrolled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

from deepgen.targets import Cpu

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)  # of a register tile
VECTORS = (1, 2, 3, 4, 6)  # in a row of a register tile
BLOCKS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)  # tiles of an axis
_LARGEST_TILE = 64


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def unrolls(extent: int, most: int = 8) -> list[int]:
    """Only divisors: remaining iterations would need code of their own."""
    return [d for d in divisors(extent) if d <= most]


def blocks(extent: int, tiled: bool) -> list[int]:
    """How many tiles of an axis, or elements if it has no tiles, a block may have."""
    return up_to(BLOCKS, extent) if tiled else tiles(extent)


def tiles(extent: int, most: int = _LARGEST_TILE) -> list[int]:
    """Powers of two, and divisors, which leave no edge tile."""
    powers = {1 << i for i in range(most.bit_length())}
    exact = {d for d in divisors(extent) if d <= most} if extent <= 1 << 16 else set()
    return sorted(size for size in powers | exact if size <= min(extent, most))


def thread_counts(cores: int) -> list[int]:
    return [*(1 << i for i in range(cores.bit_length()) if 1 << i < cores), cores]


def up_to(values: Iterable[int], most: int) -> list[int]:
    """The values that are not larger, at least one."""
    return [v for v in values if v <= most] or [1]


_TASKS = 4  # per thread: then threads wait little for the last to finish
_OWN_TASKS = 2  # the same for threads with their own panels: other panels come from another core's cache
_ONE_BY_ONE = 2  # cycles of a product outside vectors
_IN_MEMORY = 3  # times slower than in registers: a sum is loaded and stored for each product
_LOADED = 24  # bytes per cycle from L2, where the panels are that vectors are loaded from
_WORTH_A_THREAD = 1 << 16  # operations; waking another thread takes as long as computing about this many


def register_tile(
    cpu: Cpu, rows: int, columns: int, lanes: int, *, packed: bool = False, loose: bool = False, excess: bool = False
) -> tuple[float, int, int]:
    """Rows and vectors of the tile that covers this many rows and columns in the least time, and that time.

    `packed`: the operand that rows are read from has room for a whole tile beyond the last row. `loose`: the operand
    that vectors are loaded from has no room beyond the last column. `excess`: the excess of products is summed up
    beside them.
    """
    fitting = [
        (r, v)
        for r in up_to(ROWS, rows)
        for v in up_to(VECTORS, -(-columns // lanes))
        if registers(cpu, r, v) + (v + 1 if excess else 0) <= cpu.vector_registers
    ]
    costs = {(r, v): _TileStep(cpu, v, excess).cost((rows, columns), (r, v * lanes), packed, loose) for r, v in fitting}
    return min((cost, *tile) for tile, cost in costs.items())


@dataclass(frozen=True)
class Panels:
    """What blocks of results read of the operand along which vectors run."""

    apart: frozenset[str]  # axes along which each place has panels of its own, such as the images of a batch
    whole: bool  # whether neighbouring panels share nothing; with overlapping windows they do
    column: int  # bytes of a panel's column that the next one does not share


def usual_blocks(
    cpu: Cpu,
    extents: Mapping[str, int],
    tiles: Mapping[str, int],
    panels: str | None,
    column: int,
    *,
    own: Panels | None = None,
    most: int | None = None,
) -> dict[str, int]:
    """How many tiles of each axis a block has. `most` is the limit on its results if it copies its part of a stage.

    `column` bytes are read for each element of the axis `panels`: a block of panels stays in L2, and as many tiles as
    possible of the last other axis pass over it, as long as every thread has several blocks. With `own`, if there are
    enough blocks of panels alone for all threads, all tiles pass over one block: each thread has panels of its own, and
    each panel is loaded into the cache once. (Products in AMX tiles were slower that way: they read all of the other
    operand for few columns.) Otherwise a block has no more panels than L2 holds.
    """
    out = dict.fromkeys(extents, 1)
    pieces = {axis: -(-extent // tiles.get(axis, 1)) for axis, extent in extents.items()}
    others = [axis for axis in extents if axis != panels]
    if panels is not None:
        room = max(1, cpu.l2_bytes // 2 // max(1, column * tiles[panels]))
        rest = prod(pieces[axis] for axis in others)
        sizes = [b for b in _whole(pieces[panels], True) if b <= room]
        fitting = [b for b in sizes if pieces[panels] // b * rest >= cpu.cores] or [1]
        if own is not None and own.whole and most is None:
            separate = prod(pieces[axis] for axis in own.apart)
            enough = [b for b in fitting if pieces[panels] // b * separate >= _OWN_TASKS * cpu.cores]
            if enough and all(pieces[axis] == 1 or axis in tiles for axis in others if axis not in own.apart):
                rest_of_block = {axis: 1 if axis in own.apart else pieces[axis] for axis in others}
                return {**rest_of_block, panels: max(enough)}
        out[panels] = max(fitting)
    for axis in reversed(others):
        limit = pieces[axis]
        if own is not None and panels is not None and axis in own.apart:
            width = min(out[panels] * tiles[panels], extents[panels]) * own.column
            limit = cpu.l2_bytes // 2 // max(1, width * prod(out[a] for a in own.apart))
        around = prod(pieces[a] // out[a] for a in extents if a != axis)
        results = prod(min(out[a] * tiles.get(a, 1), extents[a]) for a in extents)
        fitting_blocks = [
            b
            for b in _whole(pieces[axis], axis in tiles)
            if b <= limit and around * pieces[axis] // b >= _TASKS * cpu.cores and (most is None or results * b <= most)
        ]
        out[axis] = max(fitting_blocks, default=1)
    return out


def _whole(pieces: int, tiled: bool) -> list[int]:
    """Block sizes that leave no partial block, all tiles of an axis included."""
    return sorted({size for size in (*blocks(pieces, tiled), *([pieces] if tiled else [])) if pieces % size == 0})


def usual_threads(cpu: Cpu, operations: int) -> int:
    """As many threads as have enough work."""
    return max(count for count in thread_counts(cpu.cores) if count == 1 or operations >= count * _WORTH_A_THREAD)


def registers(cpu: Cpu, rows: int, vectors: int) -> int:
    """Sums, one row of vectors, and the numbers that these are multiplied with.

    Compilers hoist the loads of these numbers, except where a load broadcasts a number to all lanes of a vector: then
    one at a time is held.
    """
    return rows * vectors + vectors + (1 if cpu.loads_fill_vectors else rows)


@dataclass(frozen=True)
class _TileStep:
    """One step of a reduction, in tiles with this many vectors per row."""

    cpu: Cpu
    vectors: int
    excess: bool

    def cost(self, whole: tuple[int, int], tile: tuple[int, int], packed: bool, loose: bool) -> float:
        """Cycles for `whole` rows and columns in tiles of `tile` rows and columns.

        If rows are read in place, the last tile has only the remaining rows.
        """
        (rows, columns), (high, wide) = whole, tile
        beyond = columns % wide if loose else 0
        across = (columns - beyond + wide - 1) // wide
        left = 0 if packed else rows % high
        down = (rows - left + high - 1) // high * self.cycles(high) + (self.cycles(left) if left else 0)
        return down * across + (self._beyond(rows, high, beyond, wide // self.vectors) if beyond else 0)

    def _beyond(self, rows: int, high: int, columns: int, lanes: int) -> float:
        """Cycles for the columns beyond the last whole tile: whole vectors, or shorter ones in place of one; others one
        by one.

        Sums of shorter vectors of several lengths are not held in registers.
        """
        if columns > lanes and columns % lanes:
            return _ONE_BY_ONE * rows * columns
        short = [1 << bit for bit in range((columns % lanes).bit_length()) if columns % lanes >> bit & 1]
        step = replace(self, vectors=columns // lanes + len(short))
        held = 1 if sum(length > 1 for length in short) < 2 else _IN_MEMORY
        return held * -(-rows // high) * step.cycles(min(rows, high))

    def cycles(self, rows: int) -> float:
        """Cycles of one tile: two multiply-adds or loads per cycle; sums wait for the previous step, or for L2.

        Excess takes one more instruction for each row, which makes it unsigned, and one for each vector.
        """
        vectors = self.vectors
        products = rows * vectors + (rows + vectors if self.excess else 0)
        busy = max(products / 2, (rows + vectors) / 2, 4.0, vectors * self.cpu.vector_bytes / _LOADED)
        return busy + 0.1 * (rows + vectors)
