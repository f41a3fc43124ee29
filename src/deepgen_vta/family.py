"""The family for matrix products on VTA: rules define its space, and each config gives a program."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from deepgen.extend import (
    BadInput,
    HasExpression,
    Kernel,
    LaunchPlan,
    Operator,
    Source,
    Space,
    Step,
    Target,
    TensorArg,
)
from deepgen_vta.chip import Vta
from deepgen_vta.emit import emit
from deepgen_vta.program import Program, listing
from deepgen_vta.space import MOST_INSTRUCTIONS, OUTER, ROWS, SUM, TILE, Product, Tiles, default, product, space


class VtaRules:
    """The schedule rules family on VTA."""

    name = "vta"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, Vta):
            return "it supports vta targets only"
        try:
            served = product(operator.expression(), target) if isinstance(operator, HasExpression) else None
        except BadInput as error:
            return str(error)
        if served is None:
            return "it supports products of two i8 matrices with results in i32"
        return f"it takes more than {MOST_INSTRUCTIONS} instructions" if _space(served, target).empty() else None

    def space(self, operator: Operator, target: Target) -> Space:
        return space(self.name, *_served(operator, target))

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        text = self._program(operator, target, config).to_text()
        args = tuple(TensorArg(tensor.name) for tensor in operator.tensors())
        fixed = tuple((f"{size} == {value}", f"{size} is {value}") for size, value in operator.sizes().items())
        plan = LaunchPlan(steps=(Step("run", args),))
        return Kernel(self.name, "vta", (Source("program.json", text),), (), plan, implied=fixed)

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        served, vta = _served(operator, target)
        return default(_space(served, vta), served)

    def schedule_text(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> str:
        served, _ = _served(operator, target)
        return nest(served, Tiles.of(config))

    def passes_text(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> str:
        return listing(self._program(operator, target, config))

    def _program(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Program:
        served, vta = _served(operator, target)
        return emit(served, Tiles.of(config), vta)


def _served(operator: Operator, target: Target) -> tuple[Product, Vta]:
    assert isinstance(operator, HasExpression) and isinstance(target, Vta), "ask refuses() first"
    served = product(operator.expression(), target)
    assert served is not None, "ask refuses() first"
    return served, target


@lru_cache(maxsize=16)
def _space(served: Product, target: Vta) -> Space:
    """Cached and read-only: tuning gets a separate space."""
    return space(VtaRules.name, served, target)


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
