"""A config's loops as text for people."""

from __future__ import annotations

from deepgen_vta.generator.product import Product
from deepgen_vta.generator.space import OUTER, ROWS, SUM, TILE, Tiles


def nest(product: Product, tiles: Tiles) -> str:
    """The loops around the instructions, with what each instruction moves or computes."""
    along = {"rows": product.rows // tiles.rows, "columns": product.columns // tiles.columns}
    inner = "columns" if tiles.outer == ROWS else ROWS
    lines = [(0, f"for tile of {tiles.outer} in {along[tiles.outer]}:"), *_loads(product, tiles, OUTER, 1)]
    lines.append((1, f"for tile of {inner} in {along[inner] // tiles.threads}:"))
    lines.append((2, f"for virtual thread in {tiles.threads}:"))
    lines += [*_loads(product, tiles, TILE, 3), (3, f"reset accumulators[{tiles.rows} x {tiles.columns}]")]
    lines.append((2, f"for piece of the sum in {product.depth // tiles.depth}:"))
    if moved := _loads(product, tiles, SUM, 4):
        lines += [(3, f"for virtual thread in {tiles.threads}:"), *moved]
    lines.append((3, f"for virtual thread in {tiles.threads}:"))
    lines.append((4, f"gemm {tiles.rows} x {tiles.columns} x {tiles.depth} blocks"))
    lines.append((2, f"for virtual thread in {tiles.threads}:"))
    lines.append((3, f"store {product.result.tensor}[{tiles.rows} x {tiles.columns}]"))
    return "".join(f"{'    ' * depth}{text}\n" for depth, text in lines)


def _loads(product: Product, tiles: Tiles, at: str, depth: int) -> list[tuple[int, str]]:
    length = tiles.depth if at == SUM else product.depth
    operands = ((tiles.input_at, product.left, tiles.rows), (tiles.weight_at, product.right, tiles.columns))
    return [
        (depth, f"load {image.tensor}[{rows} x {length}] to {image.buffer}")
        for place, image, rows in operands
        if place == at
    ]
