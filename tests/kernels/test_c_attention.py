"""Attention in C: correct on random small cases of every option, with configs from its spaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from kernel_runs import inside_larger

from deepgen import generators, targets
from deepgen.kernels import Generator
from deepgen.kernels.attention.c_attention import CAttention, CDecode
from deepgen.kernels.shared import resolved
from deepgen.operators import Attention, Operator, attention, softmax
from deepgen.operators.compare import compare
from deepgen.run.call.loaded import load
from deepgen.run.call.plans import check_shape
from deepgen.vocabulary import BadInput

QUERIES, FEW, HERE = CAttention(), CDecode(), targets.resolve("cpu")


def drawn(seed: int) -> Attention:
    rng = Random(seed)
    kv_heads = rng.choice([1, 2])
    return attention(
        rng.choice([1, 2]), kv_heads * rng.choice([1, 2]), *(rng.choice([1, 5, 40, 64, 130, 200]) for _ in range(2)),
        rng.choice([16, 33, 64, 80]), kv_heads=kv_heads, v_width=rng.choice([16, 7, 64]),
        dtype=rng.choice(["bf16", "f32"]), layout=rng.choice(["bhsd", "bshd"]), causal=rng.random() < 0.5,
        window=rng.choice([0, 0, 1, 50]), softcap=rng.choice([0.0, 5.0]), scale=rng.choice([0.0, 0.3]),
        **{word: rng.random() < 0.4 for word in ("bias", "alibi", "sinks", "lse")},
    )  # fmt: skip


def check(family: Generator, operator: Attention, config: Mapping[str, Any]) -> None:
    kernel = load(family.emit(operator, HERE, config), operator, HERE)
    results = [t for t in operator.tensors() if t.role == "output"]
    for probe in operator.probes():
        inputs = operator.inputs(3, probe)
        out = kernel(*(inputs[t.name] for t in operator.tensors() if t.role == "input"))
        for tensor, array in zip(results, out if len(results) > 1 else [out], strict=True):
            want, within = operator.reference(inputs)[tensor.name], operator.tolerance(tensor.name, probe)
            found = compare(np.asarray(array), want, tensor.dtype, within)
            assert found.ok, (operator.describe(), config, probe, tensor.name, found)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("family", [QUERIES, FEW], ids=lambda family: family.name)
def test_drawn_cases_are_right(family: Generator, seed: int) -> None:
    operator = drawn(seed) if family is QUERIES else replace(drawn(seed), queries=1 + 8 * (seed % 3))
    config = family.default(operator, HERE) if seed % 2 else family.space(operator, HERE).sample(1, seed)[0]
    check(family, operator, config)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("family", [QUERIES, FEW], ids=lambda family: family.name)
def test_caches_may_be_longer_than_what_they_hold(family: Generator, layout: str) -> None:
    operator = attention(2, 4, 6, 40, 16, kv_heads=2, dtype="f32", layout=layout, bias=True)
    kernel = load(family.emit(operator, HERE, family.default(operator, HERE)), operator, HERE)
    inputs = operator.inputs(3, "normal")
    apart = {name: inside_larger(array) for name, array in inputs.items() if name in "qkv"}
    assert all(array.base is not None for array in apart.values())
    found = compare(
        np.asarray(kernel(*(apart | {"bias": inputs["bias"]}).values())),
        operator.reference(inputs)["o"], operator.tensors()[-1].dtype, operator.tolerance(),
    )  # fmt: skip
    assert found.ok, found


@pytest.mark.parametrize(("family", "seed", "page"), [(QUERIES, 1, 0), (FEW, 2, 0), (FEW, 3, 16), (FEW, 4, 64)])
def test_lengths_and_pages_are_right(family: Generator, seed: int, page: int) -> None:
    """With few pages batches share them."""
    operator = replace(drawn(seed), batch=4, keys=150, lengths=True, page=page, pool=7 if seed % 2 and page else 0)
    operator = operator if family is QUERIES else replace(operator, queries=1 + 4 * (seed % 2))
    check(family, operator, family.space(operator, HERE).sample(1, seed)[0])


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_what_no_key_needs_is_not_read(layout: str) -> None:
    """Two batches share their first page; places of the table after a batch's keys, and rows after them, are wild."""
    operator = attention(3, 4, 1, 64, 24, kv_heads=2, dtype="f32", layout=layout, lengths=True, page=16, pool=6)
    inputs = operator.inputs(3)
    inputs["lengths"][:] = (40, 17, 0)
    inputs["pages"][:] = 1 << 30
    inputs["pages"][0, :3], inputs["pages"][1, :2] = (5, 1, 3), (5, 0)
    own = {name: array.copy() for name, array in inputs.items()}
    pools = [operator.laid(inputs[name]) for name in "kv"]  # head before key
    for pool in pools:
        pool[3, :, 8:] = pool[0, :, 1:] = pool[[2, 4]] = np.nan
    kernel = load(FEW.emit(operator, HERE, config := FEW.default(operator, HERE)), operator, HERE)
    result = kernel(*(inputs[t.name] for t in operator.tensors() if t.role == "input"))
    found = compare(
        np.asarray(result), operator.reference(own)["o"], operator.tensors()[-1].dtype, operator.tolerance()
    )
    assert found.ok and not operator.laid(result)[2].any(), (config, found)


