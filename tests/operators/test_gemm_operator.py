"""A GEMM's reference, work and tolerance: if one were wrong, every verdict would be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepgen import operators
from deepgen.operators import Gemm, gemm
from deepgen.operators.compare import compare
from deepgen.operators.signature import TensorFacts
from deepgen.vocabulary import BadInput
from deepgen.vocabulary.dtypes import dtype, narrow, widen

sizes = st.integers(1, 9)


@given(m=sizes, n=sizes, k=sizes, layout=st.sampled_from(["nn", "nt", "tn", "tt"]), batch=st.integers(1, 3))
def test_reference_is_the_triple_loop(m: int, n: int, k: int, layout: str, batch: int) -> None:
    op = gemm(m, n, k, layout=layout, batch=batch, alpha=0.5, beta=2.0)
    given_ = op.inputs(3)
    a, b, c = (given_[name].reshape(batch, *given_[name].shape[-2:]).astype(float) for name in "ABC")
    want = np.zeros((batch, m, n))
    for p in range(batch):
        for i in range(m):
            for j in range(n):
                for x in range(k):
                    left = a[p, i, x] if layout[0] == "n" else a[p, x, i]
                    right = b[p, x, j] if layout[1] == "n" else b[p, j, x]
                    want[p, i, j] += left * right
    got = op.reference(given_)["C"].values.reshape(batch, m, n)
    np.testing.assert_allclose(got, 0.5 * want + 2.0 * c, rtol=1e-12, atol=1e-12)


def test_inputs_depend_on_the_seed_and_on_nothing_else() -> None:
    op = gemm(8, 9, 10)
    first, again, other = op.inputs(1), op.inputs(1), op.inputs(2)
    assert all(np.array_equal(first[t], again[t]) for t in first)
    assert not np.array_equal(first["A"], other["A"])
    assert set(first) == {"A", "B"}


@pytest.mark.parametrize("k", [16, 256, 4096])
def test_tolerance_admits_f32_rounding_and_catches_one_lost_product(k: int) -> None:
    op = gemm(64, 64, k)
    given_ = op.inputs(0)
    want = op.reference(given_)["C"]
    sequential = np.zeros((64, 64), np.float32)
    for x in range(k):  # the worst order of summation that a kernel may choose
        sequential += np.outer(given_["A"][:, x], given_["B"][x])
    bound = op.tolerance()
    assert compare(sequential, want, dtype("f32"), bound).ok
    allowed = bound.absolute * want.scale + bound.relative * np.abs(want.values)
    lost = np.abs(np.outer(given_["A"][:, 0], given_["B"][0]))
    assert (lost > allowed).mean() > 0.9


def test_integers_must_be_exact() -> None:
    op = gemm(4, 4, 64, dtype="i8")
    assert op.tolerance() == operators.Tolerance(0.0, 0.0)
    assert op.reference(op.inputs(0))["C"].values.dtype == np.int64


@pytest.mark.parametrize("k", [1, 300])
def test_integer_references_are_those_of_integer_arithmetic(k: int) -> None:
    op = gemm(5, 7, k, dtype="i8", a="u8")
    given = {"A": np.full((5, k), 255, np.uint8), "B": np.full((k, 7), -128, np.int8)}
    result = op.reference(given)["C"].values
    assert result.dtype == np.int64
    assert (result == -255 * 128 * k).all()


def test_work_and_least_bytes() -> None:
    op = gemm(10, 20, 30)
    assert op.flops() == 2 * 10 * 20 * 30
    assert op.least_bytes() == 4 * (10 * 30 + 30 * 20 + 10 * 20)
    assert replace(op, beta=1.0).least_bytes() == op.least_bytes() + 4 * 10 * 20


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_activation_and_bias_and_scale(activation: str) -> None:
    op = gemm(3, 4, 5, activation=activation, bias=True, scales="row")
    given_ = op.inputs(0)
    plain = given_["A"].astype(float) @ given_["B"].astype(float)
    x = plain * given_["scale"][:, None].astype(float) + given_["bias"].astype(float)
    want = {
        "relu": np.maximum(x, 0),
        "gelu": 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        "silu": x / (1 + np.exp(-x)),
    }[activation]
    np.testing.assert_allclose(op.reference(given_)["C"].values, want, rtol=1e-6)


def test_sizes_may_be_numbers_of_numpy() -> None:
    assert gemm(*np.array([3, 4, 5])).to_json() == gemm(3, 4, 5).to_json()


def test_json_round_trip() -> None:
    op = gemm(3, 4, 5, dtype="bf16", layout="nt", batch=2, bias=True)
    assert operators.from_json(op.to_json()) == op


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"m": 0}, "M is 0"),
        ({"layout": "xx"}, "layout 'xx'"),
        ({"a": "f99"}, "f99"),
        ({"activation": "tanh"}, "tanh"),
        ({"alpha": float("nan")}, "alpha is nan"),
        ({"beta": "1"}, "beta is '1'"),
    ],
)
def test_a_wrong_field_is_named(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Gemm(**{"m": 1, "n": 1, "k": 1, **wrong})  # type: ignore[arg-type]


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20))
def test_bf16_rounds_to_nearest_even(values: list[float]) -> None:
    exact = np.array(values, np.float32)
    with np.errstate(over="ignore"):
        back = widen(narrow(exact, dtype("bf16")), dtype("bf16"))
    finite = np.isfinite(exact) & np.isfinite(back)
    error = np.abs(back[finite] - exact[finite].astype(np.float64))
    assert (error <= np.abs(exact[finite].astype(np.float64)) * 2.0**-8 + 2.0**-134).all()


@pytest.mark.parametrize("dtype_name", ["f32", "f64", "f16", "bf16", "i8"])
@pytest.mark.parametrize("layout", ["nn", "tn"])
def test_probes_give_finite_references_where_they_should(dtype_name: str, layout: str) -> None:
    op = gemm(16, 8, 64, dtype=dtype_name, layout=layout)
    for probe in op.probes():
        given_ = op.inputs(1, probe)
        result = op.reference(given_)["C"].values
        assert np.isfinite(result).all() or probe == "special"
        with np.errstate(over="raise"):
            narrow(result, op.dtypes[2]) if probe != "special" else None
        if probe == "denormal" and dtype_name in ("f32", "f16"):
            assert (np.abs(result[-1]) < float(np.finfo(given_["A"].dtype).tiny) * 64).all()
            assert (np.abs(result[:-1]) > 1e-4).any()


def test_special_inputs_hold_nan_and_both_infinities() -> None:
    given_ = gemm(8, 8, 8).inputs(0, "special")
    for name in ("A", "B"):
        assert np.isnan(given_[name]).sum() == 1 and np.isinf(given_[name]).sum() == 2


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("text, pair", [("gelu(x) * y", "joined"), ("gelu(x) * y", "two")])
def test_the_second_of_a_pair_has_no_infinity(text: str, pair: str, layout: str) -> None:
    """A gate of a negative sum is -4e-11 in unlimited precision and 0 in f32: times infinity, these differ."""
    drawn = gemm(8, 8, 8, layout=layout, epilogue=text, pair=pair).inputs(0, "special")
    joined = np.split(drawn["B"], 2, -1 if layout[1] == "n" else -2)
    first, second = joined if pair == "joined" else (drawn["B"], drawn["B2"])
    assert np.isnan(first).sum() == np.isnan(second).sum() == 1
    assert np.isinf(first).sum() == 2 and not np.isinf(second).any()


def eight(k: int = 4096, **other: object) -> Gemm:
    return gemm(64, 64, k, dtype="f8e4m3", c="f32", layout="nt", **other)


def test_sums_of_8_bit_floats_are_f32_unless_fast_ones_are_asked_for() -> None:
    exact, fast = eight(), eight(fast_sums=True)
    assert not exact.fast_sums and "fast" not in exact.describe() + exact.slug()
    assert "fast sums" in fast.describe() and fast.slug() == exact.slug() + "-fast"  # two studies, not one
    assert exact.to_json()["fast_sums"] is False and fast.to_json()["fast_sums"] is True
    assert [operators.from_json(op.to_json()) for op in (exact, fast)] == [exact, fast]


def test_files_from_before_there_was_a_choice_of_sums_are_read_as_what_they_asked_for() -> None:
    older = {k: v for k, v in eight().to_json().items() if k != "fast_sums"}
    assert operators.from_json(older) == eight()  # acc says f32
    assert "fast_sums" not in gemm(3, 4, 5, dtype="bf16").to_json()  # studies of other formats keep their names


@pytest.mark.parametrize("asked", [{"dtype": "bf16"}, {"dtype": "f8e4m3", "fast_sums": True}, {"a": "f8e4m3"}])
def test_only_exact_sums_of_8_bit_floats_have_scales_of_blocks(asked: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="scales 1x128,128x128 with"):
        gemm(3, 4, 5, scales="1x128,128x128", **asked)


def test_scales_of_blocks_are_operands_of_any_strides_that_partial_blocks_have_too() -> None:
    one = eight(300, scales="1x128,128x128", batch=2)
    shapes = {t.name: t.shape for t in one.tensors()}
    assert (shapes["scale_a"], shapes["scale_b"]) == ((2, 64, 3), (2, 1, 3))
    turned = {"scale_a": TensorFacts((2, 64, 3), "f32", (192, 1, 64))}
    assert [one.strided(turned)[f"scale_a_{along}"] for along in ("matrix", "row", "step")] == [192, 1, 64]
    assert Gemm.make(one.parameters()).scales == one.scales and one.slug() != eight(300, batch=2).slug()
    assert "scales" not in eight().parameters()  # as in studies from before there were any


@pytest.mark.parametrize("asked", [{"dtype": "bf16"}, {"dtype": "i8"}, {"a": "f8e4m3"}, {"dtype": "f32"}])
def test_other_formats_have_no_fast_sums(asked: dict[str, str]) -> None:
    with pytest.raises(BadInput, match="8-bit floats"):
        gemm(3, 4, 5, fast_sums=True, **asked)
    with pytest.raises(BadInput, match="fast_sums is 1"):
        eight(fast_sums=1)


# The largest errors of sums on an H200 (sm90_sums.json of commit 17fbba4c, f8e4m3, f32 results, standard-normal inputs)
# and the largest element; without fast sums after 128 products.
@pytest.mark.parametrize(
    ("k", "fast", "off", "largest"),
    [
        (128, True, 4.8e-4, 55.0), (1024, True, 1.6e-3, 150.0),
        (4096, True, 4.3e-3, 300.0), (16384, True, 9.4e-3, 610.0),
        (1024, False, 2.3e-4, 150.0), (4096, False, 1.5e-4, 300.0), (16384, False, 1.4e-4, 610.0),
    ],
)  # fmt: skip
def test_the_tolerance_fits_sums_as_tensor_cores_keep_them(k: int, fast: bool, off: float, largest: float) -> None:
    allowed = eight(k, fast_sums=fast).tolerance()
    assert off * largest <= allowed.absolute + allowed.relative * largest
    if not fast:
        assert allowed.absolute < 0.6, "a lost product shows"
        assert allowed.absolute < eight(k, fast_sums=True).tolerance().absolute


def test_bias_and_activation_may_stand_in_place_of_an_epilogue_but_not_beside_it() -> None:
    sizes = {"M": 8, "N": 8, "K": 8}
    epilogue = Gemm.make({**sizes, "epilogue": "bias,relu"})
    assert Gemm.make({**sizes, "bias": True, "activation": "relu"}) == epilogue
    assert Gemm.make({**sizes, "bias": True}).bias
    with pytest.raises(BadInput, match=r"an epilogue beside bias.*only one of them"):
        Gemm.make({**sizes, "epilogue": "relu", "bias": True})
