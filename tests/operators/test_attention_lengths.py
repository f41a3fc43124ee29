"""Attention over as many keys as each batch has, which may be in pages: what it means, and who refuses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simt_emulation as emulation
from test_attention_operator import built, emulated

import deepgen as dg
from deepgen import generators, targets
from deepgen.operators import Array, Attention, TensorFacts, attention
from deepgen.operators.attention import PROBES
from deepgen.operators.expr.interpret import answers
from deepgen.vocabulary import BadInput
from deepgen.vocabulary.dtypes import dtype, widen

FLAGS = ("causal", "alibi", "bias", "sinks", "lse")
COMBINATIONS = [*product((False, True), repeat=len(FLAGS))]
PAGED = attention(3, 4, 2, 50, 16, kv_heads=2, dtype="f32", lengths=True, page=16)


def drawn(number: int, combination: tuple[bool, ...]) -> Attention:
    """Each combination of flags with pages, layouts, heads and windows in turn."""
    page, pool = [(0, 0), (16, 0), (16, 3)][number % 3]
    return attention(
        3, 4, [1, 3, 19][number % 3], [21, 40][number % 2], 8, kv_heads=[1, 2, 4][number // 3 % 3], v_width=6,
        dtype="f32", layout=["bhsd", "bshd"][number // 2 % 2], window=[0, 2, 7][number // 2 % 3], lengths=True,
        page=page, pool=pool, **dict(zip(FLAGS, combination, strict=True)),
    )  # fmt: skip


OPERATORS = [drawn(*each) for each in enumerate(COMBINATIONS)]


def key_row(operator: Attention, inputs: Mapping[str, Array], name: str, at: tuple[int, int, int]) -> Array:
    """A key's row of k or v, of a batch and a head."""
    batch, head, key = at
    array = inputs[name].astype(np.float64)
    if operator.page:
        batch, key = inputs["pages"][batch, key // operator.page], key % operator.page
    row: Array = array[batch, head, key] if operator.layout == "bhsd" else array[batch, key, head]
    return row


def naive(operator: Attention, inputs: Mapping[str, Array], at: tuple[int, int, int]) -> tuple[Array, float]:
    """One query's result and the log of its sum, a key at a time."""
    b, h, i = at
    length, group = int(inputs["lengths"][b]), h // (operator.heads // operator.kv_heads)
    q = (inputs["q"][b, h, i] if operator.layout == "bhsd" else inputs["q"][b, i, h]).astype(np.float64)
    place, total, result = i + length - operator.queries, 0.0, np.zeros(operator.v_width)
    for key in range(length):
        apart = place - key
        hidden = operator.window and (apart >= operator.window or apart <= -operator.window)
        if hidden or (operator.causal and apart < 0):
            continue
        score = q @ key_row(operator, inputs, "k", (b, group, key)) / np.sqrt(operator.width)
        score -= float(inputs["slopes"][h]) * abs(apart) if operator.alibi else 0.0
        score += float(inputs["bias"][b, h, i, key]) if operator.bias else 0.0
        total += np.exp(score)
        result += np.exp(score) * key_row(operator, inputs, "v", (b, group, key))
    total += np.exp(float(inputs["sinks"][h])) if operator.sinks else 0.0
    with np.errstate(divide="ignore"):
        return result / (total or 1.0), float(np.log(total))


@pytest.mark.parametrize("probe", ["normal", "exact"])
def test_every_combination_of_options_is_what_a_loop_computes(probe: str) -> None:
    for operator in OPERATORS:
        inputs = operator.inputs(3, probe)
        answer = operator.reference(inputs)
        for at in np.ndindex(operator.batch, operator.heads, operator.queries):
            want, lse = naive(operator, inputs, at)
            np.testing.assert_allclose(operator.laid(answer["o"].values)[at], want, rtol=1e-12, atol=1e-12)
            if operator.lse:
                np.testing.assert_allclose(answer["lse"].values[at], lse, rtol=1e-12, atol=1e-12)


def test_probes_meet_all_lengths() -> None:
    for operator in (attention(batch, 1, 1, 50, 8, lengths=True) for batch in (1, 2, 5)):
        met = {int(n) for probe in PROBES for n in operator.inputs(3, probe)["lengths"]}
        assert {0, 1, 50} <= met and met - {0, 1, 50} and max(met) == 50
        assert operator.inputs(3)["lengths"][0] == 50


def test_a_batch_without_keys_gives_zeros() -> None:
    inputs = attention(2, 2, 3, 20, 8, lengths=True, lse=True, dtype="f32").inputs(3)
    inputs["lengths"][:] = (0, 2)
    answer = attention(2, 2, 3, 20, 8, lengths=True, lse=True, causal=True, dtype="f32").reference(inputs)
    assert not answer["o"].values[0].any() and (answer["lse"].values[0] == -np.inf).all()
    assert not answer["o"].values[1, :, 0].any() and answer["o"].values[1, :, 1:].all()  # queries before the first key


@pytest.mark.parametrize("operator", [PAGED, *OPERATORS[::5]], ids=Attention.slug)
def test_it_survives_files_and_words(operator: Attention) -> None:
    assert dg.operators.from_json(operator.to_json()) == operator  # type: ignore[attr-defined]
    assert Attention.make(operator.parameters()) == operator


def test_the_number_of_pages_is_that_of_the_table_unless_there_is_another() -> None:
    shapes = {t.name: t.shape for t in PAGED.tensors()}
    assert shapes["k"] == (12, 2, 16, 16) and shapes["pages"] == (3, 4)
    table = PAGED.inputs(3)["pages"].ravel()
    assert sorted(table) == list(range(12)) and list(table) != list(range(12))
    assert attention(3, 4, 2, 50, 16, kv_heads=2, dtype="f32", lengths=True, page=16, pool=12) == PAGED
    few = attention(3, 4, 2, 50, 16, kv_heads=2, layout="bshd", lengths=True, page=16, pool=5)
    assert few.tensors()[1].shape == (5, 16, 2, 16) and few.inputs(3)["pages"].max() == 4


def test_order_of_a_calls_tensors() -> None:
    options: dict[str, Any] = {"bias": True, "alibi": True, "sinks": True, "lse": True, "lengths": True, "page": 16}
    names = [t.name for t in attention(1, 1, 1, 20, 8, **options).tensors()]
    assert names == ["q", "k", "v", "bias", "slopes", "sinks", "lengths", "pages", "o", "lse"]


def test_keys_of_a_call_are_those_that_its_table_has_places_for() -> None:
    def keys(columns: int, **more: TensorFacts) -> int:
        arrays = {"q": TensorFacts((5, 4, 2, 16), "f32"), "pages": TensorFacts((5, columns), "i32"), **more}
        return PAGED.bind({**arrays, "k": TensorFacts((9, 2, 16, 16), "f32")}).keys

    assert (keys(4), keys(7)) == (50, 112)
    biased = attention(3, 4, 2, 50, 16, kv_heads=2, dtype="f32", lengths=True, page=16, bias=True)
    arrays = {"q": TensorFacts((3, 4, 2, 16), "f32"), "pages": TensorFacts((3, 7), "i32")}
    for keys_of_bias, own in ((100, 100), (1, 112)):
        bias = TensorFacts((1, 1, 1, keys_of_bias), "f32")
        assert biased.bind({**arrays, "k": TensorFacts((9, 2, 16, 16), "f32"), "bias": bias}).keys == own
    with pytest.raises(BadInput, match="k has the shape"):
        PAGED.bind({"k": TensorFacts((9, 2, 32, 16), "f32"), "pages": TensorFacts((3, 4), "i32")})


def test_work_is_that_of_the_lengths_of_normal_inputs() -> None:
    own, shared = PAGED.inputs(0)["lengths"].astype(int), 2 * 4 * (16 + 16)
    assert PAGED.flops() == 4 * 2 * 2 * (16 + 16) * own.sum()
    table = 4 * np.ceil(own / 16).sum()
    assert PAGED.work().read == 4 * (3 * 4 * 2 * 16) + 4 * 3 + shared * own.sum() + table
    full = attention(1, 4, 3, 50, 16, causal=True)
    assert attention(1, 4, 3, 50, 16, causal=True, lengths=True).flops() == full.flops()


@pytest.mark.parametrize("operator", [one for one in OPERATORS if not one.page], ids=Attention.slug)
def test_its_expression_masks_by_lengths(operator: Attention) -> None:
    inputs, expression = operator.inputs(3, "large"), operator.expression()
    inputs["lengths"][:] = (20, 1, 0)
    operator.laid(inputs["k"])[:, :, 20:] = operator.laid(inputs["v"])[:, :, 20:] = np.nan
    wide = {t.name: widen(inputs[t.name], dtype(t.dtype)) for t in expression.tensors}
    results = answers(expression, wide)
    for name, want in operator.reference(inputs).items():
        np.testing.assert_allclose(results[name].values, want.values, rtol=1e-12, atol=1e-12)


@pytest.mark.skipif(emulation.COMPILER is None, reason=emulation.NO_COMPILER)
@pytest.mark.parametrize("operator", [OPERATORS[23], OPERATORS[27]], ids=Attention.slug)
def test_the_device_computes_what_the_host_does(operator: Attention, tmp_path: Path) -> None:
    kernel = operator.reference_kernel("cuda")
    assert kernel is not None
    library = built(kernel, tmp_path)
    for probe in ("normal", "exact"):
        inputs = operator.inputs(3, probe)
        results = emulated(operator, inputs, kernel, library)
        for name, want in operator.reference(inputs).items():
            np.testing.assert_allclose(results[name].values, want.values, rtol=1e-12, atol=1e-13)
            np.testing.assert_allclose(results[name].scale, want.scale, rtol=1e-5)


def test_lengths_and_pages_that_are_not_there_are_refused_where_they_are_read() -> None:
    inputs = PAGED.inputs(3)
    inputs["lengths"][:] = (50, 33, 0)
    inputs["pages"][1, 3] = inputs["pages"][2, 0] = -1  # which no key needs
    PAGED.reference(inputs)
    inputs["pages"][1, 2] = 12
    with pytest.raises(BadInput, match=r"pages\[1, 2\] is 12 \(0 to 11, the pages of k and v\)"):
        PAGED.reference(inputs)
    inputs["lengths"][2] = 51
    with pytest.raises(BadInput, match=r"lengths\[2\] is 51 \(0 to 50"):
        PAGED.reference_at(inputs, "o", np.array([0]))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"lengths": True, "page": 24}, r"page is 24 \(one of 16, 32, 64, 128, 256"),
        ({"lengths": True, "page": 512}, "page is 512"),
        ({"lengths": True, "page": True}, "page is True"),
        ({"page": 16}, "page=16 without lengths"),
        ({"lengths": True, "pool": 16}, "POOL=16 without page"),
        ({"lengths": True, "page": 16, "pool": -1}, "POOL is -1"),
    ],
)
def test_what_makes_no_sense_is_refused(words: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        attention(1, 1, 8, 8, 8, **words)


def test_families_say_what_they_do_not_serve() -> None:
    lengths, hopper = attention(2, 8, 1, 100, 64, lengths=True), targets.resolve("cuda:sm_90a")
    many = attention(2, 8, 200, 200, 64, lengths=True)
    assert [generators.find(one, hopper).name for one in (lengths, many)] == ["mma_decode", "sm90_attention"]
    assert "not pages" in (generators.by_name("sm90_attention").refuses(replace(many, page=16), hopper) or "")
    paged, here = attention(2, 8, 1, 100, 64, lengths=True, page=16), targets.resolve("x86:avx2")
    assert "not in pages" in (generators.by_name("c_attention").refuses(paged, here) or "")
    assert "cannot read k and v through a table" in (generators.by_name("rules").refuses(paged, here) or "")
    assert [generators.find(paged, one).name for one in (here, hopper)] == ["c_decode", "mma_decode"]
    with pytest.raises(dg.DeepgenError, match="no generator supports attention"):
        generators.find(attention(2, 8, 200, 200, 64, lengths=True, page=16), hopper)


def test_the_command_takes_both_options(tmp_path: Path, monkeypatch: Any, capfd: Any) -> None:
    from deepgen.frontends.cli.main import main

    monkeypatch.chdir(tmp_path)
    words = ("attention", "B=2", "H=8", "SQ=1", "SK=1000", "D=64", "--lengths", "--page", "16")
    assert main(["space", *words, "--target", "x86:avx2"]) == 0 and "c_decode" in capfd.readouterr().out
    assert main(["tune", *words, "--target", "cuda:sm_70"]) == 2
    assert "no generator supports attention bf16 bhsd batch 2, 8 heads, 1x1000, width 64 lengths page=16" in (
        capfd.readouterr().err
    )
    assert main(["space", *words[:-1], "17"]) == 2
    assert "page is 17 (one of 16, 32" in capfd.readouterr().err
