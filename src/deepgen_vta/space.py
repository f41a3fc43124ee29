"""The rule Tensorize for VTA: which expressions its matrix instruction computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deepgen.extend import (
    Expr,
    Expression,
    Read,
    Select,
    Space,
    Value,
    divides,
    implies,
    knob_ref,
    plain,
    plain_contraction,
    walk,
    where,
)
from deepgen_vta.chip import ACCUMULATOR, INPUT, MICRO_OP, WEIGHT, Vta
from deepgen_vta.program import Image


@dataclass(frozen=True)
class Product:
    """A matrix product in VTA's terms: extents in rows and blocks, and the images of its tensors."""

    rows: int
    columns: int  # in blocks
    depth: int  # blocks along the sum
    left: Image
    right: Image
    result: Image


def product(expression: Expression, target: Vta) -> Product | None:
    """The expression as a product of two i8 matrices with sums in i32, in any layout; None if it is something else."""
    if len(expression.outputs) != 1 or len(expression.tensors) != 2:
        return None
    output = expression.outputs[0]
    contraction = plain_contraction(expression, output)
    if contraction is None or contraction.formats != ("i8", "i8") or expression.stage(output).dtype != "i32":
        return None
    stage = contraction.stage
    if any(isinstance(node, Select) for node in walk(stage.value)):  # padding, which images do not have
        return None
    if stage.dtype != "i32" or len(stage.axes) != 2 or len(stage.reduced) != 1:
        return None
    row, column, over = stage.axes[0], stage.axes[1], stage.reduced[0]
    inputs = {one.name for one in expression.tensors}
    reads = (contraction.left.read, contraction.right.read)
    for left, right in (reads, reads[::-1]):
        by_rows, by_columns = _axes(left, row.name, over.name), _axes(right, column.name, over.name)
        if by_rows and by_columns and {left.tensor, right.tensor} == inputs:
            rows = -(-row.extent // target.rows)
            columns, depth = -(-column.extent // target.block), -(-over.extent // target.block)
            return Product(
                rows,
                columns,
                depth,
                Image(left.tensor, INPUT, by_rows, rows, depth),
                Image(right.tensor, WEIGHT, by_columns, columns, depth),
                Image(output, ACCUMULATOR, (0, 1), rows, columns),
            )
    return None


def _axes(read: Read, along: str, over: str) -> tuple[int, int] | None:
    """The dimensions of a matrix that two axes index, if it is read that way."""
    names = [plain(index) for index in read.indices]
    return (names.index(along), names.index(over)) if sorted(map(str, names)) == sorted((along, over)) else None


SUM, TILE, OUTER = "sum", "tile", "outer"
ROWS, COLUMNS = "rows", "columns"
MOST_INSTRUCTIONS = 1024


@dataclass(frozen=True)
class Tiles:
    """A config in parsed form."""

    rows: int
    columns: int
    depth: int
    threads: int
    outer: str  # the outermost loop over tiles
    input_at: str
    weight_at: str

    @staticmethod
    def of(config: Mapping[str, Any]) -> Tiles:
        names = ("TILE_ROWS", "TILE_COLUMNS", "TILE_SUM", "VIRTUAL_THREADS", "OUTER", "INPUT_AT", "WEIGHT_AT")
        return Tiles(*(config[name] for name in names))


def space(name: str, product: Product, target: Vta) -> Space:
    tiling = Space(name)
    rows = tiling.knob("TILE_ROWS", divisors(product.rows))
    columns = tiling.knob("TILE_COLUMNS", divisors(product.columns))
    depth = tiling.knob("TILE_SUM", divisors(product.depth))
    threads = tiling.knob("VIRTUAL_THREADS", [1, 2])
    outer = tiling.knob("OUTER", [ROWS, COLUMNS])
    input_at, weight_at = (tiling.knob(f"{what}_AT", [SUM, TILE, OUTER]) for what in ("INPUT", "WEIGHT"))

    along_rows, along_columns = (
        tiling.derive(f"tiles_along_{what}", whole // tile)
        for what, whole, tile in (("rows", product.rows, rows), ("columns", product.columns, columns))
    )
    pieces = tiling.derive("pieces", product.depth // depth)
    inner = tiling.derive("inner_tiles", where(outer == ROWS, along_columns, along_rows))
    tiles = tiling.derive("tiles", along_rows * along_columns)

    _memory(tiling, product, target, pieces)
    loads = _loads(input_at, tiles, pieces, along_rows) + _loads(weight_at, tiles, pieces, along_columns)
    count = tiling.derive("instructions", loads + tiles * (pieces + 2) + 1)
    tiling.require(count <= MOST_INSTRUCTIONS, f"a program has at most {MOST_INSTRUCTIONS} instructions")

    tiling.require(divides(threads, inner), "virtual threads share the tiles of the inner loop evenly")
    tiling.require(
        (input_at != OUTER) | (outer == ROWS), "inputs stay for the inner loop only if it goes along columns"
    )
    tiling.require(
        (weight_at != OUTER) | (outer == COLUMNS), "weights stay for the inner loop only if it goes along rows"
    )
    for what, at in (("inputs", input_at), ("weights", weight_at)):
        tiling.require((at != TILE) | (pieces > 1), f"{what} of a sum in one piece are loaded with it")
        tiling.require((at != OUTER) | (inner > 1), f"{what} that stay for the inner loop are used again by it")
    one = (along_rows == 1) | (along_columns == 1)
    tiling.require(implies(one, (inner > 1) | ((tiles == 1) & (outer == ROWS))), "the loop that turns once is outside")
    return tiling


def _memory(space: Space, product: Product, target: Vta, pieces: Expr) -> None:
    """Buffers hold everything that is live at the same time: each scope's limit."""
    knob = {one.name: knob_ref(one.name) for one in space.knobs}
    threads, depth = knob["VIRTUAL_THREADS"], knob["TILE_SUM"]
    for buffer, tile, at in (
        (INPUT, knob["TILE_ROWS"], knob["INPUT_AT"]),
        (WEIGHT, knob["TILE_COLUMNS"], knob["WEIGHT_AT"]),
    ):
        copies, length = where(at == OUTER, 1, threads), where(at == SUM, depth, product.depth)
        used = space.derive(f"{buffer}_elements", tile * length * copies)
        space.require(used <= target.depth(buffer), f"what is loaded fits in the {buffer} buffer")
    results = space.derive("accumulator_elements", knob["TILE_ROWS"] * knob["TILE_COLUMNS"] * threads)
    space.require(results <= target.depth(ACCUMULATOR), "tiles of results fit in the accumulator buffer")
    whole = (knob["INPUT_AT"] != SUM) | (knob["WEIGHT_AT"] != SUM)
    ops = space.derive("micro_ops", threads * depth * where(whole, pieces, 1))
    space.require(ops <= target.depth(MICRO_OP), "all micro-ops fit in their buffer")


def _loads(at: Expr, tiles: Expr, pieces: Expr, along: Expr) -> Expr:
    return where(at == SUM, tiles * pieces, where(at == TILE, tiles, along))


def default(space: Space, product: Product) -> dict[str, Value]:
    """Two virtual threads and the largest tiles that fit, such that a tile has more to compute than the next has to
    load.
    """
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
    return next(config for config in choices if space.contains(config))


def divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]
