"""Error bounds of a user's kernel: each element by its terms, in any order and any usual arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import deepgen as dg
from deepgen.kernels.own import OwnKernel, scales
from deepgen.kernels.own.carried import OwnArithmetic, Untraced, errors_of
from deepgen.operators import Answer, Array
from deepgen.operators.base import Operator
from deepgen.operators.compare import Comparison, compare
from deepgen.operators.expr.operator import as_operator
from deepgen.vocabulary.dtypes import dtype, narrow, widen

Function = Callable[..., Any]


def own(reference: Any, *shapes: tuple[int, ...], of: str = "f32", result: tuple[int, ...] | None = None) -> OwnKernel:
    names = "abcd"[: len(shapes)]
    inputs = [dg.input(name, shape, of) for name, shape in zip(names, shapes, strict=True)]
    text = f"void k({', '.join(f'const void *{name}' for name in (*names, 'y'))}) {{ }}"
    outputs = [dg.output("y", result or shapes[0], of)]
    return dg.kernel(text, language="c", entry="k", arguments=[*inputs, *outputs], sizes={"n": 1}, reference=reference)


def judged(kernel: OwnKernel, compute: Function, seed: int = 1) -> Comparison:
    """The verdict on a kernel that computes this in numpy, on the operator's own inputs."""
    operator = kernel.operator()
    inputs = operator.inputs(seed)
    of = next(t.dtype for t in operator.tensors() if t.name == "y")
    with np.errstate(all="ignore"):
        answer = operator.reference(inputs)["y"]
        got = np.asarray(compute(*(widen(a, of).astype(np.float32) for a in inputs.values())))
        stored = got if of.name == "f64" else narrow(got.astype(np.float32), of)
    return compare(stored.reshape(answer.values.shape), answer, of, operator.tolerance("y"))


@pytest.mark.parametrize("of", ["f32", "f16", "bf16"])
def test_small_results_beside_large_ones_are_judged_too(of: str) -> None:
    kernel = own(lambda a: np.exp(5 * a), (4000,), of=of)
    assert judged(kernel, lambda a: np.exp(np.float32(5) * a)).ok
    half = judged(kernel, lambda a: np.where(a < 0, 0, np.exp(5 * a)))
    assert half.wrong > 1000


ORDERS: dict[str, Function] = {
    "one by one": lambda a: a.cumsum(dtype=np.float32)[-1],
    "backwards": lambda a: a[::-1].cumsum(dtype=np.float32)[-1],
    "in pairs": lambda a: a.sum(dtype=np.float32),
    "in lanes": lambda a: sum(a[lane::8].cumsum(dtype=np.float32)[-1] for lane in range(8)),
}


@pytest.mark.parametrize("of", ["f32", "f16", "bf16", "f8e4m3", "f8e5m2"])
@pytest.mark.parametrize("order", ORDERS)
def test_plain_sums_are_right_in_every_order_and_format(order: str, of: str) -> None:
    for count in (100, 10_000, 54_000):
        kernel = own(lambda a: a.sum(keepdims=True), (count,), of=of, result=(1,))
        found = judged(kernel, ORDERS[order])
        assert found.ok, (count, found)


@pytest.mark.parametrize("fill", ["normal", ("uniform", 0.0, 1.0)])
def test_a_plain_sum_of_ten_million(fill: Any) -> None:
    arguments = [dg.input("a", 10**7, "f32", fill=fill), dg.output("y", 1, "f32")]
    kernel = dg.kernel(
        "void k(const float *a, float *y) { }", language="c", entry="k", arguments=arguments, sizes={"n": 1},
        reference=lambda a: a.sum(keepdims=True),
    )  # fmt: skip
    assert judged(kernel, ORDERS["one by one"]).ok
    assert not judged(kernel, lambda a: a[: 10**7 - 10**5].sum()).ok


def test_a_lost_term_is_found() -> None:
    kernel = own(lambda a: a.sum(keepdims=True), (54_000,), result=(1,))
    assert not judged(kernel, lambda a: a[np.abs(a) < np.abs(a).max()].sum()).ok


def test_saturated_functions_admit_what_is_near_their_limit_only() -> None:
    for function in (np.tanh, lambda x: 1 / (1 + np.exp(-x))):
        kernel = own(lambda a, function=function: function(1e10 * a), (500,))
        assert judged(kernel, lambda a, function=function: function(np.float32(1e10) * a)).ok
        assert judged(kernel, lambda a: np.full(a.shape, -0.5)).wrong == 500
    a = dg.tensor("a", (500,), "f32")
    operator = as_operator(dg.compute("y", (500,), lambda i: dg.tanh(a[i] * 1e10)))
    inputs = operator.inputs(1)
    (answer,) = operator.reference(inputs).values()
    (name,) = operator.reference(inputs)
    assert compare(np.float32(answer.values), answer, dtype("f32"), operator.tolerance(name)).ok
    found = compare(np.float32(-answer.values), answer, dtype("f32"), operator.tolerance(name))
    assert found.wrong == 500


def _layer_norm(x: Any) -> Any:
    off = x - x.mean(axis=-1, keepdims=True)
    return off / np.sqrt(np.var(x, axis=-1, keepdims=True) + 1e-5)


