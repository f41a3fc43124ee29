"""The space of a product on VTA, by rules.

- Multi-level-Tiling: loops over tiles of rows and columns, in either order, around one over pieces of the sum.
- Add-Multi-scope-SPM: inputs, weights and results each go through a buffer of their own. Where a load is placed decides
  how much it brings: `sum`, what a piece of the sum needs; `tile`, all that a tile needs; `outer`, the same once for
  all tiles of the inner loop, for the matrix that this loop does not move along.
- Virtual threads: tiles of the inner loop that are computed in turns, each in a part of the buffers of its own, so that
  one is loaded while another is computed.

Constraint rules: tiles divide, buffers hold what is in them at the same time, programs stay short, and of configs that
make the same program only one is valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deepgen.space import Expr, Space, Value, divides, implies, where
from deepgen.space.expr import knob_ref
from deepgen.targets import Vta
from deepgen_vta.generator.product import Product
from deepgen_vta.target import ACCUMULATOR, INPUT, MICRO_OP, WEIGHT

SUM, TILE, OUTER = "sum", "tile", "outer"
ROWS, COLUMNS = "rows", "columns"
MOST_INSTRUCTIONS = 1024


@dataclass(frozen=True)
class Tiles:
    """A config, read."""

    rows: int
    columns: int
    depth: int
    threads: int
    outer: str  # which loop over tiles is outside
    input_at: str
    weight_at: str

    @staticmethod
    def of(config: Mapping[str, Any]) -> Tiles:
        names = ("TILE_ROWS", "TILE_COLUMNS", "TILE_SUM", "VIRTUAL_THREADS", "OUTER", "INPUT_AT", "WEIGHT_AT")
        return Tiles(*(config[name] for name in names))


def space(name: str, product: Product, target: Vta) -> Space:
    made = Space(name)
    rows = made.knob("TILE_ROWS", divisors(product.rows))
    columns = made.knob("TILE_COLUMNS", divisors(product.columns))
    depth = made.knob("TILE_SUM", divisors(product.depth))
    threads = made.knob("VIRTUAL_THREADS", [1, 2])
    outer = made.knob("OUTER", [ROWS, COLUMNS])
    input_at, weight_at = (made.knob(f"{what}_AT", [SUM, TILE, OUTER]) for what in ("INPUT", "WEIGHT"))

    along_rows, along_columns = (
        made.derive(f"tiles_along_{what}", whole // tile)
        for what, whole, tile in (("rows", product.rows, rows), ("columns", product.columns, columns))
    )
    pieces = made.derive("pieces", product.depth // depth)
    inner = made.derive("inner_tiles", where(outer == ROWS, along_columns, along_rows))
    tiles = made.derive("tiles", along_rows * along_columns)

    _memory(made, product, target, pieces)
    loads = _loads(input_at, tiles, pieces, along_rows) + _loads(weight_at, tiles, pieces, along_columns)
    count = made.derive("instructions", loads + tiles * (pieces + 2) + 1)
    made.require(count <= MOST_INSTRUCTIONS, f"a program has at most {MOST_INSTRUCTIONS} instructions")

    made.require(divides(threads, inner), "virtual threads share the tiles of the inner loop evenly")
    made.require((input_at != OUTER) | (outer == ROWS), "inputs stay for the inner loop only if it goes along columns")
    made.require(
        (weight_at != OUTER) | (outer == COLUMNS), "weights stay for the inner loop only if it goes along rows"
    )
    for what, at in (("inputs", input_at), ("weights", weight_at)):
        made.require((at != TILE) | (pieces > 1), f"{what} of a sum in one piece are loaded with it")
        made.require((at != OUTER) | (inner > 1), f"{what} that stay for the inner loop are used again by it")
    one = (along_rows == 1) | (along_columns == 1)
    made.require(implies(one, (inner > 1) | ((tiles == 1) & (outer == ROWS))), "the loop that turns once is outside")
    return made


def _memory(made: Space, product: Product, target: Vta, pieces: Expr) -> None:
    """What lives together fits: each scope's limit."""
    knob = {one.name: knob_ref(one.name) for one in made.knobs}
    threads, depth = knob["VIRTUAL_THREADS"], knob["TILE_SUM"]
    for buffer, tile, at in (
        (INPUT, knob["TILE_ROWS"], knob["INPUT_AT"]),
        (WEIGHT, knob["TILE_COLUMNS"], knob["WEIGHT_AT"]),
    ):
        copies, length = where(at == OUTER, 1, threads), where(at == SUM, depth, product.depth)
        used = made.derive(f"{buffer}_elements", tile * length * copies)
        made.require(used <= target.depth(buffer), f"what is loaded fits in the {buffer} buffer")
    results = made.derive("accumulator_elements", knob["TILE_ROWS"] * knob["TILE_COLUMNS"] * threads)
    made.require(results <= target.depth(ACCUMULATOR), "tiles of results fit in the accumulator buffer")
    whole = (knob["INPUT_AT"] != SUM) | (knob["WEIGHT_AT"] != SUM)
    ops = made.derive("micro_ops", threads * depth * where(whole, pieces, 1))
    made.require(ops <= target.depth(MICRO_OP), "all micro-ops fit in their buffer")


def _loads(at: Expr, tiles: Expr, pieces: Expr, along: Expr) -> Expr:
    return where(at == SUM, tiles * pieces, where(at == TILE, tiles, along))


def default(made: Space, product: Product) -> dict[str, Value]:
    """Two virtual threads and the largest tiles that fit, of which one gives the next more to do than to load."""
    choices: list[dict[str, Value]] = [
        {
            "TILE_ROWS": r,
            "TILE_COLUMNS": c,
            "TILE_SUM": d,
            "VIRTUAL_THREADS": t,
            "OUTER": o,
            "INPUT_AT": SUM,
            "WEIGHT_AT": SUM,
        }
        for t in (2, 1)
        for d in divisors(product.depth)
        for c in reversed(divisors(product.columns))
        for r in reversed(divisors(product.rows))
        for o in (ROWS, COLUMNS)
    ]
    return next(config for config in choices if made.contains(config))


def divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]
