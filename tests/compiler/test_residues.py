"""Transposed convolutions by residues of their stride: the same results, without multiplications by zero."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from expressions import naive
from hypothesis import given, settings
from hypothesis import strategies as st

import deepgen as dg
from deepgen.compiler.rules.residues import with_residues
from deepgen.operators.expr.nodes import Expression, HasExpression


def transposed(**words: Any) -> Expression:
    operator = dg.operator("conv_transpose2d", **{"N": 1, "H": 3, "W": 4, "CI": 1, "CO": 2, "k": 3, **words})
    assert isinstance(operator, HasExpression)
    return operator.expression()


@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(0, 2),
    st.sampled_from(["nhwc", "nchw"]),
    st.sampled_from(["none", "bias,relu", "residual"]),
)
def test_the_same_results(k: int, stride: int, pad: int, out_pad: int, layout: str, epilogue: str) -> None:
    words = {"k": k, "stride": stride, "pad": min(pad, k // 2), "out_pad": min(out_pad, stride - 1), "layout": layout}
    expression = transposed(**words, epilogue=epilogue)
    rng = np.random.default_rng(0)
    inputs = {t.name: rng.integers(-9, 10, t.shape).astype(float) for t in expression.tensors}
    inputs["x"].flat[0] = np.inf  # a new multiplication by zero would turn this into NaN
    with np.errstate(invalid="ignore"):
        want, got = (naive(one, inputs)["y"] for one in (expression, with_residues(expression)))
    assert np.array_equal(want, got, equal_nan=True)


def products(expression: Expression) -> int:
    return sum(prod((*s.shape, *(axis.extent for axis in s.reduced))) for s in expression.stages if s.reduce == "sum")


def test_there_are_no_products_of_gaps() -> None:
    even = transposed(k=4, stride=2, pad=1)
    assert products(with_residues(even)) * 4 == products(even)
    third = transposed(k=3, stride=3)
    assert products(with_residues(third)) * 9 == products(third)
    single = transposed(k=1, stride=2, out_pad=1)
    assert products(with_residues(single)) * 4 == products(single)


def test_what_has_no_gaps_stays_as_it_is() -> None:
    for words in ({"stride": 1}, {"stride": 2, "dilation": 2}):
        expression = transposed(**words)
        assert with_residues(expression) == expression
