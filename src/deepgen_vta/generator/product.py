"""The rule Tensorize for VTA: which expressions its matrix instruction computes."""

from __future__ import annotations

from dataclasses import dataclass

from deepgen.compiler.rules.facts import plain
from deepgen.operators.expr.contraction import plain_contraction
from deepgen.operators.expr.nodes import Expression, Read, Select, walk
from deepgen.targets import Vta
from deepgen_vta.target import ACCUMULATOR, INPUT, WEIGHT
from deepgen_vta.target.program import Image


@dataclass(frozen=True)
class Product:
    """A matrix product as VTA sees it: extents in rows and blocks, and the images of its tensors."""

    rows: int
    columns: int  # blocks of them
    depth: int  # blocks that are added up
    left: Image
    right: Image
    result: Image


def product(expression: Expression, target: Vta) -> Product | None:
    """The expression as a product of two i8 matrices with sums in i32, in any layout; None: it is something else."""
    if len(expression.outputs) != 1 or len(expression.tensors) != 2:
        return None
    output = expression.outputs[0]
    found = plain_contraction(expression, output)
    if found is None or found.formats != ("i8", "i8") or expression.stage(output).dtype != "i32":
        return None
    stage = found.stage
    if any(isinstance(node, Select) for node in walk(stage.value)):  # padding, which images do not have
        return None
    if stage.dtype != "i32" or len(stage.axes) != 2 or len(stage.reduced) != 1:
        return None
    row, column, over = stage.axes[0], stage.axes[1], stage.reduced[0]
    given = {one.name for one in expression.tensors}
    reads = (found.left.read, found.right.read)
    for left, right in (reads, reads[::-1]):
        by_rows, by_columns = _axes(left, row.name, over.name), _axes(right, column.name, over.name)
        if by_rows and by_columns and {left.tensor, right.tensor} == given:
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
    """The dimensions of a matrix that two axes go along, if it is read so."""
    names = [plain(index) for index in read.indices]
    return (names.index(along), names.index(over)) if sorted(map(str, names)) == sorted((along, over)) else None
