"""The family for few queries: what it serves, that its kernels build, and that they compute correct results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import mma_emulation as emulation
import pytest
import simt_emulation as simt

import needs
from deepgen import generators, targets
from deepgen.kernels import Rank, rank_of
from deepgen.kernels.attention.mma_decode import MmaDecode
from deepgen.operators import Attention, Operator, attention, softmax
from deepgen.run.call.plans import check_shape, evaluate
from deepgen.vocabulary import BadInput, WorkspaceArg

FAMILY, HOPPER, AMPERE = MmaDecode(), targets.resolve("cuda:sm_90a"), targets.resolve("cuda:sm_80")
USUAL = attention(64, 32, 1, 4096, 128, kv_heads=8)
SHAPES = [
    USUAL,
    attention(1, 32, 1, 16384, 128, kv_heads=8, layout="bshd"),
    attention(8, 32, 1, 100, 64, dtype="f16"),
    attention(2, 16, 16, 1000, 128, kv_heads=2, causal=True),
    attention(1, 1, 1, 1, 16, v_width=256),
    attention(4, 16, 2, 3000, 192, kv_heads=2, v_width=128, window=500, softcap=30.0),
]
PAGED = replace(USUAL, lengths=True, page=16)


@pytest.mark.parametrize(
    ("operator", "target", "why"),
    [
        (USUAL, "cuda:sm_75", "sm_80"),
        (softmax(4, 4), "cuda:sm_90a", "attention only"),
        (attention(1, 1, 1, 8, 64, dtype="f32"), "cuda:sm_90a", "f16 and bf16"),
        (attention(1, 1, 1, 8, 72), "cuda:sm_90a", "multiple of 16"),
        (attention(1, 8, 17, 8, 64, kv_heads=1), "cuda:sm_90a", "few queries"),
    ],
)
def test_what_it_cannot_do_it_refuses_in_words(operator: Operator, target: str, why: str) -> None:
    assert why in (FAMILY.refuses(operator, targets.resolve(target)) or "")


def test_it_comes_first_where_queries_are_few() -> None:
    for target in (HOPPER, AMPERE):
        assert generators.find(USUAL, target).name == "mma_decode"
    more = attention(1, 32, 16, 4096, 128, kv_heads=8)
    assert generators.find(more, HOPPER).name == "sm90_attention" and rank_of(FAMILY, more, HOPPER) == Rank.YIELDS


@pytest.mark.parametrize("operator", SHAPES, ids=Attention.slug)
def test_what_it_ranks_is_in_the_space_and_serves_other_lengths(operator: Attention) -> None:
    for target in (HOPPER, AMPERE):
        space, ranked = FAMILY.space(operator, target), list(FAMILY.ranked(operator, target))
        assert ranked[0] == FAMILY.default(operator, target) and all(not space.explain(one) for one in ranked)
    kernel = FAMILY.emit(operator, HOPPER, ranked[0])
    other = replace(operator, batch=3, heads=12, kv_heads=4, queries=7, keys=1000)
    check_shape(kernel, other.scalars())
    with pytest.raises(BadInput, match=f"a width of {operator.width}"):
        check_shape(kernel, replace(operator, width=operator.width + 16).scalars())
    with pytest.raises(BadInput, match="of v that lie multiples of 16 bytes apart"):
        check_shape(kernel, {**operator.scalars(), "stride_v_1": 129})


def test_more_splits_read_as_much_and_are_joined() -> None:
    one, even = ({**FAMILY.default(USUAL, HOPPER), "SPLITS": splits} for splits in (1, 0))
    for config, blocks in ((one, 512), (even, HOPPER.multiprocessors * even["MIN_BLOCKS"])):
        [step] = FAMILY.emit(USUAL, HOPPER, config).plan.steps
        assert evaluate(step.grid[0], USUAL.scalars()) == blocks
        assert sum(isinstance(arg, WorkspaceArg) for arg in step.args) == (0 if config["SPLITS"] == 1 else 2)
    long = attention(1, 8, 1, 65536, 128, kv_heads=1)
    times = [FAMILY.modelled_seconds(long, HOPPER, {**one, "SPLITS": splits}) or 0.0 for splits in (64, 8, 1)]
    assert times == sorted(times)


@pytest.mark.parametrize("operator", [SHAPES[0], SHAPES[5], attention(8, 8, 8, 999, 256), PAGED], ids=Attention.slug)
def test_kernels_build_with_next_to_nothing_in_memory(operator: Attention) -> None:
    facts = needs.built_here(FAMILY.emit(operator, AMPERE, FAMILY.default(operator, AMPERE)), AMPERE).facts
    assert int(str(facts["spill_bytes"])) <= 64


def drawn(seed: int) -> Attention:
    rng = Random(seed)
    kv_heads = rng.choice([1, 2])
    return attention(
        rng.choice([1, 2]), kv_heads * rng.choice([1, 2, 4]), rng.choice([1, 1, 2, 5, 9]),
        rng.choice([1, 40, 65, 130, 200]), rng.choice([16, 64, 80]), kv_heads=kv_heads,
        v_width=rng.choice([16, 64, 80]), dtype=rng.choice(["bf16", "f16"]), layout=rng.choice(["bhsd", "bshd"]),
        causal=rng.random() < 0.5, window=rng.choice([0, 0, 1, 50]), softcap=rng.choice([0.0, 0.0, 5.0]),
        scale=rng.choice([0.0, 0.3]),
        **{word: rng.random() < 0.4 for word in ("bias", "alibi", "sinks", "lse")},
    )  # fmt: skip


@pytest.mark.skipif(emulation.COMPILER is None, reason=emulation.NO_COMPILER)
@pytest.mark.parametrize(("seed", "multiprocessors"), [(0, 132), (6, 132), (5, 3), (12, 1)])
def test_drawn_cases_are_right(seed: int, multiprocessors: int, tmp_path: Path) -> None:
    """With so few multiprocessors that blocks have some heads whole and others in part."""
    judge(drawn(seed), seed, multiprocessors, tmp_path)


@pytest.mark.skipif(emulation.COMPILER is None, reason=emulation.NO_COMPILER)
@pytest.mark.parametrize(("seed", "multiprocessors", "page", "pool"), [(0, 3, 0, 0), (3, 132, 32, 3), (7, 1, 16, 0)])
def test_lengths_and_pages_are_right(seed: int, multiprocessors: int, page: int, pool: int, tmp_path: Path) -> None:
    """Of four batches one has no keys; with few pages they share them."""
    operator = replace(drawn(seed), batch=4, lengths=True, page=page, pool=pool)
    judge(operator, seed, multiprocessors, tmp_path)


def judge(operator: Attention, seed: int, multiprocessors: int, tmp_path: Path) -> None:
    chip = replace(HOPPER, multiprocessors=multiprocessors)
    some = FAMILY.space(operator, chip).restrict({} if multiprocessors > 3 else {"SPLITS": 0, "MIN_BLOCKS": [1, 2]})
    [config] = some.sample(1, seed)
    kernel = FAMILY.emit(operator, chip, config)
    library = emulation.build(kernel, tmp_path)
    for probe in ("normal", "exact"):
        error, result = simt.run(kernel, library, operator, probe, times=2)
        assert error == "" and result.ok, (config, result)
    assert library.conflicts() == 0
