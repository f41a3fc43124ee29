"""Expressions: what is written is what is meant, and every mistake is told in a sentence."""

from __future__ import annotations

import json

import numpy as np
import pytest
from expressions import expressions, naive
from hypothesis import given, settings
from hypothesis import strategies as st

from deepgen.operators.expr import interpret
from deepgen.operators.expr.nodes import Expression
from deepgen.operators.expr.serial import expression_digest, from_json, to_json
from deepgen.operators.expr.text import text


@settings(max_examples=40)
@given(expressions())
def test_an_expression_is_json_both_ways(expression: Expression) -> None:
    read = from_json(json.loads(json.dumps(to_json(expression))))
    assert read == expression and hash(read) == hash(expression)
    assert expression_digest(read) == expression_digest(expression) and text(read) == text(expression)


@pytest.mark.parametrize("points", [interpret._POINTS, 6])
@settings(max_examples=50)
@given(expressions(), st.integers(0, 9))
def test_numpy_computes_what_loops_do(points: int, expression: Expression, seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = {
        t.name: rng.integers(0 if t.dtype == "u8" else -5, 6, t.shape) if t.dtype in ("i8", "u8")
        else rng.standard_normal(t.shape)
        for t in expression.tensors
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:  # a stage at once, or a few elements of it at a time
        patch.setattr(interpret, "_POINTS", points)
        patch.setattr(interpret, "_FACTOR_POINTS", points)
        done = interpret.interpret(expression, inputs)
    for name, want in naive(expression, inputs).items():
        np.testing.assert_allclose(done.held[name].values, want, rtol=1e-10, atol=1e-10)
        assert (done.held[name].error >= 0).all()
