"""Expressions mean what is written, and every mistake is reported in a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pytest
from expressions import expressions, naive, rounded
from hypothesis import given
from hypothesis import strategies as st

import deepgen as dg
from deepgen.operators.compare import compare
from deepgen.operators.expr import interpret
from deepgen.operators.expr.contraction import band_product
from deepgen.operators.expr.nodes import Expression
from deepgen.operators.expr.operator import ExpressionOperator, as_operator
from deepgen.operators.expr.serial import expression_digest, from_json, text, to_json
from deepgen.vocabulary import BadInput
from deepgen.vocabulary.dtypes import dtype, narrow, widen


@given(expressions())
def test_an_expression_is_json_both_ways(expression: Expression) -> None:
    read = from_json(json.loads(json.dumps(to_json(expression))))
    assert read == expression and hash(read) == hash(expression)
    assert expression_digest(read) == expression_digest(expression) and text(read) == text(expression)


@pytest.mark.parametrize("points", [interpret._POINTS, 6])
@given(expressions(), st.integers(0, 9))
def test_numpy_computes_what_loops_do(points: int, expression: Expression, seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = {
        t.name: rng.integers(0 if t.dtype == "u8" else -5, 6, t.shape) if t.dtype in ("i8", "u8")
        else rng.standard_normal(t.shape)
        for t in expression.tensors
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:  # a whole stage at once, or a few of its elements at a time
        patch.setattr(interpret, "_POINTS", points)
        patch.setattr(interpret, "_FACTOR_POINTS", points)
        done = interpret.interpret(expression, inputs)
    for name, want in naive(expression, inputs).items():
        np.testing.assert_allclose(done.held[name].values, want, rtol=1e-10, atol=1e-10)
        assert (done.held[name].error >= 0).all()


@given(expressions(dtypes=("f32",)), st.integers(0, 9), st.booleans())
def test_kernels_that_round_every_step_are_right_in_either_order(expression: Expression, seed: int, back: bool) -> None:
    operator = ExpressionOperator(expression)
    inputs = operator.inputs(seed)
    wide = {t.name: widen(inputs[t.name], dtype(t.dtype)) for t in expression.tensors}
    (answer,) = operator.reference(inputs).values()
    (got,) = naive(expression, wide, rounded, back=back).values()
    (name,) = expression.outputs
    of = dtype(expression.dtype_of(name))
    assert compare(narrow(got, of), answer, of, operator.tolerance(name)).ok


def product_of(dtype: str = "f32") -> Expression:
    a, b, k = dg.tensor("A", (6, 9), dtype), dg.tensor("B", (9, 5), dtype), dg.reduce_axis("k", 9)
    return dg.expression(dg.compute("C", (6, 5), lambda i, j: dg.sum(a[i, k] * b[k, j], k)))


def test_names_of_parameters_and_axes_make_no_difference() -> None:
    a, b, over = dg.tensor("A", (6, 9)), dg.tensor("B", (9, 5)), dg.reduce_axis("over", 9)
    other = dg.compute("C", (6, 5), lambda row, column: dg.sum(a[row, over] * b[over, column], over))
    assert product_of() == dg.expression(other)
    assert expression_digest(product_of()) != expression_digest(product_of("f64"))
    assert text(product_of()).splitlines() == [
        "C(A: f32[6, 9], B: f32[9, 5]) -> C",
        "    C[i0 < 6, i1 < 5]: f32 = sum[r0 < 9] A[i0, r0] * B[r0, i1]",
    ]


def test_a_reduction_inside_a_value_is_a_stage_once() -> None:
    x, k = dg.tensor("x", (4, 7)), dg.reduce_axis("k", 7)

    def element(i: Any, j: Any) -> Any:
        largest = dg.max(x[i, k], k)
        return dg.exp(x[i, j] - largest) / dg.sum(dg.exp(x[i, k] - largest), k)

    made = dg.expression(dg.compute("y", (4, 7), element))
    assert [(stage.name, stage.shape) for stage in made.stages] == [("y_max", (4,)), ("y_sum", (4,)), ("y", (4, 7))]


def test_squares_and_cubes_are_products() -> None:
    x = dg.tensor("x", (8,))
    for power, product in ((2, lambda e: e * e), (3, lambda e: e * e * e)):
        made = dg.compute("y", (8,), lambda i, power=power: x[i] ** power)
        assert made.definition == dg.compute("y", (8,), lambda i, product=product: product(x[i])).definition
    assert "**" in dg.text(dg.expression(dg.compute("y", (8,), lambda i: x[i] ** 2.5)))


def test_guards_that_always_hold_are_left_out() -> None:
    x = dg.tensor("x", (8,))
    made = dg.compute("y", (8,), lambda i: dg.where((i >= 0) & (i < 8), x[i], 0))
    assert made.definition == dg.compute("y", (8,), lambda i: x[i]).definition


A, X, K = dg.tensor("A", (4, 3), "i8"), dg.tensor("X", (4, 3)), dg.reduce_axis("k", 3)
MISTAKES: dict[str, Callable[[], Any]] = {
    "elements of i8 and f32 (one dtype: cast one of them)": lambda: A[0, 0] * X[0, 0],
    "1.5 with an element of i8 (combine integers with integers)": lambda: A[0, 0] * 1.5,
    "A is read with 1 indices (2, one a dimension of 4x3)": lambda: A[0],
    "index 0 of A, i0 + 1, is from 1 to 4 (0 to 3": lambda: dg.compute("y", (4,), lambda i: A[i + 1, 0]),
    "index i0 times i1": lambda: dg.compute("y", (4, 4), lambda i, j: X[i * j]),
    "the axis k has the extent 0": lambda: dg.reduce_axis("k", 0),
    "axis k is unknown here": lambda: dg.compute("y", (4,), lambda i: X[i, K]),
    "a function of 2 indices": lambda: dg.compute("y", (4, 3), lambda i: X[i, 0]),
    "cannot be used as a Python condition": lambda: bool(X[0, 0] > 1),
    "cannot be iterated over": lambda: list(X),
    "indices cannot depend on data": lambda: X[A[0, 0], 0],
    "used as a number (a cast": lambda: dg.compute("y", (4,), lambda i: X[i, 0] * i),
    "multiplied by integers": lambda: dg.compute("y", (4,), lambda i: X[i * 0.5, 0]),
    "X reads a tensor or stage of the same name": lambda: dg.compute("X", (4,), lambda i: X[i, 0]),
    "two tensors or stages are named X": lambda: X[0, 0] + dg.tensor("X", (4, 3))[0, 0],
    "axes made by dg.reduce_axis": lambda: dg.sum(X[0, 0], 3),
    "a float: cast it first": lambda: dg.exp(A[0, 0]),
    "floats cannot be cast to integers": lambda: X[0, 0].cast("i32"),
    "// of integers, / of floats": lambda: A[0, 0] / A[0, 1],
    "'my tensor' cannot name a tensor": lambda: dg.tensor("my tensor", (3,)),
    "dtype 'f31'": lambda: dg.tensor("T", (3,), "f31"),
    "positive integers": lambda: dg.tensor("T", (3, 0)),
    "split it into several stages with dg.compute": lambda: reduce(lambda x, _: x + x, range(40), X[0, 0]),
    "integers overflow for any inputs": lambda: as_operator(dg.compute("y", (4,), lambda i: A[i, 0] * 100 * 2)),
    "reads no tensor": lambda: dg.expression(dg.compute("y", (4,), lambda i: dg.where(i < 0, X[0, 0], 1.0))),
}


@pytest.mark.parametrize("says", MISTAKES)
def test_a_mistake_is_a_sentence(says: str) -> None:
    with pytest.raises(BadInput) as told:
        MISTAKES[says]()
    assert says in str(told.value)


def nodes(data: Any) -> Any:
    return data["stages"][0]["nodes"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: data.pop("stages"), "is not an expression"),
        (lambda data: nodes(data).clear(), "is not an expression"),
        (lambda data: nodes(data).append(["binary", "add", 9, 0]), "must be indices of earlier nodes"),
        (lambda data: nodes(data).extend(["binary", "add", n, n] for n in range(2, 40)), "several stages"),
        (lambda data: nodes(data)[0].__setitem__(3, [[7, [1, "i0"]], [0]]), "is from 7 to 12"),
        (lambda data: nodes(data)[0].__setitem__(1, "Z"), "C reads Z"),
        (lambda data: data["tensors"][0].__setitem__(2, [6, 1e9]), "integer"),
        (lambda data: data["outputs"].append("A"), "cannot be an output"),
    ],
)
def test_a_damaged_expression_is_refused(change: Callable[[Any], Any], says: str) -> None:
    data = json.loads(json.dumps(to_json(product_of())))
    change(data)
    with pytest.raises(BadInput) as told:
        from_json(data)
    assert says in str(told.value)


def test_a_lost_term_is_found_after_an_epilogue_and_in_a_mean() -> None:
    rng = np.random.default_rng(1)
    for operator in (
        dg.operator("bmm", B=1, M=20, N=20, K=700, epilogue="bias,relu"),
        dg.operator("mean", rows=400, cols=700),
        dg.operator("scan", M=1, N=20, K=400),
    ):
        inputs = operator.inputs(3)
        (output,) = operator.signature().outputs
        answer, allowed = operator.reference(inputs)[output.name], operator.tolerance(output.name)
        first = next(iter(inputs))
        without = {**inputs, first: inputs[first].copy()}
        without[first][..., int(rng.integers(300))] = 0.0
        lost = operator.reference(without)[output.name].values
        changed = np.abs(lost - answer.values) > 0
        found = compare(narrow(lost, dtype("f32")), answer, dtype("f32"), allowed)
        assert found.wrong > 0.98 * changed.sum() > 0


def test_sums_that_were_rounded_to_fewer_digits_than_the_result_has_may_be_as_far_off() -> None:
    a, b, k = dg.tensor("a", (3, 20), "f32"), dg.tensor("b", (20, 4), "f32"), dg.reduce_axis("k", 20)
    half = dg.compute("half", (3, 4), lambda i, j: dg.sum(a[i, k] * b[k, j], k).cast("f16"))
    wide = dg.compute("wide", (3, 4), lambda i, j: half[i, j].cast("f32"))
    operator = ExpressionOperator(dg.expression(wide, half))
    inputs = operator.inputs(1)
    computed = (inputs["a"] @ inputs["b"]).astype(np.float16)
    for results in (computed, np.nextafter(computed, np.float16(np.inf))):
        for output in operator.signature().outputs:
            answer, of = operator.reference(inputs)[output.name], dtype(operator.expression().dtype_of(output.name))
            compared = compare(results.astype(of.numpy()), answer, of, operator.tolerance(output.name))
            assert compared.ok == (results is computed or output.name == "half"), (output.name, compared)


def test_equal_numbers_that_are_added_in_turn_are_all_rounded_in_one_direction() -> None:
    x = dg.tensor("x", (8, 2000), "f32")
    operator = ExpressionOperator(dg.expression(dg.scan("y", (8, 2000), lambda i, j: x[i, j], axis=1)))
    numbers = np.random.default_rng(1).standard_normal((8, 1)).astype(np.float32)
    terms = np.repeat(numbers, 2000, axis=1)
    terms[:, 1000] *= 3
    answer, of = operator.reference({"x": terms})["y"], dtype("f32")
    in_turn = np.cumsum(terms, axis=1, dtype=np.float32)
    assert compare(in_turn, answer, of, operator.tolerance("y")).ok
    lost = np.cumsum(np.where(np.arange(2000) == 900, np.float32(0), terms), axis=1, dtype=np.float32)
    assert compare(lost, answer, of, operator.tolerance("y")).wrong == 8 * 1100


@pytest.mark.parametrize(
    ("kept", "found"),
    [
        (lambda i, j, x: dg.where(i <= j, x, 0.0), (-19, 0)),
        (lambda i, j, x: dg.where(i <= j, 0.0, x), (1, 11)),
        (lambda i, j, x: dg.where(j <= i + 3, x, 0.0), (-3, 11)),
        (lambda i, j, x: dg.where((i < j + 2) & (j < i + 3), x, 0.0), (-2, 1)),
        (lambda i, j, x: dg.where(i <= j, x, 1.0), None),
        (lambda i, j, x: dg.where(2 * i < j, x, 0.0), None),
        (lambda i, j, x: dg.where(i < 3, x, 0.0), None),
        (lambda i, j, x: x * 2.0, None),
    ],
)
def test_products_of_which_a_band_of_diagonals_is_kept_are_found(
    kept: Callable[..., Any], found: tuple[int, int] | None
) -> None:
    a, b, k = dg.tensor("a", (2, 12, 8)), dg.tensor("b", (2, 20, 8)), dg.reduce_axis("k", 8)
    product = dg.compute("product", (2, 12, 20), lambda n, i, j: dg.sum(b[n, j, k] * a[n, i, k], k))
    band = band_product(dg.expression(dg.compute("c", (2, 12, 20), lambda n, i, j: kept(i, j, product[n, i, j]))))
    assert (band and (band.layout, band.left.tensor, band.least, band.most)) == (found and ("nt", "a", *found))
