"""Grouped GEMM: what it computes, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

import deepgen as dg
from deepgen.operators import TensorFacts, grouped_gemm
from deepgen.operators.grouped_gemm import LAYOUTS, PROBES
from deepgen.operators.grouped_reference import ends
from deepgen.vocabulary import BadInput
from deepgen.vocabulary.dtypes import dtype, widen


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("probe", PROBES)
def test_each_experts_rows_are_multiplied_by_its_matrix(layout: str, probe: str) -> None:
    scales = "none" if layout == "tn" else "column"
    operator = grouped_gemm(4, 23, 7, 11, dtype="f32", layout=layout, scales=scales)
    inputs = operator.inputs(5, probe)
    a, b = (inputs[name].astype(np.float64) for name in "AB")
    want, begin = np.zeros(operator.tensors()[-1].shape), 0
    with np.errstate(all="ignore"):
        for expert, end in enumerate(inputs["offsets"]):
            some = slice(begin, int(end))
            if layout == "tn":
                want[expert] = a[some].T @ b[some]
            else:
                want[some] = a[some] @ (b[expert].T if layout == "nt" else b[expert]) * inputs["scale"][expert]
            begin = int(end)
    answer = operator.reference(inputs)["C"]
    np.testing.assert_allclose(answer.values, want, rtol=1e-9, atol=1e-30)
    places = np.arange(want.size)
    np.testing.assert_allclose(operator.reference_at(inputs, "C", places).values, want.reshape(-1), rtol=1e-9, atol=0)


def test_rows_are_divided_in_every_way_and_first_offsets_agree() -> None:
    for probe in PROBES:
        some = [ends(8, 1000, seed, probe) for seed in range(6)]
        assert all(own == sorted(own) and own[-1] == 1000 for own in some)
        assert len({own[0] for own in some}) == 1
    counts = {probe: np.diff(ends(8, 1000, 3, probe), prepend=0) for probe in PROBES}
    assert counts["normal"].min() > 0 and counts["zeros"].max() == 1000
    assert (counts["large"] == 0).sum() == 4 and counts["denormal"][[0, -1]].tolist() == [0, 0]
    assert ends(1, 5, 0, "large") == [5]


def test_an_exact_result_of_the_gradient_is_small() -> None:
    operator = grouped_gemm(3, 20, 30, 900, layout="tn")
    inputs = operator.inputs(1, "exact")
    assert set(np.unique(widen(inputs["A"], dtype("bf16")))) == {-1.0, 1.0}
    assert np.abs(operator.reference(inputs)["C"].values).max() <= 64


@pytest.mark.parametrize(
    ("offsets", "words"),
    [([5, 3, 9], "offsets[1] is 3"), ([-1, 3, 9], "offsets[0] is -1"), ([1, 2, 8], "the last offset is 8")],
)
def test_offsets_that_do_not_divide_the_rows_are_refused(offsets: list[int], words: str) -> None:
    operator = grouped_gemm(3, 9, 4, 4)
    inputs = {**operator.inputs(0), "offsets": np.array(offsets, np.int32)}
    with pytest.raises(BadInput) as refused:
        operator.reference(inputs)
    assert words in str(refused.value)


def test_words_and_calls() -> None:
    operator = dg.operator("grouped_gemm", E=8, M=64, N=32, K=16, dtype="f8e4m3", scales="row")
    assert operator == dg.grouped_gemm(8, 64, 32, 16, dtype="f8e4m3", scales="row")
    assert operator.describe() == "grouped_gemm f8e4m3_bf16 nt 8 experts 64x32x16 scales=row"
    assert dict(operator.parameters())["dtype"] == "f8e4m3"
    facts = {
        "A": TensorFacts((70, 16), "f8e4m3"),
        "B": TensorFacts((5, 32, 16), "f8e4m3"),
        "offsets": TensorFacts((5,), "i32"),
        "scale": TensorFacts((70,), "f32"),
    }
    assert (bound := operator.bind(facts)).experts == 5 and bound.m == 70
    strided = grouped_gemm(3, 9, 4, 4).strided({"A": TensorFacts((9, 4), "bf16", (20, 1))})
    assert (strided["lda"], strided["ldb"], strided["stride_b"], strided["batch"]) == (20, 4, 16, 3)


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        ({"E": 0}, "at least 1"), ({"layout": "tt"}, "nt, nn, tn"), ({"dtype": "i8"}, "bf16"),
        ({"layout": "tn", "scales": "row"}, "none, expert"), ({"fast_sums": True}, "fast_sums=False"),
    ],
)  # fmt: skip
def test_what_is_no_grouped_product_is_refused(words: dict[str, object], allowed: str) -> None:
    with pytest.raises(BadInput) as refused:
        dg.operator("grouped_gemm", **{"E": 2, "M": 8, "N": 8, "K": 8, **words})
    assert allowed in str(refused.value)
