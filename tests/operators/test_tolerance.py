"""The tolerance of a GEMM: correct sums pass in every order and for any inputs, and a missing product does not."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepgen.operators import Gemm, gemm
from deepgen.operators.compare import compare
from deepgen.vocabulary.dtypes import narrow, widen

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import tolerance


@pytest.mark.parametrize("name", tolerance.ORDERS)
def test_sums_in_any_order_are_far_from_a_false_alarm(name: str) -> None:
    for k, samples in ((16, 2000), (2560, 250)):
        told = tolerance.row(name, k, samples)
        assert told.largest_share < 0.6 and told.false_alarm_an_element < 1e-12, told


def test_long_sums_were_called_wrong_before_and_a_lost_product_still_is() -> None:
    told = tolerance.row("in turn", 7000, 250)
    assert told.without_the_walk > 1e-9, "of 2e7 elements one was often called wrong"
    assert told.false_alarm_an_element < 1e-12
    assert tolerance.row("in turn", 2560, 500).lost_products_missed < 0.006


def computed(operator: Gemm, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """What a correct kernel computes: sequential sums in f32 (f64 for f64), and one rounding to C at the end."""
    work = np.float64 if operator.acc == "f64" else np.float32
    a, b = (widen(inputs[name], of).astype(work) for name, of in zip("AB", operator.dtypes, strict=False))
    if operator.a == "tf32":  # its instructions truncate what tf32 does not hold
        a, b = ((x.view(np.uint32) & 0xFFFFE000).view(np.float32) for x in (a, b))
    total = np.zeros((operator.m, operator.n), work)
    for k in range(operator.k):
        total += np.outer(a[:, k], b[k])
    total = work(operator.alpha) * total
    if operator.scales != "none":
        scale = inputs["scale"].astype(work)
        total = total * (scale[:, None] if operator.scales == "row" else scale)
    if operator.beta:
        total = total + work(operator.beta) * widen(inputs["C"], operator.dtypes[2]).astype(work)
    if operator.bias:
        total = total + widen(inputs["bias"], operator.dtypes[2]).astype(work)
    if operator.activation == "relu":
        total = np.maximum(total, 0)
    if operator.activation == "gelu":
        total = total / (1 + np.exp(work(-2 * np.sqrt(2 / np.pi)) * (total + work(0.044715) * total**3)))
    if operator.activation == "silu":
        total = total / (1 + np.exp(-total))
    return narrow(total, operator.dtypes[2])


@settings(max_examples=80, deadline=None)
@given(
    dtype=st.sampled_from(["f32", "f64", "tf32", "f16", "bf16", "f8e4m3", "f8e5m2"]),
    k=st.sampled_from([1, 2, 7, 64, 500]),
    alpha=st.sampled_from([1.0, -0.5]),
    beta=st.sampled_from([0.0, 2.0]),
    bias=st.booleans(),
    scales=st.sampled_from(["none", "tensor", "row", "column"]),
    activation=st.sampled_from(["none", "relu", "gelu", "silu"]),
    seed=st.integers(0, 1000),
)
def test_no_probe_calls_a_right_kernel_wrong(seed: int, **words: object) -> None:
    operator = gemm(9, 11, **words)  # type: ignore[arg-type]
    for probe in operator.probes():
        inputs = operator.inputs(seed, probe)
        with np.errstate(all="ignore"):
            got = computed(operator, inputs)
        found = compare(got, operator.reference(inputs)["C"], operator.dtypes[2], operator.tolerance("C", probe))
        assert found.ok, (probe, found)
