"""Results that a later stage reads, and scans that it reads across: a rule keeps neither in lanes or shared memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_gpu_spaces import H200, MI210, emulated, lowered, right

import deepgen as dg
from deepgen.compiler.rules.gpu.sketches import gpu_sketches
from deepgen.operators.expr.nodes import Expression
from deepgen.targets import Gpu


def scanned(
    shape: tuple[int, ...], axis: int, order: tuple[int, ...], *, both: bool = False, pad: int = 0
) -> Expression:
    """The stored dimensions are those of the scan in this order; `pad`: zeros after the first one."""
    x = dg.tensor("x", shape, "f32")
    run = dg.scan("run", shape, lambda *at: x[at], axis=axis)
    sizes = [shape[n] for n in order]
    sizes[order.index(0)] += pad

    def stored(*at: Any) -> Any:
        place = [at[order.index(n)] for n in range(len(shape))]
        return dg.where(place[0] < shape[0], run[tuple(place)], 0.0) if pad else run[tuple(place)] * 2.0

    y = dg.compute("y", tuple(sizes), stored)
    return dg.expression(y, run) if both else dg.expression(y)


SCANS = {
    "rows and their double": scanned((5, 12), 1, (0, 1), both=True),
    "columns and their double": scanned((5, 12, 3), 1, (0, 1, 2), both=True),
    "transposed columns": scanned((17, 8, 13), 1, (0, 2, 1)),
    "transposed matrix": scanned((4, 3), 0, (1, 0)),
    "padded and transposed": scanned((5, 21, 13), 2, (1, 2, 0), pad=2),
    "columns with other dimensions exchanged": scanned((5, 6, 4), 2, (1, 0, 2)),
}


@emulated
@pytest.mark.parametrize("gpu", [H200, MI210], ids=["cuda", "hip"])
def test_scans_that_are_results_or_read_across_are_stored_first(gpu: Gpu, tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    right(lowered(SCANS, gpu, lambda sketch: True), tmp_path / "all", gpu.warp)


def product(kind: str, *, transposed: bool = False) -> Expression:
    """A product whose left operand is computed, and stored as well."""
    x, w = dg.tensor("x", (32, 32), kind), dg.tensor("w", (32, 32), kind)
    k = dg.reduce_axis("k", 32)
    left = dg.compute("left", (32, 32), lambda i, j: dg.where(x[i, j] < 0.0, 0.0, x[i, j]))

    def term(i: Any, j: Any) -> Any:
        place = (k, i) if transposed else (i, k)
        return dg.sum(left[place].cast("f32") * w[k, j].cast("f32"), k)

    return dg.expression(dg.compute("y", (32, 32), term), left)


@emulated
@pytest.mark.parametrize(("gpu", "kind"), [(H200, "f16"), (MI210, "f32")], ids=["cuda", "hip"])
def test_operands_of_matrix_units_that_are_results_are_copied(gpu: Gpu, kind: str, tmp_path: Path) -> None:
    products = {"plain": product(kind), "transposed": product(kind, transposed=True)}
    assert any("matrix" in sketch.name for one in products.values() for sketch in gpu_sketches(one, gpu))
    (tmp_path / "all").mkdir()
    right(lowered(products, gpu, lambda sketch: "matrix" in sketch.name), tmp_path / "all", gpu.warp)
