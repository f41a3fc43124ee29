"""Probes that every operator has: all magnitudes, NaN and infinities, within the declared ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest

import deepgen as dg
from deepgen.operators import Answer, Array, Operator, Param, Signature, Tolerance, Work, record
from deepgen.operators.base import least_work, strictly
from deepgen.operators.compare import compare
from deepgen.operators.expr.operator import Expressed, as_operator
from deepgen.operators.recorded import Recorded
from deepgen.vocabulary.dtypes import dtype, widen


def pair(of: str = "f32") -> Expressed:
    a, b = dg.tensor("a", (20, 30), of), dg.tensor("b", (20, 30), of)
    operator: Expressed = as_operator(dg.compute("y", (20, 30), lambda i, j: a[i, j] * b[i, j]))
    return operator


@pytest.mark.parametrize("of", ["f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2"])
def test_wide_inputs_have_all_magnitudes_and_stay_within_the_format(of: str) -> None:
    operator = pair(of)
    assert "wide" in operator.probes()
    a = widen(operator.inputs(3, "wide")["a"], dtype(of))
    assert np.isfinite(a).all() and (a > 0).any() and (a < 0).any()
    sizes = np.abs(a[a != 0])
    assert sizes.max() / sizes.min() > 2.0**8 and (sizes > 4).mean() > 0.04
    if of in ("f32", "bf16"):
        assert (sizes > 2.0**24).mean() > 0.1 < (sizes < 2.0**-24).mean()


def test_special_numbers_are_few_and_meet_zeros() -> None:
    operator = pair()
    assert operator.float_probes() == ("nan", "inf", "denormals")
    drawn = operator.inputs(3, "nan")
    a, b = drawn["a"].reshape(-1), drawn["b"].reshape(-1)
    assert 0 < np.isnan(a).sum() < 20 and not (np.isnan(a) & np.isnan(b)).any()
    assert ((a == 0) & np.isinf(b)).any() and (np.isinf(a) & (b == 0)).any()
    drawn = operator.inputs(3, "inf")
    assert {-np.inf, np.inf} <= set(drawn["a"].reshape(-1).tolist()) and not np.isnan(drawn["a"]).any()
    small = np.abs(operator.inputs(3, "denormals")["b"])
    tiny = np.finfo(np.float32).tiny
    assert 0 < ((small < tiny) & (small > 0)).sum() < 20


def test_flushing_shows_on_denormal_inputs_and_counts_nowhere_else() -> None:
    operator = pair()
    inputs = operator.inputs(3, "denormals")
    usual = operator.reference(inputs)["y"]
    answers = {"normal": usual, "denormals": strictly(usual, dtype("f32"))}
    right = np.float32(usual.values)
    flushed = np.where(np.abs(right) < np.finfo(np.float32).tiny, 0, right)
    found = {
        (probe, name): compare(got, answers[probe], dtype("f32"), operator.tolerance_on("y", probe)).ok
        for probe in answers
        for name, got in (("right", right), ("flushed", flushed))
    }
    assert found == {
        ("normal", "right"): True,
        ("normal", "flushed"): True,
        ("denormals", "right"): True,
        ("denormals", "flushed"): False,
    }


def test_a_record_keeps_both_kinds_of_probes() -> None:
    operator = pair()
    kept = Recorded(record(operator).data)
    assert (kept.probes(), kept.float_probes()) == (operator.probes(), operator.float_probes())
    assert kept.tolerance_on("y", "denormals") == operator.tolerance_on("y", "denormals")


def test_declared_ranges_hold_whatever_the_probe() -> None:
    arguments = [
        dg.input("x", 500, "f32", fill=("uniform", 0.0, 1.0)),
        dg.input("i", 500, "i32"),
        dg.output("y", 500, "f32"),
    ]
    kernel = dg.kernel(
        "void k(const float *x, const int *i, float *y) { }", language="c", entry="k", arguments=arguments,
        sizes={"n": 1}, reference=lambda x, i: x + i,
    )  # fmt: skip
    operator = kernel.operator()
    assert "wide" not in operator.probes() and operator.float_probes() == ()
    assert {"minimum", "maximum"} <= set(operator.probes())


@dataclass(frozen=True)
class Own(Operator):
    """An operator with its own inputs, which do not support later probes."""

    name = "own"
    n: int = 8

    def signature(self) -> Signature:
        return Signature((Param("x", "input", "f32", ("n",)), Param("y", "output", "f32", ("n",))))

    def sizes(self) -> Mapping[str, int]:
        return {"n": self.n}

    def work(self) -> Work:
        return least_work(self, {"f32": self.n})

    def inputs(self, seed: int, probe: str = "normal") -> dict[str, Array]:
        return {"x": np.zeros(self.n, np.float32) if {"normal": 1, "zeros": 0}[probe] else np.ones(self.n, np.float32)}

    def reference(self, inputs: Mapping[str, Array]) -> Mapping[str, Answer]:
        return {"y": Answer(inputs["x"].astype(np.float64))}


def test_operators_with_inputs_of_their_own_are_asked_for_no_others() -> None:
    operator = Own()
    for probe in (*operator.probes(), *operator.float_probes()):
        assert operator.inputs(0, probe)["x"].shape == (operator.n,)


def test_what_leaves_a_format_on_the_way_is_right_whatever_it_is() -> None:
    """log(1 + exp(x)) is x from 88 on, but exp(x) does not fit in f32 there."""
    x = dg.tensor("x", (4,), "f32")
    operator = as_operator(dg.compute("y", (4,), lambda i: dg.log(1.0 + dg.exp(x[i]))))
    answer = operator.reference({"x": np.float32([1, 50, 100, 200])})["y"]
    for got in ([1.3132616, 50, 100, 200], [1.3132616, 50, np.inf, np.nan]):
        assert compare(np.float32(got), answer, dtype("f32"), operator.tolerance("y")).ok
    for got in ([1.3132616, 51, 100, 200], [np.inf, 50, 100, 200], [np.nan, 50, 100, 200]):
        assert not compare(np.float32(got), answer, dtype("f32"), operator.tolerance("y")).ok
    assert not compare(np.float32([np.nan]), Answer(np.array([np.inf])), dtype("f32"), Tolerance(1e39, 0.0)).ok


def test_a_small_sigmoid_has_all_its_digits() -> None:
    x = dg.tensor("x", (3,), "f64")
    operator = as_operator(dg.compute("y", (3,), lambda i: dg.sigmoid(x[i])))
    values = operator.reference({"x": np.array([-3.8, -26.0, -700.0])})["y"].values
    want = np.array([1.0 / (1.0 + np.exp(3.8)), np.exp(-26.0) / (1.0 + np.exp(-26.0)), np.exp(-700.0)])
    assert np.allclose(values, want, rtol=1e-15, atol=0.0)
