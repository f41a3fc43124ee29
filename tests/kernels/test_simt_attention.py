"""Attention in f32 on GPUs by two products and a softmax: what it serves, and that its kernels are right on a CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import simt_emulation as simt

import needs
from deepgen import generators, targets
from deepgen.kernels.attention.simt_attention import SimtAttention
from deepgen.operators import Attention, Operator, attention, softmax
from deepgen.operators.attention import PROBES
from deepgen.run.call.plans import check_shape, workspaces
from deepgen.vocabulary import BadInput, Source

FAMILY, HOPPER, AMD = SimtAttention(), targets.resolve("cuda:h200"), targets.resolve("hip:gfx942")
WIDE = attention(32, 32, 512, 512, 1024, dtype="f32")
emulated = pytest.mark.skipif(simt.COMPILER is None, reason=simt.NO_COMPILER)


@pytest.mark.parametrize(
    ("operator", "target", "why"),
    [
        (WIDE, "cpu", "GPUs only"),
        (softmax(4, 4), "cuda:h200", "attention only"),
        (attention(1, 1, 8, 8, 64), "cuda:h200", "f32"),
        (replace(WIDE, sinks=True, lse=True), "cuda:h200", "sinks and lse"),
        (replace(WIDE, lengths=True), "cuda:h200", "lengths"),
        (replace(WIDE, queries=1 << 16, keys=1 << 15), "cuda:h200", "32-bit"),
    ],
)
def test_what_it_cannot_do_it_refuses_in_words(operator: Operator, target: str, why: str) -> None:
    assert why in (FAMILY.refuses(operator, targets.resolve(target)) or "")


@pytest.mark.parametrize("operator", [WIDE, replace(WIDE, causal=True), attention(1, 3, 7, 900, 33, dtype="f32")])
def test_it_comes_before_rules_and_its_ranked_configs_are_valid(operator: Attention) -> None:
    assert generators.find(operator, HOPPER).name == FAMILY.name
    space, ranked = FAMILY.space(operator, HOPPER), list(FAMILY.ranked(operator, HOPPER))
    assert ranked[0] == FAMILY.default(operator, HOPPER) and not any(space.explain(dict(one)) for one in ranked)
    assert len(ranked) == len({repr(one) for one in ranked})


def test_scores_that_have_no_room_come_in_rounds() -> None:
    for heads, least in ((32, 1), (33, 2), (48, 2), (200, 7)):
        operator = replace(WIDE, heads=heads, kv_heads=heads)
        kernel = FAMILY.emit(operator, HOPPER, FAMILY.default(operator, HOPPER))
        sizes = {name: size for name, (_, size) in workspaces(kernel.plan, operator.scalars()).items()}
        assert len(kernel.plan.steps) == 3 * least and sizes["scores"] <= 1 << 30
    with pytest.raises(BadInput, match="heads for each of 7 rounds"):
        check_shape(kernel, replace(operator, batch=1, heads=3, kv_heads=3).scalars())


def test_half_of_the_work_of_causal_products_is_left_out() -> None:
    causal = replace(WIDE, causal=True)
    times = [FAMILY.modelled_seconds(one, HOPPER, FAMILY.default(one, HOPPER)) or 0.0 for one in (WIDE, causal)]
    assert times[1] < 0.75 * times[0]


def drawn(seed: int) -> Attention:
    random = Random(seed)
    shared = random.choice([1, 2])
    return attention(
        random.choice([1, 2, 3]), shared * random.choice([1, 2]), random.choice([5, 33, 64, 70]),
        random.choice([1, 40, 64, 100]), random.choice([8, 20, 33]), kv_heads=shared,
        v_width=random.choice([8, 24, 33]), dtype="f32", layout=random.choice(["bhsd", "bshd"]),
        causal=random.random() < 0.5, window=random.choice([0, 0, 1, 30]), softcap=random.choice([0.0, 0.0, 5.0]),
        scale=random.choice([0.0, 0.3]), bias=random.random() < 0.3, alibi=random.random() < 0.3,
    )  # fmt: skip


@emulated
@pytest.mark.parametrize("seed", [0, 3, 5, 9, 13])
def test_drawn_cases_are_right(seed: int, tmp_path: Path) -> None:
    """With grouped heads, several rounds, queries that see no key, and all options."""
    operator, chip = drawn(seed), AMD if seed == 9 else HOPPER
    (config,) = FAMILY.space(operator, chip).sample(1, seed)
    kernel = FAMILY.emit(operator, chip, config)
    library = simt.build(kernel, tmp_path)
    assert not any(simt.wrong(kernel, library, operator, probe) for probe in PROBES), config


@emulated
def test_one_binary_serves_other_batches_and_heads(tmp_path: Path) -> None:
    first = attention(2, 4, 20, 24, 16, kv_heads=2, dtype="f32", causal=True)
    kernel = FAMILY.emit(first, HOPPER, FAMILY.default(first, HOPPER))
    other = replace(first, batch=1, heads=6, kv_heads=1)
    check_shape(kernel, other.scalars())
    assert simt.wrong(kernel, simt.build(kernel, tmp_path), other) == ""
    with pytest.raises(BadInput, match="SK = 24"):
        check_shape(kernel, replace(first, keys=25).scalars())
    with pytest.raises(BadInput, match="of k that lie multiples of 4 numbers apart"):
        check_shape(kernel, {**first.scalars(), "stride_k_2": 17})


@emulated
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("w.k = begin * BK;", "w.k = begin * BK + BK;"),
        ("if (!in_band(p, query, key))", "if (false)"),
        ("total == 0 ? 0 : 1 / total", "1 / total"),
        ("int head = p.first + matrix", "int head = matrix"),
    ],
)
def test_a_mistake_is_caught(right: str, wrong: str, tmp_path: Path) -> None:
    operator = attention(1, 2, 40, 33, 8, dtype="f32", causal=True)
    config = {**FAMILY.default(operator, HOPPER), "ROUNDS": 2}
    kernel = FAMILY.emit(operator, HOPPER, config)
    (source,) = (one for one in kernel.sources if right in one.text)
    sources = tuple(Source(one.name, one.text.replace(right, wrong)) for one in kernel.sources)
    broken = replace(kernel, sources=sources)
    assert source.name == "attention_simt.cu"
    assert simt.wrong(broken, simt.build(broken, tmp_path), operator) != ""


@pytest.mark.parametrize("target", ["cuda:h200", "hip:gfx942"])
def test_kernels_build_with_nothing_in_memory(target: str) -> None:
    operator, chip = replace(WIDE, causal=True, softcap=5.0, bias=True), targets.resolve(target)
    facts = needs.built_here(FAMILY.emit(operator, chip, FAMILY.default(operator, chip)), chip).facts
    assert int(str(facts["spill_bytes"])) == 0
