"""Tile instructions (registers that hold small matrices), as data. To add one, add an entry to this table.

A tile of the first operand has rows of 64 bytes along the reduced dimension. A tile of the second has 16 rows, each
with a group of 4 bytes along the reduced dimension for each of 16 columns. Several accumulator tiles are kept, so that
each loaded tile is used for several products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

from deepgen.compiler.intrinsics.dots import EMULATED, Dot

REGISTERS = 8
MOST_ROWS = 16
GROUPS = 16  # in a row of a tile
DOUBLE_BUFFER = 2  # tiles of the first operand: one is loaded while products with the other run
HEADERS = ("tiles.h", "emulate.h")  # shared with template families
_ROW_BYTES = 64


@dataclass(frozen=True)
class TileProduct:
    """sums[i, j] += the sum of left[i, k] * right[j, k] over k < whole, for i < rows and j < lanes.

    A kernel chooses `rows`, up to 16.
    """

    name: str
    features: tuple[str, ...]
    left: str
    right: str
    result: str
    depth: int  # of a group
    macros: tuple[tuple[str, int], ...]  # that select the instruction in the headers

    @property
    def lanes(self) -> int:
        return 16

    @property
    def whole(self) -> int:
        return self.depth * GROUPS


@dataclass(frozen=True)
class TileBlock:
    """Accumulator tiles, `down` by `across`, each with `rows` rows."""

    tile: TileProduct
    down: int
    across: int
    rows: int

    @property
    def name(self) -> str:
        return f"{self.tile.name}_{self.down}x{self.across}x{self.rows}"

    def functions(self) -> str:
        """The functions that kernels call: once per thread, before and after the steps of a sum, and at each step."""
        sums, left, right = self._registers()
        zero = " ".join(f"tile_zero({t});" for row in sums for t in row)
        store = " ".join(
            f"tile_store({t}, (char *)sums + {i * self.rows} * row + {j * _ROW_BYTES}, row);"
            for i, row in enumerate(sums)
            for j, t in enumerate(row)
        )
        loads = [f"tile_load({t}, (const char *)right + {j} * next, {_ROW_BYTES});" for j, t in enumerate(right)]
        steps = []
        for i, t in zip(range(self.down), cycle(left), strict=False):
            products = " ".join(f"tile_dot({s}, {t}, {r});" for s, r in zip(sums[i], right, strict=True))
            steps.append(f"tile_load({t}, (const char *)left + {i} * below, row); {products}")
        body = "\n    ".join([*loads, *steps])
        rows = ", ".join([str(self.rows)] * right[0] + [str(GROUPS)] * self.across)
        return f"""static inline void {self.name}_begin(void) {{
    static const u8 rows[] = {{{rows}}};
    tile_shapes shapes = {{.palette = 1}};
    for (int t = 0; t < (int)sizeof rows; t++) shapes.row_bytes[t] = {_ROW_BYTES}, shapes.rows[t] = rows[t];
    tile_configure(&shapes);
}}
static inline void {self.name}_zero(void) {{ {zero} }}
static inline void {self.name}_store({self.tile.result} *sums, i64 row) {{ {store} }}
static inline void {self.name}(const {self.tile.left} *left, i64 row, i64 below, const {self.tile.right} *right,
                               i64 next) {{
    {body}
}}
"""

    def _registers(self) -> tuple[list[list[int]], list[int], list[int]]:
        first = self.down * self.across
        second = first + min(self.down, DOUBLE_BUFFER)
        sums = [[i * self.across + j for j in range(self.across)] for i in range(self.down)]
        return sums, list(range(first, second)), list(range(second, second + self.across))


@dataclass(frozen=True)
class TileCall:
    """An operation on all sums of a block: they are set to zero, or stored."""

    block: TileBlock
    does: str

    @property
    def name(self) -> str:
        return f"{self.block.name}_{self.does}"


ZERO, STORE = "zero", "store"


_SIGNED, _UNSIGNED = (
    (("BF16", 0), ("LEFT_SIGNED", 1), ("RIGHT_SIGNED", 1)),
    (("BF16", 0), ("LEFT_SIGNED", 0), ("RIGHT_SIGNED", 1)),
)
_BYTES = ("amx_tile", "amx_int8")
_ALL = (
    TileProduct("amx_i8", _BYTES, "i8", "i8", "i32", 4, _SIGNED),
    TileProduct("amx_u8", _BYTES, "u8", "i8", "i32", 4, _UNSIGNED),
    TileProduct("amx_bf16", ("amx_tile", "amx_bf16"), "bf16", "bf16", "f32", 2, (("BF16", 1),)),
)
TILES: Mapping[str, TileProduct] = {tile.name: tile for tile in _ALL}
Instruction = Dot | TileProduct


def block_of(name: str, extents: Sequence[int]) -> TileBlock:
    """The block of loops with these extents, from the loop over tiles inwards."""
    down, rows, across, *_ = extents
    return TileBlock(TILES[name], down, across, rows)


def include(tile: TileProduct) -> str:
    """The text at the beginning of a file that uses this instruction; a file can use only one."""
    macros = "\n".join(f"#define {name} {value}" for name, value in tile.macros)
    return f"""#ifdef {EMULATED}
#define EMULATE
#endif
#define ALWAYS_INLINE static inline __attribute__((always_inline))
{macros}
#include "tiles.h"
"""
