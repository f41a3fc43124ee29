"""Every entry of the table of matrix products: the kernels that rules generate with it are correct, and build."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cases
import pytest
from test_gpu_spaces import chip, conv, emulated, lowered, right

import needs
from deepgen.compiler.family import Rules
from deepgen.compiler.intrinsics.matrix import PRODUCTS, MatrixProduct, WideProduct
from deepgen.operators.expr.nodes import Expression
from deepgen.operators.expr.operator import ExpressionOperator
from deepgen.targets.gpu import Gpu
from deepgen.toolchains.base import BuildLimits
from deepgen.toolchains.group import Group


def chip_of(product: MatrixProduct) -> Gpu:
    """A chip that has it, and for which the rules use it."""
    if product.arches:
        return chip(f"hip:{product.arches[0]}")
    return chip("cuda:sm_90a" if product.warps > 1 else f"cuda:sm_{product.sm}")


def expressions(product: MatrixProduct) -> dict[str, Expression]:
    """Matrix products in both layouts, one with tiles that extend past its rows, and a convolution."""
    kind, deep = product.operand, product.line if product.warps > 1 else 32
    return {
        "nt": cases.gemm(37, 64, 2 * deep, kind, transposed=True),
        "nn": cases.gemm(32, 32, deep, kind),
        "nhwc": conv(N=1, H=4, W=8, CI=deep, CO=64, k=3, dilation=1, dtype=kind),
    }


def test_products_have_names_and_texts_of_their_own() -> None:
    products: list[MatrixProduct | WideProduct] = []
    for product in PRODUCTS.values():
        wide = [WideProduct(product, 128, 0), WideProduct(product, 256, 8192, 1024)] if product.warps > 1 else []
        products += wide or [product]
    assert all(one.name in one.text for one in products)
    assert len({one.name for one in products}) == len(products)


OWN = [product for product in PRODUCTS.values() if product.own]


@pytest.mark.slow
@emulated
def test_products_whose_lanes_load_for_themselves_compute_their_expressions(tmp_path: Path) -> None:
    found: list[Any] = []
    for product in OWN:
        found += lowered(expressions(product), chip_of(product), lambda sketch: sketch.name.startswith("matrix"))
    (tmp_path / "all").mkdir()
    right(found, tmp_path / "all", warp=64)


def test_the_text_of_a_kernel_on_matrix_units_of_amd(golden: Callable[[str, str], str]) -> None:
    operator, gpu = ExpressionOperator(cases.gemm(64, 64, 64, "f16", transposed=True)), chip("hip:gfx90a")
    family = Rules()
    usual = {**family.default(operator, gpu), "depth": 1, "chunk": 1}
    assert not (difference := golden("rules/mfma_gemm.hip", family.emit(operator, gpu, usual).sources[0].text)), (
        difference
    )


# Other tests build the 16-bit products of NVIDIA chips.
@pytest.mark.parametrize("name", [name for name, one in PRODUCTS.items() if one.own or one.operand == "i8"])
def test_rules_use_every_product_and_its_kernels_build(name: str, tmp_path: Path) -> None:
    product, family = PRODUCTS[name], Rules()
    gpu = chip_of(product)
    operator = ExpressionOperator(expressions(product)["nhwc"])
    sketches = family.sketches(operator, gpu)
    kernel = family.emit(operator, gpu, family.default(operator, gpu))
    if product.own:
        assert f"({name}, {product.sum}, {product.operand}" in kernel.sources[0].text
    else:
        assert any(sketch.name.startswith(("flat", "wide", "matrix")) for sketch in sketches)
    toolchain = needs.toolchain(gpu, "hip" if product.own else "cuda")
    with Group() as group:
        built = toolchain.build(kernel, gpu, tmp_path, BuildLimits(), group)
    assert built.facts["spill_bytes"] == 0
