"""Expressions are compared with torch and numpy, through the calls that a user would write."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import deepgen as dg
from deepgen import baselines, targets
from deepgen.baselines import expression_calls
from deepgen.operators.compare import compare
from deepgen.operators.expr.nodes import Expression
from deepgen.operators.expr.operator import ExpressionOperator

sys.path.append(str(Path(__file__).parents[1] / "compiler"))
import cases

torch = pytest.importorskip("torch")
CPU = targets.resolve("cpu")


def place_in_row() -> Expression:
    x, c = dg.tensor("x", (3, 7), "i32"), dg.reduce_axis("c", 7)
    largest = dg.compute("largest", (3,), lambda i: dg.max(x[i, c], c))
    return dg.expression(
        dg.compute("y", (3, 7), lambda i, j: dg.where(x[i, j] == largest[i], j.cast("i32"), x[i, j] // 3))
    )


def chain() -> Expression:
    x, w = dg.tensor("x", (5, 6), "bf16"), dg.tensor("w", (6,), "bf16")

    def element(i: dg.Element, j: dg.Element) -> dg.Element:
        value = x[i, j].cast("f32") * w[j].cast("f32")
        return (dg.minimum(dg.maximum(value, 0.0), 6.0) * dg.sigmoid(value) ** 2.0).cast("bf16")

    return dg.expression(dg.compute("y", (5, 6), element))


FIT = {
    **{name: one for name, one in cases.CASES.items() if expression_calls.unfit(one) is None},
    "transposed": cases.transposed(9, 12, "bf16"),
    "columns": cases.columns(2, 7, 9, "bf16"),
    "maxima": cases.columns(3, 11, 5, op="max"),
    "long rows": cases.long_rows(2, 1231),
    "chain": chain(),
    "places": place_in_row(),
}


@pytest.mark.parametrize("name", ["torch", "numpy"])
def test_a_library_computes_what_the_expression_says(name: str) -> None:
    baseline, compared = baselines.by_name(name), 0
    for title, expression in FIT.items():
        operator = ExpressionOperator(expression)
        if (why := baseline.missing(operator, CPU)) is not None:
            assert name == "numpy" and ("formats" in why or "erf" in why), title
            continue
        compared += 1
        tensors = dict(operator.inputs(1))
        tensors |= {
            t.name: np.full(t.shape, 3, t.dtype.numpy()) for t in operator.tensors() if t.name in expression.outputs
        }
        baseline.prepare(operator, tensors, 1)()
        want = operator.reference({one.name: tensors[one.name] for one in expression.tensors})
        for tensor in operator.tensors():
            if tensor.name in expression.outputs:
                off = compare(tensors[tensor.name], want[tensor.name], tensor.dtype, operator.tolerance(tensor.name))
                assert off.ok, f"{title}: {off}"
    assert compared > 12


def test_one_operation_on_narrow_numbers_is_one_call() -> None:
    x, y = dg.tensor("x", (4, 4), "bf16"), dg.tensor("z", (4, 4), "bf16")
    product = dg.expression(
        dg.compute("y", (4, 4), lambda i, j: (x[i, j].cast("f32") * y[i, j].cast("f32")).cast("bf16"))
    )
    value = expression_calls._native(product.stages[0].value)
    assert not any("Cast" in type(one).__name__ for one in (value, *expression_calls.children(value)))


@pytest.mark.parametrize("name", ["conv nhwc", "pool"])
def test_what_would_store_every_product_is_not_compared(name: str) -> None:
    why = baselines.by_name("torch").missing(ExpressionOperator(cases.CASES[name]), CPU)
    assert why is not None and ("indices" in why or "products" in why)


def test_expressions_race_torch_unasked_and_its_compiler_by_name() -> None:
    able = baselines.find(ExpressionOperator(chain()), CPU)
    assert able == ["torch", "torch-compile"] and baselines.raced(able) == ["torch"]


def test_on_gpus_rows_and_expressions_are_compared_too() -> None:
    gpu = targets.resolve("cuda:sm_90a")
    for operator in (dg.operator("rms_norm", rows=4, cols=8), ExpressionOperator(chain())):
        assert "torch-gpu" in baselines.find(operator, gpu)