def test_kernels_without_an_option_have_no_trace_of_it() -> None:
    text = "a\n#if ONE  // why\nb\n#ifdef OTHER\nc\n#else\nd\n#endif\n#else\ne\n#endif\nf\n"
    assert resolved(text, {"ONE": True}) == "a\nb\n#ifdef OTHER\nc\n#else\nd\n#endif\nf\n"
    assert resolved(text, {"ONE": False}) == "a\ne\nf\n" and resolved(text, {"OTHER": True}) == text
    plain, paged = (attention(1, 8, 1, 99, 64, dtype="f32", lengths=n > 0, page=n) for n in (0, 16))
    sources = [FEW.emit(one, HERE, FEW.default(one, HERE)).sources for one in (plain, paged)]
    assert ["lengths" in "".join(file.text for file in files) for files in sources] == [False, True]


def test_parts_of_the_keys_are_joined() -> None:
    """Also if a part has no keys visible to a query, and if heads share a K head."""
    operator = attention(1, 4, 3, 200, 40, kv_heads=1, dtype="f32", causal=True, window=20, lse=True)
    config = {"ROWS": 8, "KEYS": 32, "SPLITS": 8, "THREADS": 2}
    check(FEW, operator, config)
    check(FEW, replace(operator, batch=3, lengths=True, page=16), config)


@pytest.mark.parametrize("target", ["x86:avx2", "x86:avx512", "arm:neon"])
def test_few_queries_are_for_the_family_that_fills_lanes_with_columns(target: str) -> None:
    chip: Any = targets.resolve(target)
    assert generators.find(attention(1, 8, 1, 4096, 64, dtype="f32"), chip).name == "c_decode"
    assert generators.find(attention(1, 8, 64, 64, 64, dtype="f32"), chip).name == "c_attention"
    one = attention(1, 8, 1, 4096, 64, kv_heads=1, dtype="f32")
    config = FEW.default(one, chip.limited_to(1))
    assert config["SPLITS"] == 1 and FEW.space(one, chip).explain(config) == []
    assert FEW.default(one, replace(chip, cores=4))["SPLITS"] >= 4
    assert "few queries" in (FEW.refuses(attention(1, 1, 300, 8, 64, dtype="f32"), chip) or "")


@pytest.mark.parametrize("target", ["x86:avx2", "x86:avx512", "arm:neon", "cpu"])
def test_defaults_are_in_the_space_and_serve_other_lengths(target: str) -> None:
    chip = targets.resolve(target)
    for operator in (attention(1, 8, 1024, 1024, 64, dtype="f32"), attention(1, 1, 40, 1, 256, v_width=8)):
        config = QUERIES.default(operator, chip)
        assert QUERIES.space(operator, chip).explain(config) == []
        assert generators.find(operator, chip).name == "c_attention"
        kernel = QUERIES.emit(operator, chip, config)
        check_shape(kernel, {**operator.scalars(), "SQ": 77, "SK": 1000, "B": 3})
        with pytest.raises(BadInput, match="a width of"):
            check_shape(kernel, {**operator.scalars(), "D": operator.width + 1})


@pytest.mark.parametrize(
    ("operator", "target", "why"),
    [
        (attention(1, 1, 8, 8, 64), "cuda:sm_80", "CPUs only"),
        (softmax(4, 4), "cpu", "attention only"),
        (attention(1, 1, 8, 8, 64, dtype="f16"), "cpu", "f32 and bf16"),
        (attention(1, 1, 8, 8, 513), "cpu", "up to 512"),
    ],
)
def test_what_it_cannot_do_it_refuses_in_words(operator: Operator, target: str, why: str) -> None:
    assert why in (QUERIES.refuses(operator, targets.resolve(target)) or "")
