"""What to take without a search: register tiles that keep the multipliers busy, blocks that stay in caches."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from deepgen.generators.rules.rules import candidates
from deepgen.generators.rules.rules.candidates import ROWS, VECTORS, thread_counts, up_to
from deepgen.targets import Cpu

_TASKS = 4  # for each thread: the last of them to finish wait for little
_LOADED = 24  # bytes in a cycle from the second cache, where panels of what vectors are loaded from lie
_WORTH_A_THREAD = 1 << 16  # operations; waking another thread takes as long as computing some of these


def register_tile(
    cpu: Cpu, rows: int, columns: int, lanes: int, *, packed: bool = False, loose: bool = False
) -> tuple[float, int, int]:
    """Rows and vectors of the tile that covers so many rows and columns in the least time, and that time.

    `packed`: what rows are read from has room for a whole tile beyond the last row. `loose`: what vectors are loaded
    from has none beyond the last column.
    """
    fitting = [
        (r, v)
        for r in up_to(ROWS, rows)
        for v in up_to(VECTORS, -(-columns // lanes))
        if registers(r, v) <= cpu.vector_registers
    ]
    return min((_cost(cpu, (rows, columns), (r, v * lanes), v, packed, loose), r, v) for r, v in fitting)


def blocks(
    cpu: Cpu, extents: Mapping[str, int], tiles: Mapping[str, int], panels: str | None, column: int
) -> dict[str, int]:
    """How many tiles of each axis a block has.

    `column` bytes are read for each element of the axis `panels`: a block of them stays in the second cache, and as
    many tiles as possible of the last other axis pass over it, as long as every thread has several blocks.
    """
    out = dict.fromkeys(extents, 1)
    pieces = {axis: -(-extent // tiles.get(axis, 1)) for axis, extent in extents.items()}
    if panels is not None:
        room = max(1, cpu.l2_bytes // 2 // max(1, column * tiles[panels]))
        out[panels] = max(b for b in _whole(pieces[panels], True) if b <= room)
    for axis in reversed([axis for axis in extents if axis != panels]):
        others = prod(pieces[a] // out[a] for a in extents if a != axis)
        found = [b for b in _whole(pieces[axis], axis in tiles) if others * pieces[axis] // b >= _TASKS * cpu.cores]
        out[axis] = max(found, default=1)
    return out


def _whole(pieces: int, tiled: bool) -> list[int]:
    """Sizes of blocks that leave no part of one."""
    return [size for size in candidates.blocks(pieces, tiled) if pieces % size == 0]


def threads(cpu: Cpu, operations: int) -> int:
    """As many as have enough to do."""
    return max(count for count in thread_counts(cpu.cores) if count == 1 or operations >= count * _WORTH_A_THREAD)


def registers(rows: int, vectors: int) -> int:
    """Sums, one row of vectors, and the numbers that these are multiplied with, which compilers load ahead."""
    return rows * vectors + vectors + rows


def _cost(cpu: Cpu, whole: tuple[int, int], tile: tuple[int, int], vectors: int, packed: bool, loose: bool) -> float:
    """Cycles of one step of the reduction, for so many rows and columns in tiles of so many, each row some vectors.

    Tiles: two multiply-adds or two loads in a cycle, and sums wait for the step before, or for the second cache. At an
    edge, elements are computed one by one, but where copies have room for a whole tile.
    """
    (rows, columns), (high, wide) = whole, tile
    down = -(-rows // high) if packed else rows // high
    across = columns // wide if loose else -(-columns // wide)
    edges = rows * columns - min(rows, down * high) * min(columns, across * wide)
    busy = max(high * vectors / 2, (high + vectors) / 2, 4.0, vectors * cpu.vector_bytes / _LOADED)
    return down * across * (busy + 0.1 * (high + vectors)) + edges
