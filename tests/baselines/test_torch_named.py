"""torch beside operators that are told by words, on the CPU: the same results, and words where it has no call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from deepgen import baselines, targets
from deepgen.operators import OPERATORS, Array, Operator
from deepgen.operators.compare import compare

torch = pytest.importorskip("torch")
CPU = targets.resolve("cpu")
CONVOLUTION = {"N": 2, "CI": 8, "CO": 12, "k": 3, "stride": 2, "pad": 1}
ROWS = {"rows": 9, "cols": 50}
CASES: list[tuple[str, Mapping[str, Any]]] = [
    ("bmm", {"B": 3, "M": 20, "N": 17, "K": 33, "layout": "nn"}),
    ("bmm", {"B": 3, "M": 20, "N": 17, "K": 33, "layout": "nt"}),
    ("gemv", {"M": 50, "K": 70}),
    ("scan", {"M": 6, "N": 7, "K": 33, "axis": "1"}),
    ("scan", {"M": 6, "N": 7, "K": 33, "dtype": "i8"}),
    ("mean", ROWS),
    ("var", ROWS),
    ("layer_norm", {**ROWS, "eps": 1e-3}),
    ("rms_norm", {**ROWS, "eps": 1e-3}),
    *(("conv1d", {**CONVOLUTION, "L": 20, "dilation": 2, "epilogue": "bias", "layout": one}) for one in ("nlc", "ncl")),
    *(("conv2d", {**CONVOLUTION, "H": 9, "W": 8, "layout": one}) for one in ("nhwc", "nchw")),
    *(("conv3d", {**CONVOLUTION, "D": 6, "H": 7, "W": 8, "layout": one}) for one in ("ndhwc", "ncdhw")),
    *(("dilated_conv2d", {**CONVOLUTION, "H": 9, "W": 12, "groups": 4, "layout": one}) for one in ("nhwc", "nchw")),
    *(("conv_transpose2d", {**CONVOLUTION, "H": 9, "W": 8, "out_pad": 1, "layout": one}) for one in ("nhwc", "nchw")),
    ("conv2d", {**CONVOLUTION, "H": 9, "W": 8, "k": (1, 7), "pad": (0, 3), "stride": (2, 1)}),
    ("conv3d", {**CONVOLUTION, "D": 6, "H": 7, "W": 8, "k": (1, 3, 2), "dilation": (1, 2, 1), "pad": (0, 1, 1)}),
    ("conv_transpose2d", {**CONVOLUTION, "H": 5, "W": 6, "stride": (2, 3), "out_pad": (0, 2), "pad": (1, 0)}),
    *(
        ("depthwise_conv2d", {"N": 2, "C": 5, "H": 9, "W": 8, "k": 3, "pad": 1, "layout": one})
        for one in ("nhwc", "nchw")
    ),
]


def made(name: str, words: Mapping[str, Any]) -> Operator:
    return OPERATORS.get(name).make(words)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("name", "words"), CASES, ids=lambda one: one if isinstance(one, str) else one.get("layout"))
def test_it_gives_the_reference(name: str, words: Mapping[str, Any], dtype: str) -> None:
    if (name, dtype) == ("conv_transpose2d", "bf16") and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("torch adds up transposed convolutions in bf16 right only on a processor with bf16")
    operator = made(name, {"dtype": dtype, **words})
    assert "torch" in baselines.find(operator, CPU)
    inputs = operator.inputs(seed=3)
    [output] = [t for t in operator.tensors() if t.role == "output"]
    tensors: dict[str, Array] = {k: v.copy() for k, v in inputs.items()}
    tensors[output.name] = np.full(output.shape, 3, output.dtype.numpy())
    baselines.by_name("torch").prepare(operator, tensors, 1)()
    want = operator.reference(inputs)[output.name]
    assert compare(tensors[output.name], want, output.dtype, operator.tolerance(output.name)).ok
    assert all(np.array_equal(tensors[given], array) for given, array in inputs.items())


@pytest.mark.parametrize(
    ("name", "words", "why"),
    [
        ("mean", {**ROWS, "epilogue": "relu"}, "torch has no single call for mean with relu"),
        ("conv1d", {**CONVOLUTION, "L": 20, "epilogue": "bias,relu"}, "no single call for conv1d with bias,relu"),
        ("conv1d", {**CONVOLUTION, "L": 20, "dtype": "i8"}, "torch computes conv1d of floats"),
        ("conv2d", {**CONVOLUTION, "H": 9, "W": 9, "weight_layout": "OIhw4i16o4i"}, "weights packed as OIhw4i16o4i"),
        ("elementwise", ROWS, "torch has no single call for elementwise here"),
    ],
    ids=["epilogue", "two steps", "bytes", "packed", "chain"],
)
def test_why_it_has_no_call_is_said(name: str, words: Mapping[str, Any], why: str) -> None:
    assert why in str(baselines.by_name("torch").missing(made(name, words), CPU))
