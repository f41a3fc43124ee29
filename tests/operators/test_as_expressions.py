"""Operators that have their own reference, and their expressions: the same results, work and tolerance."""

from __future__ import annotations

import numpy as np
import pytest

from deepgen.operators import Operator, conv2d, gemm, softmax
from deepgen.operators.expr.nodes import HasExpression
from deepgen.operators.expr.operator import ExpressionOperator
from deepgen.vocabulary import BadInput

PLAIN = [
    *(gemm(33, 17, 300, dtype=dtype) for dtype in ("f32", "bf16", "f16", "i8", "f64")),
    gemm(9, 17, 30, batch=3, layout="tt"),
    gemm(9, 17, 30, layout="nt"),
    conv2d(2, 13, 17, 5, 19, 3, stride=2, pad=1),
    conv2d(1, 9, 9, 4, 4, 1, stride=3, dtype="f16"),
    conv2d(2, 8, 8, 3, 5, 3, pad=2, dtype="i8", layout="nchw"),
]


def expressed(operator: Operator) -> ExpressionOperator:
    assert isinstance(operator, HasExpression)
    return ExpressionOperator(operator.expression())


@pytest.mark.parametrize("operator", PLAIN, ids=lambda operator: operator.slug())
def test_sums_of_products_are_the_same_in_all_respects(operator: Operator) -> None:
    made = expressed(operator)
    assert [(t.name, t.shape, t.dtype, t.role) for t in made.tensors()] == [
        (t.name, t.shape, t.dtype, t.role) for t in operator.tensors()
    ]
    assert made.work() == operator.work() and set(made.probes()) == set(operator.probes())
    (output,) = operator.signature().outputs
    for probe in operator.probes():
        ours, theirs = made.tolerance(output.name, probe), operator.tolerance(output.name, probe)
        assert (ours.absolute, ours.relative) == pytest.approx((theirs.absolute, theirs.relative))
        inputs = operator.inputs(3, probe)
        got, want = made.reference(inputs)[output.name], operator.reference(inputs)[output.name]
        np.testing.assert_allclose(got.values, want.values, rtol=1e-10, atol=1e-11)
        scales = (np.broadcast_to(answer.scale, want.values.shape) for answer in (got, want))
        np.testing.assert_allclose(*scales, rtol=1e-4, atol=1e-40)


@pytest.mark.parametrize(
    "operator",
    [
        gemm(9, 17, 30, alpha=-0.5, bias=True, activation="gelu", scales="row"),
        gemm(9, 17, 30, batch=2, activation="silu", scales="tensor", dtype="bf16"),
        gemm(9, 17, 30, activation="relu", scales="column"),
        softmax(9, 37),
        softmax(9, 300, dtype="bf16"),
        softmax(5, 37, dtype="f64"),
    ],
    ids=lambda operator: operator.describe(),
)
def test_what_follows_has_the_same_results_and_a_tolerance_of_like_size(operator: Operator) -> None:
    made = expressed(operator)
    (output,) = operator.signature().outputs
    inputs = operator.inputs(3)
    got, want = made.reference(inputs)[output.name], operator.reference(inputs)[output.name]
    np.testing.assert_allclose(got.values, want.values, rtol=1e-10, atol=1e-11)
    ours, theirs = made.tolerance(output.name), operator.tolerance(output.name)
    allowed = [
        t.absolute * a.scale.astype(np.float64) + t.relative * np.abs(a.values) + 1e-30
        for t, a in ((ours, got), (theirs, want))
    ]
    there = want.values != 0  # zeros made by relu are exact
    assert 0.3 < np.median((allowed[0] / allowed[1])[there]) < 3.0


def test_a_result_that_is_read_first_is_no_expression() -> None:
    with pytest.raises(BadInput, match="reads C"):
        gemm(4, 4, 4, beta=1.0).expression()
