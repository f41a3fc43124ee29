"""Inputs reach the limits of their ranges, and tiny results count if an operator guarantees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from deepgen.operators import Answer, Array, Conv2d, Gemm, Operator, Signature, Tolerance, Work, conv2d, gemm
from deepgen.operators.base import least_work
from deepgen.operators.compare import compare
from deepgen.operators.filling import EXTREMES
from deepgen.operators.signature import Param
from deepgen.vocabulary import BadInput, dtype
from deepgen.vocabulary.dtypes import narrow


@dataclass(frozen=True)
class Rows(Operator):
    """y[i] = x[index[i]]."""

    name: ClassVar[str] = "rows"

    count: int
    rows: int

    def signature(self) -> Signature:
        x = Param("x", "input", "f32", ("rows",))
        index = Param("index", "input", "i32", ("count",), range=(0, "rows - 1"))
        return Signature((x, index, Param("y", "output", "f32", ("count",))))

    def sizes(self) -> Mapping[str, int]:
        return {"count": self.count, "rows": self.rows}

    def work(self) -> Work:
        return least_work(self, {"f32": self.count})

    def reference(self, inputs: Mapping[str, Array]) -> Mapping[str, Answer]:
        return {"y": Answer(inputs["x"].astype(np.float64)[inputs["index"]])}


def test_integers_of_an_operator_of_ones_own_are_tried_at_the_ends_of_their_range() -> None:
    operator = Rows(6, 50)
    assert operator.probes() == ("normal", "zeros", *EXTREMES)
    given = {probe: operator.inputs(1, probe) for probe in operator.probes()}
    assert (given["minimum"]["index"] == 0).all() and (given["maximum"]["index"] == 49).all()
    assert given["alternating"]["index"].tolist() == [0, 49] * 3
    np.testing.assert_array_equal(given["maximum"]["x"], given["normal"]["x"])
    with pytest.raises(BadInput, match="unknown probe 'least'"):
        operator.inputs(1, "least")


@pytest.mark.parametrize(
    ("operator", "names"),
    [
        (gemm(64, 64, 64, dtype="i8"), "AB"),
        (gemm(64, 64, 64, dtype="u8", layout="tt"), "AB"),
        (conv2d(1, 16, 16, 16, 16, 3, dtype="i8"), ("x", "weight")),
    ],
)
def test_usual_integers_are_whole_and_probes_are_their_ends(operator: Gemm | Conv2d, names: str) -> None:
    info = np.iinfo(operator.dtypes[0].numpy())
    for name in names:
        usual, least, most, both = (operator.inputs(0, probe)[name] for probe in ("normal", *EXTREMES))
        assert (usual.min(), usual.max()) == (info.min, info.max)
        assert (least == info.min).all() and (most == info.max).all()
        assert set(np.unique(both)) == {info.min, info.max}
        assert (np.diff(both.astype(int), axis=0) != 0).all() and (np.diff(both.astype(int), axis=-1) != 0).all()


@pytest.mark.parametrize("of", ["i8", "u8", "i16", "i32", "i64"])
@pytest.mark.parametrize("words", [{}, {"bias": True, "beta": 2.0, "alpha": -3.0}])
@pytest.mark.parametrize("k", [3, 40_000, 200_000])
def test_no_sum_of_integers_overflows(of: str, words: dict[str, object], k: int) -> None:
    """The result of an overflow is undefined: ranges shrink where sums are long."""
    operator = gemm(2, 2, k, dtype=of, **words)
    info = np.iinfo(operator.dtypes[2].numpy())
    for probe in ("normal", *EXTREMES):
        want = operator.reference(operator.inputs(0, probe))["C"].values
        assert want.min() >= info.min and want.max() <= info.max


@pytest.mark.parametrize(("of", "longest"), [("i8", 131_071), ("u8", 33_025)])
def test_8_bit_integers_are_whole_up_to_a_length_that_is_stated(of: str, longest: int) -> None:
    assert gemm(1, 1, longest, dtype=of).signature()["B"].range is None
    assert gemm(1, 1, longest + 1, dtype=of).signature()["B"].range is not None


def test_unknown_probes_are_named() -> None:
    for operator in (gemm(2, 2, 2), conv2d(1, 4, 4, 1, 1, 3)):
        with pytest.raises(BadInput, match="unknown probe 'odd'"):
            operator.inputs(0, "odd")


@pytest.mark.parametrize("layout", ["nn", "tn"])
@pytest.mark.parametrize(
    ("of", "kept"), [("f32", True), ("f64", True), ("f16", True), ("bf16", False), ("tf32", False)]
)
def test_tiny_results_count_where_that_is_promised(of: str, kept: bool, layout: str) -> None:
    operator = gemm(5, 7, 300, dtype=of, layout=layout)
    given = operator.inputs(2, "denormal")
    want, bound, c = operator.reference(given)["C"], operator.tolerance("C", "denormal"), operator.dtypes[2]
    right = narrow(want.values, c)
    assert compare(right, want, c, bound).ok
    assert 0 < np.abs(want.values[-1]).max() < 2.0**-10 and np.abs(want.values[:-1]).max() > 1
    flushed = right.copy()
    flushed[-1] = 0
    assert compare(flushed, want, c, bound).ok is not kept


@pytest.mark.parametrize(("of", "kept"), [("f32", True), ("f64", True), ("f16", True), ("bf16", False)])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_tiny_results_of_a_convolution_count_too(of: str, kept: bool, layout: str) -> None:
    operator = conv2d(2, 6, 6, 5, 4, 3, dtype=of, layout=layout)
    given = operator.inputs(2, "denormal")
    want, bound, out = operator.reference(given)["y"], operator.tolerance("y", "denormal"), operator.dtypes[2]
    right = narrow(want.values, out)
    assert compare(right, want, out, bound).ok
    flushed = right.copy()
    flushed[(..., -1) if layout == "nhwc" else (slice(None), -1)] = 0
    assert compare(flushed, want, out, bound).ok is not kept


def test_an_operator_of_ones_own_may_promise_denormal_numbers() -> None:
    want, got = Answer(np.full(3, 2.0**-130)), np.zeros(3, np.float32)
    assert compare(got, want, dtype("f32"), Tolerance(0.0, 1e-6)).ok
    assert compare(got, want, dtype("f32"), Tolerance(0.0, 1e-6, floor=2.0**-149)).wrong == 3
