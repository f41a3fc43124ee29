"""Operators defined by expressions compute what their names say, according to independent definitions."""

from __future__ import annotations

import json
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
from drawn_convolutions import random_convolution

import deepgen as dg
from deepgen import operators
from deepgen.operators import OPERATORS
from deepgen.operators.expr.layouts import packed_layout
from deepgen.operators.named import Named
from deepgen.vocabulary import BadInput

LAST, FIRST = "last", "first"


def channels_first(x: Any, weight: Any, layout: str, *, transposed: bool = False) -> tuple[Any, Any]:
    """x as N x C x space, and weight as CO x CI x taps (CI x CO x taps if transposed)."""
    if layout == FIRST:
        return x, weight
    taps = list(range(weight.ndim - 2))
    order = [weight.ndim - 2, weight.ndim - 1] if transposed else [weight.ndim - 1, weight.ndim - 2]
    return np.moveaxis(x, -1, 1), weight.transpose([*order, *taps])


def convolved(x: Any, weight: Any, stride: Any, pad: Any, dilation: Any, groups: int = 1) -> Any:
    space, taps = x.ndim - 2, weight.shape[2:]
    stride, pad, dilation = (each(option, space) for option in (stride, pad, dilation))
    padded = np.pad(x, [(0, 0), (0, 0), *((around, around) for around in pad)])
    sizes = [(padded.shape[2 + d] - (taps[d] - 1) * dilation[d] - 1) // stride[d] + 1 for d in range(space)]
    y = np.zeros((x.shape[0], weight.shape[0], *sizes))
    per_group, own = weight.shape[0] // groups, weight.shape[1]
    for tap in product(*map(range, taps)):
        first = [t * apart for t, apart in zip(tap, dilation, strict=True)]
        ends = [(a, a + (n - 1) * step + 1, step) for a, n, step in zip(first, sizes, stride, strict=True)]
        met = padded[(slice(None), slice(None), *(slice(*end) for end in ends))]
        for out in range(weight.shape[0]):
            channels = slice(out // per_group * own, out // per_group * own + own)
            y[:, out] += np.tensordot(weight[(out, slice(None), *tap)], met[:, channels], (0, 1))
    return y


def each(option: Any, dimensions: int) -> tuple[int, ...]:
    return option if isinstance(option, tuple) else (option,) * dimensions


def scattered(x: Any, weight: Any, stride: Any, pad: Any, dilation: Any, out_pad: Any, groups: int = 1) -> Any:
    """Each pixel adds its filter to the result."""
    space, taps, own = x.ndim - 2, weight.shape[2:], x.shape[1] // groups
    stride, pad, dilation, more = (each(one, space) for one in (stride, pad, dilation, out_pad))
    sizes = [(x.shape[2 + d] - 1) * stride[d] + (taps[d] - 1) * dilation[d] + 1 + more[d] for d in range(space)]
    whole = np.zeros((x.shape[0], groups, weight.shape[1], *sizes))
    for at in product(*map(range, x.shape[2:]), *map(range, taps)):
        pixel, tap = at[:space], at[space:]
        to = tuple(pixel[d] * stride[d] + tap[d] * dilation[d] for d in range(space))
        for group in range(groups):
            channels = slice(group * own, group * own + own)
            added = x[(slice(None), channels, *pixel)] @ weight[(channels, slice(None), *tap)]
            whole[(slice(None), group, slice(None), *to)] += added
    whole = whole.reshape(x.shape[0], -1, *sizes)
    return whole[(slice(None), slice(None), *(slice(around, n - around) for around, n in zip(pad, sizes, strict=True)))]


def answer(operator: Any) -> tuple[dict[str, Any], Any]:
    inputs = operator.inputs(5)
    (found,) = operator.reference(inputs).values()
    return inputs, found.values


@pytest.mark.parametrize("layout", [LAST, FIRST])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("conv1d", {"N": 2, "L": 17, "CI": 3, "CO": 4, "k": 3, "stride": 2, "pad": 4, "dilation": 3}),
        ("dilated_conv2d", {"N": 2, "H": 9, "W": 8, "CI": 4, "CO": 6, "k": 3, "pad": 2, "groups": 2}),
        ("dilated_conv2d", {"N": 1, "H": 5, "W": 8, "CI": 2, "CO": 3, "k": 2, "stride": 3, "dilation": 1}),
        ("conv3d", {"N": 1, "D": 4, "H": 5, "W": 6, "CI": 2, "CO": 3, "k": 3, "stride": 2, "pad": 1}),
        ("depthwise_conv2d", {"N": 2, "H": 6, "W": 7, "C": 3, "k": 3, "pad": 1}),
    ],
)
def test_convolutions(name: str, words: dict[str, int], layout: str) -> None:
    choices = {word.name: word.choices for word in OPERATORS.get(name).words}["layout"]
    operator = dg.operator(name, **words, dtype="f64", layout=choices[layout == FIRST])
    inputs, got = answer(operator)
    x, weight = inputs["x"], inputs["weight"]
    if name == "depthwise_conv2d":  # one input channel for each filter
        weight = weight[:, None] if layout == FIRST else weight[..., None, :]
    x, weight = channels_first(x, weight, layout)
    usual = {"stride": 1, "pad": 0, "dilation": 2 if name == "dilated_conv2d" else 1}
    told = [words.get(word, value) for word, value in usual.items()]
    want = convolved(x, weight, *told, groups=words.get("groups", words.get("C", 1)))
    np.testing.assert_allclose(got if layout == FIRST else np.moveaxis(got, -1, 1), want, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("layout", [LAST, FIRST])
@pytest.mark.parametrize(
    ("stride", "pad", "dilation", "out_pad"), [(1, 1, 1, 0), (2, 1, 1, 1), (3, 0, 2, 2), (2, 3, 2, 0)]
)
def test_a_transposed_convolution(stride: int, pad: int, dilation: int, out_pad: int, layout: str) -> None:
    words = {"stride": stride, "pad": pad, "dilation": dilation, "out_pad": out_pad}
    operator = dg.operator(
        "conv_transpose2d",
        N=2,
        H=5,
        W=4,
        CI=3,
        CO=2,
        k=3,
        **words,
        dtype="f64",
        layout="nhwc" if layout == LAST else "nchw",
    )
    inputs, got = answer(operator)
    x, weight = channels_first(inputs["x"], inputs["weight"], layout, transposed=True)
    want = scattered(x, weight, stride, pad, dilation, out_pad)
    np.testing.assert_allclose(got if layout == FIRST else np.moveaxis(got, -1, 1), want, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("seed", range(60))
def test_drawn_convolutions_with_options_for_each_dimension(seed: int) -> None:
    operator = random_convolution(Random(seed), ["f64"])
    words, inputs = operator.parameters(), operator.inputs(seed)
    layout = LAST if words["layout"].endswith("c") else FIRST
    x, weight, got = inputs["x"], inputs["weight"], operator.reference(inputs)["y"].values
    transposed, space = operator.name.startswith("conv_transpose"), x.ndim - 2
    groups = words.get("groups", words.get("C", 1))
    if (text := words.get("weight_layout", "none")) != "none":
        channels = (words["CO"] // groups, words["CI"]) if transposed else (words["CO"], words["CI"] // groups)
        weight = packed_layout(text).unpacked(weight, (*channels, *each(words["k"], space)))
        x = x if layout == FIRST else np.moveaxis(x, -1, 1)
        weight = weight.swapaxes(0, 1) if transposed else weight
    else:
        if operator.name == "depthwise_conv2d":
            weight = weight[:, None] if layout == FIRST else weight[..., None, :]
        x, weight = channels_first(x, weight, layout, transposed=transposed)
    told = [words["stride"], words["pad"], words.get("dilation", 1)]
    more = (words["out_pad"],) if transposed else ()
    want = (scattered if transposed else convolved)(x, weight, *told, *more, groups=groups)
    steps = words.get("epilogue", "none")
    if "bias" in steps:
        want = want + inputs["bias"].reshape(1, -1, *[1] * space)
    if "residual" in steps:
        want = want + (inputs["residual"] if layout == FIRST else np.moveaxis(inputs["residual"], -1, 1))
    if "relu" in steps:
        want = np.maximum(want, 0)
    np.testing.assert_allclose(got if layout == FIRST else np.moveaxis(got, -1, 1), want, rtol=1e-11, atol=1e-11)
    assert operators.from_json(json.loads(json.dumps(operator.to_json()))) == operator
    assert type(operator).make(operator.parameters()) == operator


def test_equal_numbers_are_one_and_old_files_mean_the_same() -> None:
    """Files written before there were options for each dimension."""
    old = {"name": "conv3d", "N": 1, "D": 4, "H": 5, "W": 6, "CI": 2, "CO": 3, "k": 3, "stride": 2, "pad": 1,
           "dilation": 1, "dtype": "f32", "layout": "ndhwc", "epilogue": "none"}  # fmt: skip
    now = dg.operator("conv3d", N=1, D=4, H=5, W=6, CI=2, CO=3, k=(3, 3, 3), stride="2x2x2", pad=[1, 1, 1])
    assert operators.from_json(old) == now and now.to_json() == old
    assert now.slug() == "conv3d-f32-N1-D4-H5-W6-CI2-CO3-k3-stride2-pad1"
    uneven = dg.operator("conv3d", N=1, D=4, H=5, W=6, CI=2, CO=3, k=(1, 3, 3))
    assert uneven.describe() == "conv3d f32 N=1 D=4 H=5 W=6 CI=2 CO=3 k=1x3x3"
    assert uneven.sizes()["k_d"] == 1 and uneven.sizes()["stride"] == 1 and "k" not in uneven.sizes()


def test_products_and_rows() -> None:
    inputs, got = answer(dg.operator("bmm", B=3, M=4, N=5, K=6, dtype="f64"))
    np.testing.assert_allclose(got, inputs["A"] @ inputs["B"].swapaxes(1, 2), rtol=1e-12)
    inputs, got = answer(
        dg.operator("bmm", B=3, M=4, N=5, K=6, dtype="f64", layout="nn", epilogue="bias,residual,relu")
    )
    want = np.maximum(inputs["A"] @ inputs["B"] + inputs["bias"] + inputs["residual"], 0)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
    inputs, got = answer(dg.operator("gemv", M=4, K=6, dtype="f64"))
    np.testing.assert_allclose(got, inputs["A"] @ inputs["x"], rtol=1e-12)
    for axis in range(3):
        inputs, got = answer(dg.operator("scan", M=3, N=4, K=5, axis=str(axis), dtype="f64"))
        np.testing.assert_allclose(got, inputs["x"].cumsum(axis), rtol=1e-12)
    for name, want_of in (("mean", np.mean), ("var", np.var)):
        inputs, got = answer(dg.operator(name, rows=4, cols=9, dtype="f64"))
        np.testing.assert_allclose(got, want_of(inputs["x"], axis=1), rtol=1e-12)
    inputs, got = answer(dg.operator("layer_norm", rows=4, cols=9, dtype="f64"))
    x = inputs["x"]
    spread = np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
    want = (x - x.mean(axis=1, keepdims=True)) / spread * inputs["gamma"] + inputs["beta"]
    np.testing.assert_allclose(got, want, rtol=1e-12)
    inputs, got = answer(dg.operator("rms_norm", rows=4, cols=9, dtype="f64", eps=0.5))
    size = np.sqrt(np.square(inputs["x"]).mean(axis=1, keepdims=True) + 0.5)
    np.testing.assert_allclose(got, inputs["x"] / size * inputs["gamma"], rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "words", "says"),
    [
        ("depthwise_conv2d", {"N": 1, "H": 5, "W": 5, "C": 3}, "needs a value for k"),
        ("depthwise_conv2d", {"N": 1, "H": 5, "W": 5, "C": 3, "k": 9}, "a filter that reaches over 9"),
        ("dilated_conv2d", {"N": 1, "H": 5, "W": 5, "CI": 3, "CO": 4, "k": 1, "groups": 2}, "a divisor of both"),
        ("conv_transpose2d", {"N": 1, "H": 5, "W": 5, "CI": 3, "CO": 4, "k": 1, "out_pad": 1}, "out_pad below stride"),
        ("gemv", {"M": 3, "K": 4, "epilogue": "bias,sqrt"}, "unknown step 'sqrt'"),
        ("gemv", {"M": 3, "K": 4, "epilogue": "bias,bias"}, "bias is given twice"),
        ("conv1d", {"N": 1, "L": 5, "CI": 3, "CO": 4, "k": 1, "kernel": 1}, "has no parameter 'kernel'"),
        ("gemv", {"M": 3, "K": 4, "dtype": "i8", "epilogue": "gelu"}, "with an element of i32"),
        ("conv1d", {"N": 1, "L": 5, "CI": 3, "CO": 4, "k": (1, 2)}, "k is (1, 2)"),
        ("conv3d", {"N": 1, "D": 5, "H": 5, "W": 5, "CI": 3, "CO": 4, "k": (1, 2)}, "one for each of d, h, w: 1x2x3"),
        ("conv3d", {"N": 1, "D": 5, "H": 5, "W": 5, "CI": 3, "CO": 4, "k": (1, 7, 1)}, "reaches over 1x7x1"),
        ("conv1d", {"N": 1, "L": 5, "CI": 3, "CO": 4, "k": 1, "weight_layout": "OIhw4i"}, "not of a filter here"),
        ("conv1d", {"N": 1, "L": 5, "CI": 3, "CO": 4, "k": 1, "weight_layout": "OOw"}, "is not understood"),
        ("conv1d", {"N": 1, "L": 5, "CI": 3, "CO": 4, "k": 1, "weight_layout": [1]}, "weight_layout is [1]"),
        ("gemv", {"M": 3, "K": 4, "N": 5}, "has no parameter 'N'"),
        ("gemm", {"M": 3, "N": 4, "K": 5, "epilogue": "relu,bias"}, "or bias and one of them"),
        ("expression", {}, "an expression has no command-line parameters"),
    ],
)
def test_words_that_do_not_fit_are_told(name: str, words: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput) as told:
        dg.operator(name, **words)
    assert says in str(told.value)


def test_an_epilogue_of_gemm_is_said_again() -> None:
    made = dg.operator("gemm", M=3, N=4, K=5, epilogue="bias,gelu")
    assert dg.operator("gemm", **made.parameters()) == made and made == dg.gemm(3, 4, 5, bias=True, activation="gelu")


def test_every_named_operator_is_described_by_its_words() -> None:
    for kind in (OPERATORS.get(name) for name in OPERATORS.own):
        if issubclass(kind, Named):
            sizes = {word.name: 8 if word.name != "k" else 1 for word in kind.words if word.needed}
            made = kind.make(sizes)
            assert kind.make(made.parameters()) == made and made.describe().startswith(kind.name)
