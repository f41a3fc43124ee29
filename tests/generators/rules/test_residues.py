"""Transposed convolutions by residues of their stride mean what they meant before, with fewer products."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from deepgen.generators.rules.rules.residues import with_residues
from deepgen.operators.expr.nodes import Expression
from deepgen.operators.expr.operator import ExpressionOperator
from deepgen.operators.named.convolutions import TransposedConv2d
from deepgen.vocabulary import BadInput


def products(expression: Expression) -> int:
    return sum(prod(a.extent for a in (*s.axes, *s.reduced)) for s in expression.stages if s.reduce is not None)


def means_the_same(expression: Expression, other: Expression) -> None:
    before, after = ExpressionOperator(expression), ExpressionOperator(other)
    inputs = before.inputs(3)
    inputs["x"].flat[:2] = np.inf, np.nan  # no zero is multiplied with these that was not before
    for name, answer in before.reference(inputs).items():
        np.testing.assert_allclose(after.reference(inputs)[name].values, answer.values, rtol=1e-9, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "N": st.integers(1, 2),
            "H": st.integers(1, 4),
            "W": st.integers(2, 5),
            "CI": st.integers(1, 3),
            "CO": st.integers(1, 3),
            "k": st.integers(1, 4),
            "stride": st.integers(1, 3),
            "pad": st.integers(0, 2),
            "out_pad": st.integers(0, 1),
            "layout": st.sampled_from(["nhwc", "nchw"]),
            "epilogue": st.sampled_from(["none", "bias", "bias,relu"]),
        }
    )
)
def test_any_transposed_convolution_means_the_same(words: dict[str, Any]) -> None:
    try:
        expression = TransposedConv2d.make({**words, "dtype": "f32"}).expression()
    except BadInput:
        assume(False)
    means_the_same(expression, with_residues(expression))


@pytest.mark.parametrize(
    ("filters", "fewer"),
    [
        ({"k": 1, "stride": 2, "out_pad": 1}, 4),
        ({"k": 1, "stride": 3, "out_pad": 2}, 9),
        ({"k": 2, "stride": 2}, 4),
        ({"k": 4, "stride": 2, "pad": 1}, 4),
    ],
)
def test_products_of_zeros_are_gone(filters: dict[str, int], fewer: int) -> None:
    expression = TransposedConv2d.make(
        {"N": 2, "H": 6, "W": 6, "CI": 4, "CO": 4, "dtype": "f16", **filters}
    ).expression()
    assert products(expression) == fewer * products(with_residues(expression))
