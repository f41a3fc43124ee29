"""Mathematical functions in f32 have errors of at most two units in the last place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")
from compiled_kernels import Case, Compiled

import kernels

COUNT = 4096
RNG = np.random.default_rng(5)
NEAR = np.linspace(-4, 4, COUNT // 2)
FAR = np.concatenate([RNG.uniform(-87, 88, COUNT // 4), RNG.uniform(-1e4, 1e4, COUNT // 4)])
X = np.concatenate([NEAR, FAR]).astype(np.float32)
WIDE = X.astype(np.float64)
# Indexed by the rows that the kernel stores.
FUNCTIONS = {
    0: np.exp, 1: np.exp2, 2: lambda x: np.log(np.abs(x)), 3: lambda x: np.log2(np.abs(x)), 4: np.sin, 5: np.cos,
    8: np.vectorize(math.erf), 9: np.tanh,
}  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    case = Case(kernels.functions, (1,), {"x": X, "y": np.zeros((18, COUNT), np.float32)}, dict, {"B": COUNT})
    return Compiled([case], tmp_path_factory.mktemp("functions"), fused=True).run(case)["y"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("row", FUNCTIONS)
def test_two_units_in_the_last_place(found: Any, row: int) -> None:
    want = FUNCTIONS[row](WIDE)
    normal = (np.abs(want) >= 2.0**-126) & (np.abs(want) < 2.0**128)
    unit = np.exp2(np.floor(np.log2(np.abs(want[normal]))) - 23)
    assert (np.abs(found[row][normal] - want[normal]) <= 2 * unit).all()
    rest = found[row][~normal & ~np.isnan(want)]
    assert np.array_equal(np.isinf(rest), np.abs(want[~normal & ~np.isnan(want)]) > 1)
