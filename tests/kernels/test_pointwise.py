"""Convolutions by 1 x 1 filters as matrix products: what is one, that results are correct (emulated), who serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hopper_emulation
import mma_emulation
import pytest
import simt_emulation

from deepgen import generators, operator, targets
from deepgen.kernels import Rank
from deepgen.kernels.conv2d.pointwise import MmaPointwise, SimtPointwise, Sm90Pointwise
from deepgen.operators import Operator, conv2d
from deepgen.run.call.plans import check_shape

HOPPER, AMPERE = targets.resolve("cuda:h200"), targets.resolve("cuda:sm_80")
DILATED: dict[str, Any] = {"N": 2, "H": 5, "W": 7, "CI": 24, "CO": 16, "k": 1, "dtype": "f16"}
ALIGNED = [
    conv2d(3, 8, 9, 40, 24, 1, dtype="f16", layout="nchw"),
    operator("dilated_conv2d", **DILATED, epilogue="bias,silu"),
    operator("dilated_conv2d", **{**DILATED, "W": 8}, layout="nchw", epilogue="relu"),
]
CASES = [
    *ALIGNED,
    conv2d(2, 5, 7, 21, 19, 1, dtype="bf16", layout="nchw"),  # rows of pixels and of channels begin anywhere
    conv2d(1, 5, 7, 24, 19, 1, dtype="f16", layout="nchw"),
    conv2d(2, 5, 7, 21, 19, 1, dtype="f16"),
]


@pytest.mark.parametrize("own", ALIGNED, ids=Operator.slug)
def test_results_are_right_on_hopper(own: Operator, tmp_path: Path) -> None:
    family = Sm90Pointwise()
    kernel = family.emit(own, HOPPER, family.default(own, HOPPER))
    result = hopper_emulation.run(kernel, hopper_emulation.build(kernel, tmp_path), own)
    assert result.ok, str(result)


@pytest.mark.skipif(simt_emulation.COMPILER is None, reason=simt_emulation.NO_COMPILER)
@pytest.mark.parametrize("own", CASES, ids=Operator.slug)
def test_results_are_right_elsewhere(own: Operator, tmp_path: Path) -> None:
    mma, simt = MmaPointwise(), SimtPointwise()
    kernel = mma.emit(own, AMPERE, mma.default(own, AMPERE))
    assert simt_emulation.wrong(kernel, mma_emulation.build(kernel, tmp_path / "mma"), own) == ""
    if simt.refuses(own, AMPERE):
        assert "no bias, activation" in str(simt.refuses(own, AMPERE))
        return
    kernel = simt.emit(own, AMPERE, simt.default(own, AMPERE))
    (tmp_path / "simt").mkdir()
    assert simt_emulation.wrong(kernel, simt_emulation.build(kernel, tmp_path / "simt"), own) == ""


def test_a_kernel_serves_other_sizes() -> None:
    own = CASES[0]
    for family in (Sm90Pointwise(), MmaPointwise(), SimtPointwise()):
        kernel = family.emit(own, HOPPER, {**family.default(own, HOPPER)})
        check_shape(kernel, conv2d(5, 16, 8, 40, 24, 1, dtype="f16", layout="nchw").scalars())


@pytest.mark.parametrize(
    ("own", "why"),
    [
        (conv2d(1, 9, 9, 8, 8, (1, 3), dtype="f16"), "1 x 1 filters"),
        (conv2d(1, 9, 9, 8, 8, 1, stride=2, dtype="f16"), "stride 1"),
        (conv2d(1, 9, 9, 8, 8, 1, pad=1, dtype="f16"), "no padding"),
        (conv2d(1, 9, 9, 8, 8, 1), "f16 and bf16"),
        (operator("dilated_conv2d", **DILATED, layout="nchw", epilogue="bias"), "channels last"),
        (operator("dilated_conv2d", **DILATED, groups=2), "one group"),
    ],
)
def test_what_is_no_product_is_refused_in_words(own: Operator, why: str) -> None:
    assert why in (MmaPointwise().refuses(own, HOPPER) or "")


def test_they_serve_where_rows_are_read_in_place() -> None:
    planes = conv2d(32, 35, 35, 288, 48, 1, dtype="f16", layout="nchw")
    assert generators.find(planes, HOPPER).name == "sm90_pointwise"
    assert generators.find(conv2d(5, 10, 10, 108, 3, 1, dtype="f16", layout="nchw"), HOPPER).name == "simt_pointwise"
    assert generators.find(conv2d(16, 35, 35, 288, 48, 1, dtype="f16"), HOPPER).name == "sm90_conv"
    assert generators.find(planes, AMPERE).name == "mma_pointwise"
    assert SimtPointwise().rank(planes, targets.resolve("cuda:sm_70")) == Rank.SURPASSED
    # Filters are the same for all images, and read once.
    images = [conv2d(n, 4, 4, 1024, 1024, 1, dtype="f16", layout="nchw") for n in (16, 128)]
    family = Sm90Pointwise()
    few, many = (family.modelled_seconds(one, HOPPER, family.default(one, HOPPER)) for one in images)
    assert few and many and many - few < 112 * 2 * 1024 * 1024 / (HOPPER.bandwidth_gbs * 1e9)  # type: ignore[attr-defined]
