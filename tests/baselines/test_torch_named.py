"""torch as a baseline of operators given by words, on the CPU: the same results, and a message if torch has no call."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deepgen as dg
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
    ("conv2d", {**CONVOLUTION, "H": 9, "W": 8, "epilogue": "bias,relu"}),
    *(  # in f32: torch rounds after every step
        ("conv2d", {**CONVOLUTION, "H": 9, "W": 8, "epilogue": steps, "layout": one, "dtype": "f32"})
        for steps, one in (("scale,bias,residual,silu", "nchw"), ("residual,gelu_tanh,bias", "nhwc"))
    ),
    *(("conv3d", {**CONVOLUTION, "D": 6, "H": 7, "W": 8, "layout": one}) for one in ("ndhwc", "ncdhw")),
    *(("dilated_conv2d", {**CONVOLUTION, "H": 9, "W": 12, "groups": 4, "layout": one}) for one in ("nhwc", "nchw")),
    *(("conv_transpose2d", {**CONVOLUTION, "H": 9, "W": 8, "out_pad": 1, "layout": one}) for one in ("nhwc", "nchw")),
    ("conv2d", {**CONVOLUTION, "H": 9, "W": 8, "k": (1, 7), "pad": (0, 3), "stride": (2, 1)}),
    *(("conv2d", {**CONVOLUTION, "H": 9, "W": 8, "weight_layout": one}) for one in ("ohwi", "oihw", "iwho")),
    ("conv1d", {**CONVOLUTION, "L": 20, "weight_layout": "owi"}),
    ("conv_transpose2d", {**CONVOLUTION, "H": 5, "W": 6, "k": (3, 2), "weight_layout": "ihwo"}),
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


PACKED: list[tuple[str, Mapping[str, Any]]] = [
    ("conv1d", {**CONVOLUTION, "L": 20, "dilation": 2, "weight_layout": "OwI64o4i", "dtype": "i8"}),
    ("conv1d", {**CONVOLUTION, "L": 20, "epilogue": "bias", "layout": "ncl"}),
    ("conv2d", {**CONVOLUTION, "H": 9, "W": 8, "k": (1, 7), "pad": (0, 3), "weight_layout": "OIhw4i16o4i"}),
    ("conv2d", {**CONVOLUTION, "H": 9, "W": 8, "weight_layout": "OhwI64o4i", "dtype": "i8"}),
    ("conv2d", {**CONVOLUTION, "H": 9, "W": 8, "dtype": "i8", "layout": "nchw"}),
    ("conv2d", {**CONVOLUTION, "H": 9, "W": 8, "epilogue": "bias,gelu_tanh", "weight_layout": "OIhw8o"}),
    ("conv2d", {**CONVOLUTION, "H": 9, "W": 8, "epilogue": "silu", "layout": "nchw"}),
    ("conv3d", {**CONVOLUTION, "D": 5, "H": 6, "W": 7, "weight_layout": "OdhwI64o4i", "dtype": "i8"}),
    ("conv3d", {**CONVOLUTION, "D": 5, "H": 6, "W": 7, "weight_layout": "odhwi"}),
    ("dilated_conv2d", {**CONVOLUTION, "H": 9, "W": 12, "groups": 4, "weight_layout": "OIhw8o"}),
    (
        "conv_transpose2d",
        {**CONVOLUTION, "H": 5, "W": 6, "stride": (2, 3), "out_pad": (0, 2), "weight_layout": "OIhw8i4o"},
    ),
]


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here")
@pytest.mark.parametrize(("name", "words"), PACKED)
def test_onednn_with_weights_packed_ahead(name: str, words: Mapping[str, Any]) -> None:
    operator = made(name, words)
    packed = (
        any(letter.isdigit() for letter in words.get("weight_layout", "")) or operator.parameters()["dtype"] == "i8"
    )
    able = baselines.find(operator, CPU)
    assert "onednn-packed" in able
    assert ("onednn-packed" in baselines.raced(able, operator)) is packed and "onednn-packed" not in baselines.raced(
        able
    )
    tensors: dict[str, Array] = {k: v.copy() for k, v in operator.inputs(seed=3).items()}
    output = operator.tensors()[-1]
    tensors["y"] = np.full(output.shape, 3, output.dtype.numpy())
    run = baselines.by_name("onednn-packed").prepare(operator, tensors, 1)
    for seed in (3, 4):
        inputs = operator.inputs(seed)
        for given, array in inputs.items():
            tensors[given][...] = array
        run.pack()
        run()
        want = operator.reference(inputs)["y"]
        assert compare(tensors["y"], want, output.dtype, operator.tolerance("y")).ok
        assert all(np.array_equal(tensors[given], array) for given, array in inputs.items())
    assert all(address and size for address, size in run.places())


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here")
def test_packed_weights_are_shown_beside_kernels_that_are_given_some(tmp_path: Path) -> None:
    operator = made("conv2d", {"N": 1, "H": 6, "W": 6, "CI": 4, "CO": 8, "k": 3, "weight_layout": "OIhw4i16o4i"})
    study = dg.tune(operator, target="cpu", trials=1, out=tmp_path)
    [row] = [row for row in study.summary()["baselines"] if row["name"].startswith("onednn-packed")]
    assert "weights packed ahead" in row["name"]


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here")
def test_packed_weights_are_shown_beside_kernels_that_pack_ahead(tmp_path: Path) -> None:
    operator = made("conv2d", {"N": 1, "H": 6, "W": 6, "CI": 4, "CO": 8, "k": 3})
    for family, shown in (("rules", False), ("rules_constant_weights", True)):
        study = dg.tune(operator, target="cpu", family=family, trials=1, out=tmp_path)
        assert any(row["name"].startswith("onednn-packed") for row in study.summary()["baselines"]) is shown


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_cudnn_is_compared_in_both_orders(layout: str) -> None:
    words = {**CONVOLUTION, "H": 9, "W": 8, "k": (1, 7), "pad": (0, 3), "layout": layout}
    fused = made("conv2d", {**words, "epilogue": "bias,relu"})
    assert [*baselines.find(fused, targets.resolve("cuda:sm_90a"))][:1] == ["torch-gpu"]  # cuDNN, then separate calls
    for operator in (made("conv2d", words), made("dilated_conv2d", words)):
        able = baselines.find(operator, targets.resolve("cuda:sm_90a"))
        name = {"nhwc": "cudnn-nhwc", "nchw": "cudnn"}[layout]
        assert [one for one in able if one.startswith("cudnn")] == [name]
        assert name in baselines.raced(able, operator) and (name in baselines.raced(able)) is (layout == "nchw")


@pytest.mark.parametrize(
    ("name", "words", "why"),
    [
        ("bmm", {"B": 2, "M": 3, "N": 4, "K": 5, "dtype": "bf16", "epilogue": "relu"}, "sums products of elements"),
        ("conv1d", {**CONVOLUTION, "L": 20, "dtype": "i8"}, "torch computes conv1d of floats"),
        ("conv2d", {**CONVOLUTION, "H": 9, "W": 9, "weight_layout": "OIhw4i16o4i"}, "weights packed as OIhw4i16o4i"),
    ],
    ids=["epilogue", "bytes", "packed"],
)
def test_why_it_has_no_call_is_said(name: str, words: Mapping[str, Any], why: str) -> None:
    assert why in str(baselines.by_name("torch").missing(made(name, words), CPU))
