"""The Hopper family of convolutions: what it serves, that its kernels are correct (emulated), and that they build."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hopper_emulation
import pytest

import needs
from deepgen import operator, targets
from deepgen.kernels.conv2d.sm90_conv import Sm90Conv
from deepgen.operators import Operator, conv2d
from deepgen.run.call.plans import check_shape
from deepgen.toolchains.base import BuildLimits
from deepgen.toolchains.group import Group
from deepgen.vocabulary import BadInput

FAMILY, HOPPER = Sm90Conv(), targets.resolve("cuda:sm_90a")
SMALL: dict[str, Any] = {"N": 1, "H": 9, "W": 9, "CI": 16, "CO": 16, "k": 3, "dtype": "f16"}
LAYER = conv2d(16, 56, 56, 256, 256, 3, pad=1, dtype="f16")


@pytest.mark.parametrize(
    ("own", "target", "why"),
    [
        (LAYER, "cuda:sm_90", "sm_90a"),
        (conv2d(1, 9, 9, 8, 8, 3), "cuda:sm_90a", "f16 and bf16"),
        (conv2d(1, 9, 9, 8, 8, 3, dtype="f16", layout="nchw"), "cuda:sm_90a", "nhwc"),
        (conv2d(1, 9, 9, 12, 8, 3, dtype="f16"), "cuda:sm_90a", "multiples of 8"),
        (conv2d(1, 9, 9, 8, 9, 3, dtype="f16"), "cuda:sm_90a", "multiples of 8"),
        (conv2d(1, 40, 40, 8, 8, 3, stride=9, dtype="f16"), "cuda:sm_90a", "stride <= 8"),
        (conv2d(1, 9, 9, 16, 16, 3, dtype="f16", weight_layout="OIhw16i16o"), "cuda:sm_90a", "not packed"),
        (operator("dilated_conv2d", **SMALL, groups=2), "cuda:sm_90a", "one group"),
        (operator("dilated_conv2d", **SMALL, epilogue="relu,bias"), "cuda:sm_90a", "epilogues add bias"),
    ],
)
def test_what_it_cannot_do_it_refuses_in_words(own: Operator, target: str, why: str) -> None:
    assert why in (FAMILY.refuses(own, targets.resolve(target)) or "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("own", "ways", "probe"),
    [
        # Windows over images; K in lines that extend past the channels, and stages that extend past the taps.
        (conv2d(3, 7, 9, 144, 24, (3, 5), stride=(2, 1), pad=(1, 3), dtype="bf16"), {"ATOMS": [2]}, "special"),
        (conv2d(2, 9, 9, 40, 136, 3, pad=1, dtype="f16"), {"CLUSTER_M": [2], "CLUSTER_N": [2]}, "normal"),
        (conv2d(2, 12, 5, 64, 40, 1, dtype="f16"), {"SCHEDULE": ["ping-pong"]}, "normal"),
        (
            operator(
                "dilated_conv2d",
                N=2,
                H=11,
                W=9,
                CI=40,
                CO=24,
                k=(2, 5),
                pad=2,
                dilation=(3, 1),
                dtype="f16",
                epilogue="residual,bias,relu",
            ),
            {"STORE": ["copy"]},
            "normal",
        ),
    ],
    ids=["windows", "shared", "plain", "epilogue"],
)
def test_emulated_results_are_right(own: Operator, ways: dict[str, Any], probe: str, tmp_path: Path) -> None:
    (config,) = FAMILY.space(own, HOPPER).restrict(ways).sample(1, seed=3)
    kernel = FAMILY.emit(own, HOPPER, config)
    result = hopper_emulation.run(kernel, hopper_emulation.build(kernel, tmp_path), own, probe)
    assert result.ok, str(result)


def test_a_kernel_serves_other_numbers_of_images_and_filters() -> None:
    kernel = FAMILY.emit(LAYER, HOPPER, {**FAMILY.default(LAYER, HOPPER), "FIXED": False})
    check_shape(kernel, conv2d(3, 56, 56, 256, 64, 3, pad=1, dtype="f16").scalars())
    for other, why in (
        (conv2d(16, 56, 55, 256, 256, 3, pad=1, dtype="f16"), "W = 56"),
        (conv2d(16, 56, 56, 256, 252, 3, pad=1, dtype="f16"), "multiples"),
    ):
        with pytest.raises(BadInput, match=why):
            check_shape(kernel, other.scalars())


def test_defaults_keep_their_sums_in_registers(tmp_path: Path) -> None:
    toolchain = needs.toolchain(HOPPER, "cuda")
    operators = (LAYER, conv2d(16, 7, 7, 512, 512, 3, pad=1, dtype="bf16"), conv2d(16, 35, 35, 288, 48, 1, dtype="f16"))
    for number, own in enumerate(operators):
        folder = tmp_path / str(number)
        folder.mkdir()
        with Group() as group:
            kernel = FAMILY.emit(own, HOPPER, FAMILY.default(own, HOPPER))
            result = toolchain.build(kernel, HOPPER, folder, BuildLimits(), group)
        assert (result.facts["spill_bytes"], result.log) == (0, ""), own.describe()
