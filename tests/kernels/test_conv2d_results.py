"""Convolutions in C give correct results on any size, and touch no memory but their own."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
import pytest
from kernel_runs import Runs

from deepgen import targets
from deepgen.kernels.conv2d.c_conv2d import CConv2d
from deepgen.operators import conv2d
from deepgen.operators.compare import compare
from deepgen.operators.words import FORMATS
from deepgen.run.call.loaded import load
from deepgen.vocabulary import BadInput

FAMILY = CConv2d()
CHIP = targets.resolve("cpu")
# Odd sizes: strides that skip pixels, filters as large as the padded image, tiles that are never full.
SHAPES = [
    conv2d(2, 7, 9, 5, 19, 3, stride=2, pad=1),
    conv2d(1, 9, 30, 40, 20, 3, pad=1),
    conv2d(1, 6, 5, 3, 33, 1),
    conv2d(3, 5, 8, 4, 7, 5, stride=3, pad=2),
    conv2d(1, 2, 3, 2, 1, 6, pad=2),
    conv2d(1, 2, 2, 3, 2, 5, stride=7, pad=3),
]


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("dtype", [*FORMATS])
def test_any_config_is_right_for_every_dtype_and_layout_and_its_binary_serves_all_shapes(
    dtype: str, layout: str
) -> None:
    operators = [replace(shape, dtype=dtype, layout=layout) for shape in SHAPES]
    first = operators[1]
    (sampled,) = FAMILY.space(first, CHIP).sample(1, seed=zlib.crc32(f"{dtype} {layout}".encode()))
    for config in (FAMILY.default(first, CHIP), sampled):
        runs = Runs(FAMILY.emit(first, CHIP, config), CHIP, "-O1" if config is sampled else "-O3")
        wrong = [found for o in operators for probe in o.probes() if (found := runs.wrong(o, probe))]
        assert wrong == [], config


def test_a_loaded_kernel_takes_arrays_of_other_sizes_and_says_what_does_not_fit() -> None:
    tuned, other = SHAPES[1], conv2d(2, 11, 8, 6, 9, 5, pad=1)
    kernel = load(FAMILY.emit(tuned, CHIP, FAMILY.default(tuned, CHIP)), tuned, CHIP)
    given = other.inputs(1)
    y = kernel(given["x"], given["weight"])
    assert compare(y, other.reference(given)["y"], other.dtypes[2], other.tolerance("y")).ok
    with pytest.raises(BadInput, match="weight has CI=5"):
        kernel(given["x"], np.ascontiguousarray(given["weight"][:, :, :5]))
    with pytest.raises(BadInput, match="filter with k=5 on a padded image of 4x10"):
        kernel(np.ascontiguousarray(given["x"][:, :2]), given["weight"])