def _softmax(x: Any) -> Any:
    powers = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _jacobi(x: Any) -> Any:
    out = x.copy()
    out[1:-1, 1:-1] = (x[1:-1, :-2] + x[1:-1, 2:] + x[:-2, 1:-1] + x[2:, 1:-1]) / 4
    return out


TRACED: dict[str, Function] = {
    "layer norm": _layer_norm,
    "softmax": _softmax,
    "jacobi": _jacobi,
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(0.8 * (x + 0.04 * x**3))),
    "leaky": lambda x: np.where(x > 0, x, 0.1 * x),
    "clipped": lambda x: np.clip(3 * x, -1, 1),
    "rotated": lambda x: np.concatenate([x[:, 1:], -x[:, :1]], axis=1) * np.cos(x),
    "product": lambda x: (x @ x.T) @ x,
    "einsum": lambda x: np.einsum("ij,kj,kl->il", x, x, x) if isinstance(x, np.ndarray) else (x @ x.T) @ x,
    "scanned": lambda x: np.cumsum(x, axis=1),
    "others": lambda x: np.log1p(x * x) / np.hypot(x, 1.0) + np.arctan(x),
    "moved": lambda x: np.pad(np.roll(np.flip(x, 0), 1, axis=1), ((1, 1), (0, 0)))[1:-1],
    "norm": lambda x: x / np.linalg.norm(x, axis=1, keepdims=True),
}


@pytest.mark.parametrize("name", TRACED)
def test_errors_are_carried_through_what_references_are_written_with(name: str) -> None:
    function, x = TRACED[name], np.random.default_rng(5).standard_normal((40, 50), np.float32).astype(np.float64)
    traced = errors_of(lambda inputs: {"y": function(inputs["x"])}, {"x": x}, OwnArithmetic("f32", "f32"))["y"]
    assert np.allclose(traced.values, function(x), rtol=1e-12)
    error = np.broadcast_to(traced.error, traced.values.shape)
    assert (np.abs(function(x.astype(np.float32)) - traced.values) <= 2 * error + 2e-7 * np.abs(traced.values)).all()
    assert np.median(error) < 1e-3 * np.median(np.abs(traced.values))


def _element_by_element(a: Any) -> Any:
    out = np.zeros(a.shape)
    for i in range(len(a)):
        out[i] = np.exp(5 * a[i])
    return out


def test_what_cannot_be_followed_is_called_again_with_other_numbers() -> None:
    with pytest.raises(Untraced):
        errors_of(
            lambda inputs: {"y": _element_by_element(inputs["a"])}, {"a": np.ones(9)}, OwnArithmetic("f32", "f32")
        )
    kernel = own(_element_by_element, (2000,))
    assert judged(kernel, lambda a: np.exp(np.float32(5) * a)).ok
    assert judged(kernel, lambda a: np.where(a < 0, 0, np.exp(5 * a))).wrong > 500
    assert judged(kernel, lambda a: np.where(a < -1, 1.001, 1) * np.exp(5 * a)).wrong > 100
    total = own(lambda a: np.array([float(a.sum())]), (54_000,), result=(1,))
    rows = own(lambda a: np.stack([np.array([float(row.sum())]) for row in a])[:, 0], (50, 2000), result=(50,))
    for order in ORDERS.values():
        assert judged(total, order).ok
        assert judged(rows, lambda a, order=order: np.array([order(row) for row in a])).ok


def test_large_inputs_are_judged_without_carrying_errors_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scales, "_MOST_ELEMENTS", 1000)
    monkeypatch.setattr(scales, "errors_of", None)
    kernel = own(lambda a: np.exp(5 * a), (2000,))
    assert judged(kernel, lambda a: np.exp(np.float32(5) * a)).ok
    assert judged(kernel, lambda a: np.where(a < -1, 1.001, 1) * np.exp(5 * a)).wrong > 100


def test_references_that_write_to_their_arguments_change_nothing() -> None:
    def spoils(a: Any) -> Any:
        a *= 2
        return a + 1

    assert judged(own(spoils, (100,)), lambda a: 2 * a + 1).ok


def test_expected_arrays_and_other_kernels_are_no_licence_for_small_results() -> None:
    values = np.exp(5 * np.random.default_rng(3).standard_normal(1000))
    arguments = [dg.input("a", 1000, "f32", fill=np.zeros(1000, np.float32)), dg.output("y", 1000, "f32")]
    kernel = dg.kernel(
        "void k(const float *a, float *y) { }", language="c", entry="k", arguments=arguments, sizes={"n": 1},
        reference={"y": values},
    )  # fmt: skip
    operator: Operator = kernel.operator()
    for answer in (operator.reference(operator.inputs(0))["y"], operator.answer_of("y", np.float32(values))):
        assert isinstance(answer, Answer)
        assert _ok(operator, np.float32(values), answer)
        assert not _ok(operator, np.float32(np.where(values < 1, 0, values)), answer)


def _ok(operator: Operator, got: Array, answer: Answer) -> bool:
    return compare(got, answer, dtype("f32"), operator.tolerance("y")).ok
