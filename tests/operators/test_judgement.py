"""Judged like finalists, correct GEMM kernels pass in any summation order, and one missing product is always found."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from deepgen.operators import conv2d, gemm
from deepgen.operators.compare import compare
from deepgen.vocabulary.dtypes import narrow, widen

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import judgement


@pytest.mark.parametrize("of", judgement.DTYPES)
def test_right_sums_pass_and_a_lost_or_doubled_product_does_not(of: str) -> None:
    rng = np.random.default_rng(0)
    for number, order in enumerate(judgement.orders(gemm(1, 1, 1, dtype=of))):
        alarms, _ = judgement.judge_right(judgement.drawn(rng, of, 12, 300), order, number)
        assert not alarms, order
    assert judgement.wrong_row(of, 15).rejected == 15


@pytest.mark.parametrize("of", ["f32", "f64", "f16", "bf16", "f8e4m3", "f8e5m2"])
@pytest.mark.parametrize(
    "words",
    [{}, {"alpha": -0.3, "bias": True, "activation": "relu"}, {"scales": "row", "beta": 2.0, "activation": "silu"},
     {"batch": 3, "layout": "tn"}],
    ids=lambda words: "-".join(words) or "plain",
)  # fmt: skip
@pytest.mark.parametrize("k", [1, 2, 77, 5000])
def test_every_product_shows_where_sums_are_exact(of: str, words: dict[str, object], k: int) -> None:
    """Whatever follows the sum, a result that lacks any one product is out of tolerance."""
    operator = gemm(3, 4, k, dtype=of, **words)  # type: ignore[arg-type]
    given = operator.inputs(1, "exact")
    want, bound = operator.reference(given)["C"], operator.tolerance("C", "exact")
    c = operator.dtypes[2]
    assert compare(narrow(want.values, c), want, c, bound).ok
    less = {**given, "A": given["A"].copy()}
    matrices = less["A"] if operator.layout[0] == "n" else np.swapaxes(less["A"], -1, -2)
    for place in {0, k // 2, k - 1}:
        kept = matrices[..., place].copy()
        matrices[..., place] = 0  # all bits zero is the number zero in every format
        lost = operator.reference(less)["C"].values
        matrices[..., place] = kept
        assert compare(narrow(lost, c), want, c, bound).wrong == want.values.size


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("of", ["f32", "f16", "bf16"])
def test_every_product_of_a_convolution_shows(of: str, layout: str) -> None:
    operator = conv2d(3, 6, 5, 67, 2, 3, pad=1, dtype=of, layout=layout)
    given = operator.inputs(1, "exact")
    want, bound, out = operator.reference(given)["y"], operator.tolerance("y", "exact"), operator.dtypes[2]
    assert np.abs(want.values).max() <= 1 / out.epsilon, "exact in the format of y"
    assert (widen(narrow(want.values, out), out) == want.values).all()
    less = {**given, "weight": given["weight"].copy()}
    middle = (1, 1, 40) if layout == "nhwc" else (slice(None), 40, 1, 1)  # of the filter: every output uses it
    less["weight"][middle] = 0
    lost = operator.reference(less)["y"].values
    assert compare(narrow(lost, out), want, out, bound).wrong == want.values.size
