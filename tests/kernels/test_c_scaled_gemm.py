"""Scales of blocks in plain C: results are right on this machine's CPU, for any config, layout and size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kernel_runs import Runs

from deepgen import generators, targets
from deepgen.operators import gemm
from deepgen.operators.gemm import BLOCK_SCALES, LAYOUTS
from deepgen.run.call.loaded import load
from deepgen.toolchains import build_once
from deepgen.vocabulary.dtypes import widen

HERE = targets.resolve("cpu")
SIZES = [(1, 1, 1), (2, 3, 129), (61, 150, 7), (131, 67, 259)]
OTHERS: list[dict[str, Any]] = [
    {"c": "f16"},
    {"a": "f8e5m2", "bias": True, "activation": "silu"},
    {"c": "f32", "beta": 0.5},
]


@pytest.mark.slow
@pytest.mark.parametrize(("scales", "words"), [*zip(BLOCK_SCALES, OTHERS, strict=True)], ids=BLOCK_SCALES)
def test_sampled_configs_are_right_on_all_sizes(scales: str, words: dict[str, Any]) -> None:
    for layout in LAYOUTS[:: 1 if scales == "1x128,128x128" else 3]:
        operator = gemm(70, 140, 300, dtype="f8e4m3", layout=layout, scales=scales, **words)
        family, *_ = generators.serving(operator, HERE)
        space, default = family.space(operator, HERE), dict(family.default(operator, HERE))
        assert space.explain(default) == []
        for config, flag in ((default, "-O3"), *((c, "-O1") for c in space.sample(1, seed=len(layout)))):
            runs = Runs(family.emit(operator, HERE, config), HERE, flag)
            assert runs.wrong(operator) == "", config
            for m, n, k in SIZES:
                assert runs.wrong(replace(operator, m=m, n=n, k=k, batch=2)) == "", (config, m, n, k)


@pytest.mark.slow
def test_a_call_takes_scales_with_rows_innermost() -> None:
    operator = gemm(70, 140, 300, dtype="f8e4m3", layout="nt", scales="1x128,128x128", c="f32")
    family, *_ = generators.serving(operator, HERE)
    kernel = family.emit(operator, HERE, family.default(operator, HERE))
    build_once(kernel, HERE)
    inputs = operator.inputs(5)
    turned = np.asfortranarray(inputs["scale_a"])
    assert turned.strides[0] == 4
    out = load(kernel, operator, HERE)(inputs["A"], inputs["B"], turned, inputs["scale_b"])
    a, b = (widen(inputs[name], operator.dtypes[0]) for name in "AB")
    a *= np.repeat(inputs["scale_a"], 128, 1)[:, :300]
    b *= np.repeat(np.repeat(inputs["scale_b"], 128, 0), 128, 1)[:140, :300]
    assert np.abs(out - a @ b.T).max() < 1e-4
