"""Products with weights of 4 bits: what the operator means, how weights are packed, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import deepgen as dg
from deepgen.operators import GemmW4, gemm_w4, pack_w4
from deepgen.operators.expr.interpret import answers
from deepgen.vocabulary import BadInput
from deepgen.vocabulary.dtypes import dtype, widen

SMALL = [
    gemm_w4(5, 37, 200),
    gemm_w4(2, 20, 66, group=32, zeros=True, dtype="f16"),
    gemm_w4(3, 16, 64, group=0, zeros=True),
]


def plainly(operator: GemmW4, inputs: dict[str, Any]) -> Any:
    """The result as the definition says it, weight by weight."""
    x, scales = (widen(inputs[name], operator.format) for name in ("x", "scales"))
    y = np.zeros((operator.m, operator.n))
    for n in range(operator.n):
        for k in range(operator.k):
            q, group = int(inputs["w"][n, k // 2]) >> 4 * (k % 2) & 15, k // (operator.group or operator.k)
            zero = int(inputs["zeros"][n, group]) if operator.zeros else 8
            y[:, n] += x[:, k] * ((q - zero) * scales[n, group])
    return y


@pytest.mark.parametrize("operator", SMALL, ids=GemmW4.slug)
def test_the_reference_is_the_definition(operator: GemmW4) -> None:
    for probe in ("normal", "exact", "maximum"):
        inputs = operator.inputs(3, probe)
        assert np.allclose(operator.reference(inputs)["y"].values, plainly(operator, inputs))


@pytest.mark.parametrize("layout", ["none", "packed"])
@pytest.mark.parametrize("operator", SMALL, ids=GemmW4.slug)
def test_the_expression_and_single_elements_agree_with_it(operator: GemmW4, layout: str) -> None:
    laid = gemm_w4(operator.m, operator.n, operator.k, group=operator.group, dtype=operator.dtype,
                   zeros=operator.zeros, weight_layout=layout)  # fmt: skip
    assert laid.make(laid.parameters()) == laid == GemmW4.from_json(laid.to_json())
    inputs = laid.inputs(5)
    want = laid.reference(inputs)["y"]
    exact = (one.reference(one.inputs(5, "exact"))["y"].values for one in (laid, operator))
    assert np.array_equal(*exact), "packed or not"
    expression = laid.expression()
    wide = {one.name: widen(inputs[one.name], dtype(one.dtype)) for one in expression.tensors}
    assert np.allclose(answers(expression, wide)["y"].values, want.values, rtol=1e-5)
    some = laid.reference_at(inputs, "y", np.arange(want.values.size))
    assert np.allclose(some.values, want.values.ravel()) and np.allclose(some.scale, want.scale.ravel())


def test_packed_weights_lie_as_lanes_need_them() -> None:
    """Word j of a lane: rows g and g + 8, and of K 32 * (j / 2) + 8 * t + 4 * (j % 2) and the three after it."""
    q = np.random.default_rng(1).integers(16, size=(30, 130), dtype=np.uint8)
    scales, zeros = np.ones((30, 5), np.float16), np.ones((30, 5), np.uint8)
    w, turned, of_groups = pack_w4(q[:, ::2] | q[:, 1::2] << 4, scales, zeros)
    assert w.shape == (2, 3, 32, 16) and turned.shape == of_groups.shape == (5, 30)
    words = w.view(np.uint32)
    for row, place in ((0, 0), (21, 71), (29, 129), (8, 37)):
        lane, word = row % 8 * 4 + place % 32 // 8, place % 64 // 32 * 2 + place % 8 // 4
        bit = 16 * (place % 2) + 8 * (place % 4 // 2) + 4 * (row % 16 // 8)
        assert words[row // 16, place // 64, lane, word] >> bit & 15 == q[row, place]


def test_tensors_of_torch_are_packed_where_they_are() -> None:
    torch = pytest.importorskip("torch")
    q, scales = np.random.default_rng(1).integers(256, size=(20, 70), dtype=np.uint8), np.ones((20, 2), np.float16)
    w, turned, none = pack_w4(torch.from_numpy(q), torch.from_numpy(scales).bfloat16())
    assert np.array_equal(w.numpy(), pack_w4(q, scales)[0]) and none is None
    assert turned.shape == (2, 20) and turned.is_contiguous() and turned.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"K": 63}, "K is 63 .*even"),
        ({"G": 48}, "G is 48 .*power of two"),
        ({"dtype": "f32"}, "dtype is 'f32'"),
        ({"weight_layout": "twisted"}, "weight_layout is 'twisted'"),
        ({"M": 0}, "M is 0"),
    ],
)
def test_what_it_cannot_be_is_refused_in_words(words: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        dg.operator("gemm_w4", **{"M": 4, "N": 8, "K": 64, **words})


def test_what_cannot_be_packed_is_refused_in_words() -> None:
    w, scales = np.zeros((4, 32), np.uint8), np.ones((4, 2), np.float16)
    for arrays, why in (
        ((w[0], scales), "N x K / 2 bytes"),
        ((w.view(np.int8), scales), "bytes: uint8"),
        ((w, scales, scales[:2]), "of the shape of scales"),
    ):
        with pytest.raises(BadInput, match=why):
            pack_w4(*arrays)
