"""A convolution's reference, work and tolerance: if one were wrong, every verdict would be."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import deepgen as dg
from deepgen import operators
from deepgen.libraries.entry import is_resized
from deepgen.operators import Conv2d, TensorFacts, conv2d
from deepgen.operators.compare import compare
from deepgen.operators.expr import interpret
from deepgen.operators.expr.layouts import packed_layout
from deepgen.operators.words import FORMATS
from deepgen.vocabulary import BadInput
from deepgen.vocabulary.dtypes import dtype, narrow

few = st.integers(1, 3)
sizes = st.integers(3, 7)


def loops(op: Conv2d, x: Any, weight: Any) -> tuple[Any, int, int]:
    """The result in nhwc, the products with real pixels, and the number of pixels used."""
    y, products, met = np.zeros((op.n, op.out_h, op.out_w, op.co)), 0, set()
    for p, q, r, s in product(range(op.out_h), range(op.out_w), *map(range, op.kernel)):
        row, column = p * op.strides[0] - op.pads[0] + r, q * op.strides[1] - op.pads[1] + s
        if 0 <= row < op.h and 0 <= column < op.w:
            y[:, p, q] += x[:, row, column] @ weight[r, s]
            products += op.n * op.ci * op.co
            met.add((row, column))
    return y, products, op.n * op.ci * len(met)


def either(values: st.SearchStrategy[int]) -> st.SearchStrategy[Any]:
    return st.one_of(values, st.tuples(values, values))


@given(n=few, h=sizes, w=sizes, ci=few, co=few, k=either(few), stride=either(st.integers(1, 4)),
       pad=either(st.integers(0, 2)), layout=st.sampled_from(["nhwc", "nchw"]))  # fmt: skip
def test_reference_and_work_are_those_of_the_loops(
    n: int, h: int, w: int, ci: int, co: int, k: Any, stride: Any, pad: Any, layout: str
) -> None:
    op = conv2d(n, h, w, ci, co, k, stride=stride, pad=pad, layout=layout, dtype="f64")
    made = op.inputs(3)
    x, weight = made["x"], made["weight"]
    if layout == "nchw":
        x, weight = x.transpose(0, 2, 3, 1), weight.transpose(2, 3, 1, 0)
    want, products, pixels = loops(op, x, weight)
    got = op.reference(made)["y"].values
    assert got.shape == op.tensors()[2].shape
    np.testing.assert_allclose(got if layout == "nhwc" else got.transpose(0, 2, 3, 1), want, rtol=1e-12, atol=1e-12)
    work = op.work()
    assert work.operations == {"f64": 2 * products}
    assert (work.read, work.written) == (8 * (pixels + weight.size), 8 * want.size)


def test_large_images_are_multiplied_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    op = conv2d(3, 9, 8, 4, 5, 3, pad=1)
    made = op.inputs(1)
    whole = op.reference(made)["y"]
    for most in (1, 500, 4000):  # factors of a row, of some rows, of an image and a half
        monkeypatch.setattr(interpret, "_FACTOR_POINTS", most)
        np.testing.assert_allclose(op.reference(made)["y"].values, whole.values, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("ci", [2, 64])
def test_tolerance_admits_f32_rounding_and_catches_one_lost_product(ci: int) -> None:
    op = conv2d(2, 12, 12, ci, 8, 3, pad=1)
    made = op.inputs(0)
    x, weight = np.pad(made["x"], ((0, 0), (1, 1), (1, 1), (0, 0))), made["weight"]
    want, allowed = op.reference(made)["y"], op.tolerance("y")
    sums = np.zeros(want.values.shape, np.float32)
    for r, s, c in product(range(3), range(3), range(ci)):  # sequentially: the worst order
        sums += x[:, r : r + 12, s : s + 12, c, None] * weight[r, s, c]
    assert compare(sums, want, dtype("f32"), allowed).ok
    lost = sums - x[:, 1:13, 1:13, 0, None] * weight[1, 1, 0]
    assert compare(lost, want, dtype("f32"), allowed).wrong > 0.9 * sums.size


@pytest.mark.parametrize("name", [*FORMATS])
def test_every_probe_has_an_answer_that_its_own_rounding_satisfies(name: str) -> None:
    op = conv2d(2, 5, 6, 3, 4, 3, stride=2, pad=1, dtype=name)
    for probe in op.probes():
        want = op.reference(op.inputs(2, probe))["y"]
        out = op.dtypes[2]
        with np.errstate(all="ignore"):
            assert compare(narrow(want.values, out), want, out, op.tolerance("y", probe)).ok
    with pytest.raises(BadInput, match="unknown probe"):
        op.inputs(2, "odd")


def test_integers_must_be_exact() -> None:
    op = conv2d(1, 4, 4, 9, 2, 3, dtype="i8")
    lowest = {t.name: np.full(t.shape, -128, np.int8) for t in op.tensors() if t.role == "input"}
    answer = op.reference(lowest)["y"]
    assert answer.values.dtype == np.int64 and (answer.values == 128 * 128 * 81).all()
    assert op.tolerance("y") == operators.Tolerance(0.0, 0.0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"k": 8}, r"k=8 on a padded image of 7x11 \(k <= 7\)"),
        ({"n": 0}, "N is 0"),
        ({"pad": -1}, "pad is -1"),
        ({"stride": 0}, "stride is 0"),
        ({"k": (1, 12)}, r"k=1x12 on a padded image of 7x11 \(k <= 7x11\)"),
        ({"k": (1, 2, 3)}, r"k is \(1, 2, 3\) .*one for each of h, w: 1x2"),
        ({"pad": (0, -1)}, r"pad is \(0, -1\)"),
        ({"weight_layout": "OIdhw4i"}, "not of a filter here"),
        ({"layout": "chwn"}, "nhwc, nchw"),
        ({"dtype": "tf32"}, "f32, f64"),
        ({"groups": 2}, "a divisor of both"),
        ({"kernel": 3}, "k is given twice"),
        ({"k": None}, "k is given nowhere"),
        ({"epilogue": "batch_norm"}, "unknown step 'batch_norm'"),
        ({"epilogue": "scale", "dtype": "i8"}, "a scale of floats"),
    ],
)
def test_what_is_impossible_is_refused_in_words(changes: dict[str, Any], says: str) -> None:
    usual: dict[str, Any] = {"n": 1, "h": 5, "w": 9, "ci": 2, "co": 3, "k": 3, "pad": 1}
    with pytest.raises(BadInput, match=says):
        conv2d(**{**usual, **changes})


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_words_and_json_lead_back_to_the_operator(layout: str) -> None:
    op = conv2d(2, 5, 6, 3, 4, 3, stride=2, pad=1, dtype="bf16", layout=layout)
    assert Conv2d.make(op.parameters()) == op
    assert operators.from_json(op.to_json()) == op
    assert operators.record(op).tensors() == op.tensors()


def test_what_only_another_operator_has_leads_to_it() -> None:
    """Dilation, groups and epilogues are accepted by conv2d, in Python and as parameters."""
    op = conv2d(2, 9, 8, 8, 4, kernel=(1, 3), pad=(0, 1), groups=2, epilogue="scale,bias,relu", dtype="float16")
    assert op.name == "dilated_conv2d" and op.describe().endswith(
        "k=1x3 pad=0x1 dilation=1 groups=2 epilogue=scale,bias,relu"
    )
    plain = Conv2d.make({"N": 1, "H": 9, "W": 9, "CI": 4, "CO": 4, "kernel": 3})
    assert Conv2d.make({**plain.parameters(), "dilation": 2}).name == "dilated_conv2d"
    assert conv2d(1, 9, 9, 4, 4, 3, dilation=(1, 1), groups=1, epilogue="none") == plain


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("packed", ["OIhw4i16o4i", "OhwI64o4i", "ohwi"])
def test_a_packed_weight_changes_nothing_but_its_place(packed: str, layout: str) -> None:
    op = conv2d(2, 7, 6, 5, 20, (3, 2), pad=(1, 0), layout=layout, weight_layout=packed)
    plain = conv2d(2, 7, 6, 5, 20, (3, 2), pad=(1, 0), layout=layout)
    assert op.probes() == plain.probes() and op.work() == plain.work()
    for probe in op.probes():
        made = op.inputs(4, probe)
        assert made["weight"].shape == op.tensors()[1].shape
        weight = packed_layout(packed).unpacked(made["weight"], (20, 5, 3, 2))
        own = weight if layout == "nchw" else weight.transpose(2, 3, 1, 0)
        got, want = op.reference(made)["y"], plain.reference({"x": made["x"], "weight": own})["y"]
        np.testing.assert_array_equal(got.values, want.values)
        np.testing.assert_array_equal(got.scale, want.scale)
    assert operators.from_json(op.to_json()) == op and operators.record(op).tensors() == op.tensors()


def test_old_files_mean_the_same_and_equal_numbers_are_one() -> None:
    old = {"name": "conv2d", "n": 2, "h": 5, "w": 6, "ci": 3, "co": 4, "k": 3, "stride": 2, "pad": 1, "layout": "nhwc",
           "dtype": "f32"}  # fmt: skip
    op = conv2d(2, 5, 6, 3, 4, (3, 3), stride=(2, 2), pad=(1, 1))
    assert operators.from_json(old) == op and op.to_json() == old and op.is_plain


def test_other_shapes_keep_to_one_number_or_two() -> None:
    even, uneven = conv2d(2, 9, 9, 3, 4, 3), conv2d(2, 9, 9, 3, 4, (1, 3))
    assert not is_resized(even, uneven) and not is_resized(uneven, even)
    assert is_resized(uneven, conv2d(1, 9, 8, 3, 4, (1, 5)))
    arrays = {"x": TensorFacts((2, 9, 9, 3), "f32"), "weight": TensorFacts((1, 5, 3, 4), "f32")}
    assert uneven.bind(arrays) == conv2d(2, 9, 9, 3, 4, (1, 5))
    with pytest.raises(BadInput, match="or two"):
        uneven.bind({**arrays, "weight": TensorFacts((3, 3, 3, 4), "f32")})
    assert all(set(near.sizes()) == set(uneven.sizes()) for near in uneven.neighbours())


def test_sizes_come_from_a_calls_arrays_and_what_does_not_fit_is_named() -> None:
    op = conv2d(2, 5, 6, 3, 4, 3, stride=2, pad=1, layout="nchw")
    given = {"x": TensorFacts((1, 8, 20, 21), "f32"), "weight": TensorFacts((7, 8, 5, 5), "f32")}
    assert op.bind(given) == conv2d(1, 20, 21, 8, 7, 5, stride=2, pad=1, layout="nchw")
    for name, shape, says in (
        ("weight", (7, 8, 5, 4), "weight has k=4"),
        ("weight", (7, 9, 5, 5), "weight has CI=9"),
        ("weight", (7, 8, 30, 30), "padded image of 22x23"),
        ("y", (1, 7, 10, 10), "y has the shape"),
    ):
        with pytest.raises(BadInput, match=says):
            op.bind({**given, name: TensorFacts(shape, "f32")})


def test_the_work_of_a_huge_image_is_counted_without_its_rows() -> None:
    """A size in a file of somebody else may be any number; a list of its rows would take 32 GiB."""
    op = dg.operator("conv2d", N=1, H=1 << 32, W=8, CI=1, CO=1, k=3, pad=1)
    assert op.work().flops == 2 * (3 * (1 << 32) - 2) * 22
