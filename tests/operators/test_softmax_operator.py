"""Softmax guarantees: exact references on any input, and a tolerance that good kernels meet and bad ones do not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepgen import operators
from deepgen.operators import Array, Softmax, TensorFacts, softmax
from deepgen.operators.compare import Comparison, compare
from deepgen.operators.softmax import DTYPES, PROBES
from deepgen.vocabulary import BadInput, dtype
from deepgen.vocabulary.dtypes import narrow, widen


def judged(operator: Softmax, y: Array, probe: str = "normal") -> Comparison:
    answer = operator.reference(operator.inputs(3, probe))["y"]
    return compare(y, answer, dtype(operator.dtype), operator.tolerance("y", probe))


def plainly(operator: Softmax, probe: str = "normal", *, shift: bool = True) -> Array:
    """A simple kernel: sequential sums in the accumulation format, the exponential to base 2."""
    sums = operator.arithmetic.numpy().type
    x = widen(operator.inputs(3, probe)["x"], dtype(operator.dtype)).astype(sums)
    with np.errstate(all="ignore"):
        below = x - x.max(axis=1, keepdims=True) if shift else x
        terms = np.exp2(below * sums(np.log2(np.e)))
        total = np.cumsum(terms, axis=1, dtype=sums)[:, -1:]
        return narrow(terms * (1 / total), dtype(operator.dtype))


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.sampled_from(DTYPES))
def test_it_survives_files_and_words(rows: int, cols: int, dtype: str) -> None:
    operator = softmax(rows, cols, dtype=dtype)
    assert operators.from_json(operator.to_json()) == operator
    assert Softmax.make(operator.parameters()) == operator


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: softmax(0, 8), "rows is 0"),
        (lambda: softmax(8, True), "cols is True"),
        (lambda: softmax(8, 8, dtype="i8"), "dtype 'i8'"),
        (lambda: softmax(8, 8).inputs(0, "odd"), "unknown probe 'odd'"),
    ],
)
def test_what_makes_no_sense_is_refused(make: object, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        make()  # type: ignore[operator]


def test_sizes_come_from_a_calls_arrays() -> None:
    found = softmax(8, 8).bind({"x": TensorFacts((3, 5), "f32", (7, 1))})
    assert found == softmax(3, 5)
    assert found.strided({"x": TensorFacts((3, 5), "f32", (7, 1))})["stride_x_0"] == 7


@pytest.mark.parametrize(("name", "arithmetic", "size"), [("bf16", "f32", 2), ("f64", "f64", 8)])
def test_work_is_counted_by_its_arithmetic(name: str, arithmetic: str, size: int) -> None:
    work = softmax(6, 7, dtype=name).work()
    assert (work.operations, work.read, work.written) == ({arithmetic: 5 * 42}, 42 * size, 42 * size)


@pytest.mark.parametrize("probe", PROBES)
def test_rows_add_up_to_one_or_are_not_numbers(probe: str) -> None:
    operator = softmax(9, 21)
    sums = operator.reference(operator.inputs(3, probe))["y"].values.sum(axis=1)
    odd = 3 if probe == "special" else 0
    assert np.isnan(sums[:odd]).all()
    np.testing.assert_allclose(sums[odd:], 1.0)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("cols", [1, 37, 4096])
def test_a_simple_kernel_is_right(name: str, probe: str, cols: int) -> None:
    operator = softmax(64, cols, dtype=name)
    found = judged(operator, plainly(operator, probe), probe)
    assert found.ok, found


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("probe", ["large", "equal", "peak"])
def test_a_kernel_that_subtracts_no_maximum_is_wrong(name: str, probe: str) -> None:
    operator = softmax(8, 37, dtype=name)
    assert not judged(operator, plainly(operator, probe, shift=False), probe).ok


@pytest.mark.parametrize(("name", "off"), [("f32", 2e-5), ("f64", 1e-12), ("f16", 2e-3), ("bf16", 2e-2)])
def test_a_small_error_in_a_single_element_is_found(name: str, off: float) -> None:
    operator = softmax(8, 1024, dtype=name)
    y = plainly(operator)
    wide = widen(y, dtype(name))
    wide[5, 700] *= 1 + off
    found = judged(operator, narrow(wide, dtype(name)))
    assert (found.wrong, found.first) == (1, 5 * 1024 + 700)


def test_a_term_that_is_left_out_of_a_sum_is_found() -> None:
    operator = softmax(8, 1024)
    x = operator.inputs(3)["x"].astype(np.float64)
    terms = np.exp(x - x.max(axis=1, keepdims=True))
    found = judged(operator, (terms / terms[:, :-1].sum(axis=1, keepdims=True)).astype(np.float32))
    assert found.wrong > 0.99 * found.size
