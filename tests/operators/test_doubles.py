"""f64, for which no reference is more exact: correct results pass whatever their size, and errors of 100 steps fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import deepgen as dg
from deepgen.operators import Answer, Operator
from deepgen.operators.base import Array
from deepgen.operators.compare import compare
from deepgen.operators.expr.operator import as_operator
from deepgen.vocabulary.dtypes import dtype

F64 = dtype("f64")
WIDER = np.longdouble  # 64 bits of fraction on x86, 113 on Arm


def _sigmoid(x: Any) -> Any:
    return np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x)))


def _tanh_gelu(x: Any) -> Any:
    return x * _sigmoid(WIDER(2) * np.sqrt(WIDER(2) / np.arccos(WIDER(-1))) * (x + WIDER(0.044715) * x**3))


def _softmax(x: Any) -> Any:
    terms = np.exp(x - x.max(axis=1, keepdims=True))
    return terms / terms.sum(axis=1, keepdims=True)


def _rms_norm(x: Any, gamma: Any) -> Any:
    return x / np.sqrt(np.square(x).mean(axis=1, keepdims=True) + WIDER(1e-5)) * gamma


def _layer_norm(x: Any, gamma: Any, beta: Any) -> Any:
    away = x - x.mean(axis=1, keepdims=True)
    return away / np.sqrt(np.square(away).mean(axis=1, keepdims=True) + WIDER(1e-5)) * gamma + beta


def _elementwise(epilogue: str) -> Operator:
    return dg.operator("elementwise", rows=24, cols=40, dtype="f64", epilogue=epilogue)


ALL: dict[str, tuple[Operator, Callable[..., Any]]] = {
    "sigmoid": (_elementwise("sigmoid"), _sigmoid),
    "silu": (_elementwise("silu"), lambda x: x * _sigmoid(x)),
    "gelu_tanh": (_elementwise("gelu_tanh"), _tanh_gelu),
    "tanh": (_elementwise("tanh"), np.tanh),
    "softmax": (dg.softmax(24, 40, dtype="f64"), _softmax),
    "rms_norm": (dg.operator("rms_norm", rows=24, cols=40, dtype="f64"), _rms_norm),
    "layer_norm": (dg.operator("layer_norm", rows=24, cols=40, dtype="f64"), _layer_norm),
}

# The share of elements in which the error is detected. The rest results from cancellation: 1 + tanh(x) for negative x,
# numbers minus their mean; and from exponentials of differences of many hundreds.
LEAST = {"gelu_tanh": 0.6, "layer_norm": 0.6, "softmax large": 0.05}


def judged(operator: Operator, probe: str, got: Array, want: Answer) -> bool:
    return compare(got, want, F64, operator.tolerance("y", probe)).ok


@pytest.mark.parametrize("name", ALL)
def test_a_few_steps_off_are_right_and_a_hundred_are_not(name: str) -> None:
    operator, wider = ALL[name]
    for probe in ("normal", "large" if name == "softmax" else "wide"):
        inputs = operator.inputs(4, probe)
        with np.errstate(all="ignore"):
            exact = np.asarray(wider(*(array.astype(WIDER) for array in inputs.values())), np.float64)
        want = operator.reference(inputs)["y"]
        assert judged(operator, probe, exact, want), probe
        steps = np.where(np.arange(exact.size).reshape(exact.shape) % 2, 1.0, -1.0) * np.spacing(exact)
        assert judged(operator, probe, exact + 2.0 * steps, want), probe
        far = Counter[bool]()
        bound = operator.tolerance("y", probe)
        for got, value, scale in zip((exact + 100.0 * steps).flat, want.values.flat, want.scale.flat, strict=True):
            if abs(value) > np.finfo(np.float64).tiny:  # denormal numbers may be flushed
                far[not compare(np.array([got]), Answer(np.array([value]), np.array([scale])), F64, bound).ok] += 1
        least = LEAST.get(f"{name} {probe}", LEAST.get(name, 1.0))
        assert far[True] >= least * far.total(), (probe, far)


@pytest.mark.parametrize("probe", ["normal", "wide"])
@pytest.mark.parametrize("terms", [100, 10_000, 1_000_000])
def test_sums_are_right_in_any_order_and_without_one_of_their_terms_wrong(terms: int, probe: str) -> None:
    x, over = dg.tensor("x", (1, terms), "f64"), dg.reduce_axis("c", terms)
    operator = as_operator(dg.compute("y", (1,), lambda row: dg.sum(x[row, over], over)))
    inputs = operator.inputs(2, probe)
    [numbers], want = inputs["x"], operator.reference(inputs)["y"]
    sums = [
        numbers.sum(),
        numbers[::-1].cumsum()[-1],
        np.random.default_rng(1).permutation(numbers).cumsum()[-1],
        numbers[np.argsort(np.abs(numbers))].cumsum()[-1],
    ]
    sums += [numbers.reshape(4, -1).cumsum(axis=1)[:, -1].sum()]
    for one in sums:
        assert judged(operator, probe, np.array([one]), want)
    largest = numbers[np.abs(numbers).argmax()]
    for lost in (largest, 1e-3 * largest):
        assert not judged(operator, probe, np.array([sums[0] - lost]), want)
