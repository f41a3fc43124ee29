"""Epilogues as formulas: what they say, how a mistake is answered, and what they compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from deepgen.operators import Gemm, gemm
from deepgen.operators.epilogue import canonical, words_of_text
from deepgen.vocabulary import BadInput
from deepgen.vocabulary.dtypes import dtype, widen


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        ("gelu(x+bias[n])", "gelu(x + bias[n])"),
        ("x - (x - 2) - -1.5", "x - (x - 2) - (-1.5)"),
        ("x/(x/2)*(3*2)", "x / (x / 2) * 6"),
        ("-(x + 1)", "-(x + 1)"),
        ("clamp(silu(x)*up[m,n], -448, 448)", "clamp(silu(x) * up[m, n], -448, 448)"),
        ("f32(bias[n])*x + s[0]", "f32(bias[n]) * x + s[0]"),
    ],
)
def test_a_text_has_one_spelling(text: str, spelling: str) -> None:
    assert canonical(text) == spelling == canonical(spelling)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gelu(bias[n])", "has no x"),
        ("x + bias", "'bias' has no index"),
        ("x + bias[k]", "bias[m] (one for each row)"),
        ("foo(x)", "is no function of an epilogue"),
        ("__import__('os').system('x')", "is no function"),
        ("x if x else 1", "is not part of an epilogue"),
        ("gelu(x, 1)", "has 2 arguments (1 for gelu)"),
        ("x + b[n]", "is named as something else is"),
        ("x * (1 / 0)", "divides by zero"),
        ("x + bias[n] + bias[m]", "bias is read in two ways"),
        ("x + 1e400", "is too large"),
        ("x + max(1, 2)", "numbers alone"),
        ("bf16(x)", "is not an operand's format"),
        ("x +", "cannot be read"),
        ("(" * 150 + "x", "cannot be read"),
        ("x" + " + x" * 120, "at most 400"),
        ("x" + " + x" * 60, "nested too deeply"),
        ("x + " + " + ".join(f"o{i}[n]" for i in range(7)), "7 operands"),
    ],
)
def test_a_mistake_is_answered(text: str, says: str) -> None:
    with pytest.raises(BadInput) as error:
        gemm(4, 4, 4, epilogue=text)
    assert says in str(error.value)


def test_words_are_short_for_texts() -> None:
    worded = gemm(8, 8, 8, dtype="bf16", bias=True, activation="gelu", scales="row")
    assert gemm(8, 8, 8, dtype="bf16", epilogue="gelu_tanh(x * scale[m] + bias[n])") == worded
    assert gemm(8, 8, 8, epilogue="x") == gemm(8, 8, 8)
    assert words_of_text("gelu(x + bias[n])") is None, "GEMM's word is the form by tanh"
    assert Gemm.make({"M": 8, "N": 8, "K": 8, "epilogue": "relu(x + bias[n])"}) == gemm(
        8, 8, 8, bias=True, activation="relu"
    )
    for more in ({"bias": True}, {"beta": 1.0}, {"dtype": "f64"}, {"dtype": "i8"}):
        with pytest.raises(BadInput):
            gemm(8, 8, 8, epilogue="gelu(x + other[n])", **more)


def test_a_product_without_a_text_is_the_data_that_it_was() -> None:
    assert "epilogue" not in gemm(8, 8, 8).to_json()
    operator = gemm(8, 8, 8, dtype="bf16", epilogue="silu(x) * up[m, n]")
    assert operator.to_json()["epilogue"] == "silu(x) * up[m, n]"
    assert Gemm.from_json(operator.to_json()) == operator == Gemm.make(operator.parameters())


def test_operands_have_formats_and_shapes() -> None:
    text = "x * scale[m] * s[0] + bias[n] + f32(more[m, n])"
    eight = gemm(8, 6, 4, dtype="f8e4m3", c="f8e4m3", layout="nt", batch=2, epilogue=text)
    facts = {t.name: (t.dtype.name, t.shape) for t in eight.tensors()}
    assert facts["scale"] == ("f32", (8,)) and facts["s"] == ("f32", (1,))
    assert facts["bias"] == ("bf16", (6,)) and facts["more"] == ("f32", (2, 8, 6))


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("pair", ["joined", "two"])
def test_a_pair_is_two_products(pair: str, layout: str) -> None:
    operator = gemm(9, 7, 5, dtype="bf16", layout=layout, epilogue="silu(x) * y + bias[n]", pair=pair)
    assert Gemm.from_json(operator.to_json()) == operator == Gemm.make(operator.parameters())
    inputs = operator.inputs(3)
    wide = {t.name: widen(inputs[t.name], t.dtype).astype(float) for t in operator.tensors() if t.name in inputs}
    turned = [of.T if layout == "nt" else of for name, of in wide.items() if name in ("B", "B2")]
    first, second = turned if pair == "two" else np.split(turned[0], 2, 1)
    x, y = wide["A"] @ first, wide["A"] @ second
    answer = operator.reference(inputs)["C"]
    np.testing.assert_allclose(answer.values, x / (1 + np.exp(-x)) * y + wide["bias"], rtol=1e-9, atol=1e-12)
    some = operator.reference_at(inputs, "C", np.array([3, 20]))
    np.testing.assert_allclose(some.values, answer.values.reshape(-1)[[3, 20]], rtol=1e-12)
    assert operator.work().flops == 2 * gemm(9, 7, 5).work().flops


def test_a_pair_without_y_and_y_without_a_pair() -> None:
    assert gemm(8, 8, 8, epilogue="x * y").pair == "joined"
    for words in (
        {"epilogue": "relu(x) + bias[n] * 2", "pair": "two"},
        {"epilogue": "x * y", "batch": 2},
        {"pair": "two"},
    ):
        with pytest.raises(BadInput, match="pair"):
            gemm(8, 8, 8, **words)


def _numpy(x: Any, t: dict[str, Any]) -> Any:
    erf = np.vectorize(__import__("math").erf)
    inner = x * t["scale"][:, None] + t["bias"]
    gelu = 0.5 * inner * (1 + erf(inner / np.sqrt(2)))
    return np.clip(gelu * t["up"], -2, 2) / (1 + np.abs(t["s"])) - np.tanh(x) + np.maximum(x, np.exp(-np.abs(x)))


@pytest.mark.parametrize(("of", "c"), [("f32", "f32"), ("bf16", "bf16"), ("i8", "f16"), ("bf16", "f8e4m3")])
def test_the_reference_is_what_numpy_computes(of: str, c: str) -> None:
    text = "clamp(gelu(x * scale[m] + bias[n]) * up[m, n], -2, 2) / (1 + abs(s[0])) - tanh(x) + max(x, exp(-abs(x)))"
    operator = gemm(9, 7, 5, dtype=of, c=c, epilogue=text)
    inputs = operator.inputs(3)
    wide = {t.name: widen(inputs[t.name], t.dtype).astype(float) for t in operator.tensors() if t.name in inputs}
    answer = operator.reference(inputs)["C"]
    want = _numpy(wide["A"] @ wide["B"], wide)
    want = np.clip(want, -448, 448) if c == "f8e4m3" else want
    np.testing.assert_allclose(answer.values, want, rtol=1e-9, atol=1e-12)
    assert (answer.scale < 0.01 * (1 + np.abs(want))).all(), "errors stay small where numbers are"
    assert operator.tolerance().relative == dtype(c).epsilon
