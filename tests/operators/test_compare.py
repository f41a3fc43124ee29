"""Correct and wrong answers are told apart for the right reason, and the first wrong element is named."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepgen.operators import Answer, Array, Tolerance, gemm
from deepgen.operators.compare import Comparison, explain
from deepgen.operators.compare import compare as compare_with
from deepgen.vocabulary import DType, dtype
from deepgen.vocabulary.dtypes import narrow

F32, I32, BF16, F16 = dtype("f32"), dtype("i32"), dtype("bf16"), dtype("f16")
TOLERANCE = Tolerance(absolute=1e-3, relative=1e-5)
NAN, INF = float("nan"), float("inf")


def compare(got: Array, want: Array, of: DType, tolerance: Tolerance) -> Comparison:
    return compare_with(got, Answer(want), of, tolerance)


def test_the_error_is_told_as_a_share_of_the_tolerance() -> None:
    want = np.array([1.0, 100.0])
    found = compare(np.array([1.0, 100.001], np.float32), want, F32, TOLERANCE)
    assert found.ok
    assert 0.4 < found.error < 0.6  # 0.001 of an allowed 0.002


@pytest.mark.parametrize(
    ("got", "want", "ok"),
    [
        (NAN, NAN, True),
        (NAN, 0.0, False),
        (0.0, NAN, False),
        (INF, INF, True),
        (INF, -INF, False),
        (-INF, INF, False),
        (1.0, INF, False),
        (INF, 1.0, False),
        (INF, NAN, False),
        (INF, 1e39, True),  # out of f32's range
        (-INF, 1e39, False),
        (INF, 1e38, False),
    ],
)
def test_special_values_stand_where_they_should(got: float, want: float, ok: bool) -> None:
    found = compare(np.array([2.0, got], np.float32), np.array([2.0, want]), F32, TOLERANCE)
    assert found.ok is ok
    assert found.first == (None if ok else 1)


def test_without_tolerance_only_equality_is_right() -> None:
    exact = Tolerance(0.0, 0.0)
    assert compare(np.zeros(4, np.float32), np.zeros(4), F32, exact).ok
    assert not compare(np.full(4, 1e-30, np.float32), np.zeros(4), F32, exact).ok
    integers = np.arange(9, dtype=np.int32)
    assert compare(integers, integers.astype(np.int64), I32, exact).ok
    assert compare(integers + (integers == 5), integers.astype(np.int64), I32, exact).first == 5


@pytest.mark.parametrize("name", ["f64", "f32", "f16", "bf16"])
def test_rounding_to_the_format_is_always_within_the_operators_tolerance(name: str) -> None:
    of = dtype(name)
    op = gemm(64, 64, 64, dtype=name)
    want = op.reference(op.inputs(1))["C"]
    assert compare_with(narrow(want.values, of), want, of, op.tolerance()).ok


@given(st.integers(0, 200_000 - 1))
def test_one_wrong_element_is_found_wherever_it_is(place: int) -> None:
    want = np.zeros((400, 500))
    got = np.zeros((400, 500), np.float32)
    got.reshape(-1)[place] = 1.0
    found = compare(got, want, F32, TOLERANCE)
    assert (found.wrong, found.first) == (1, place)
    assert f"C[{place // 500}, {place % 500}] is 1, should be 0 (1 of 200000" in explain(
        "C", got, want, F32, found, None
    )


def test_what_was_never_written_is_told_from_what_is_wrong() -> None:
    want = np.ones((2, 2))
    got = np.ones((2, 2), np.float32)
    got.view(np.uint8)[1, 4:] = 0xFF
    found = compare(got, want, F32, TOLERANCE)
    assert "C[1, 1] was never written" in explain("C", got, want, F32, found, 0xFF)
    got[1, 1] = NAN
    assert "C[1, 1] is nan" in explain("C", got, want, F32, compare(got, want, F32, TOLERANCE), 0xFF)
