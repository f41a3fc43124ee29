"""Expressions: what is written is what is meant, and every mistake is told in a sentence."""

from __future__ import annotations

import json

from expressions import expressions
from hypothesis import given

from deepgen.operators.expr.nodes import Expression
from deepgen.operators.expr.serial import expression_digest, from_json, to_json
from deepgen.operators.expr.text import text


@given(expressions())
def test_an_expression_is_json_both_ways(expression: Expression) -> None:
    read = from_json(json.loads(json.dumps(to_json(expression))))
    assert read == expression and hash(read) == hash(expression)
    assert expression_digest(read) == expression_digest(expression) and text(read) == text(expression)
