"""The Hopper family of attention's backward pass: what it serves, that nothing spills, and that it is right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import attention_emulation as emulation
import pytest

import needs
from deepgen import generators, targets
from deepgen.kernels.attention.sm90_backward import Sm90Backward
from deepgen.operators import AttentionBackward, attention_backward
from deepgen.run.call.plans import check_shape
from deepgen.vocabulary import BadInput

FAMILY, HOPPER = Sm90Backward(), targets.resolve("cuda:sm_90a")
USUAL = attention_backward(4, 16, 4096, 4096, 128)
SHAPES = [
    USUAL,
    attention_backward(16, 16, 1024, 1024, 64, causal=True, dtype="f16"),
    attention_backward(2, 12, 300, 500, 96, kv_heads=4, layout="bshd", window=100, softcap=30.0),
    attention_backward(1, 1, 1, 1, 16),
    attention_backward(1, 2, 200, 40, 128, window=50, softcap=5.0),
]


def test_it_comes_first_on_hopper() -> None:
    assert generators.find(USUAL, HOPPER).name == "sm90_backward"
    assert "sm_90a" in (FAMILY.refuses(USUAL, targets.resolve("cuda:sm_80")) or "")


@pytest.mark.parametrize("operator", SHAPES, ids=AttentionBackward.slug)
def test_its_default_is_in_the_space_and_serves_other_lengths(operator: AttentionBackward) -> None:
    config = FAMILY.default(operator, HOPPER)
    assert not FAMILY.space(operator, HOPPER).explain(config)
    kernel = FAMILY.emit(operator, HOPPER, config)
    check_shape(kernel, replace(operator, batch=3, heads=12, kv_heads=4, queries=7, keys=1000).scalars())
    with pytest.raises(BadInput, match="of dout that lie multiples of 16 bytes apart"):
        check_shape(kernel, {**operator.scalars(), "stride_dout_1": 129})


@pytest.mark.parametrize("operator", SHAPES[:3], ids=AttentionBackward.slug)
def test_kernels_build_with_nothing_in_memory(operator: AttentionBackward) -> None:
    facts = needs.built_here(FAMILY.emit(operator, HOPPER, FAMILY.default(operator, HOPPER)), HOPPER).facts
    assert int(str(facts["spill_bytes"])) == 0


def drawn(seed: int) -> AttentionBackward:
    rng = Random(seed)
    kv_heads = rng.choice([1, 2])
    return attention_backward(
        rng.choice([1, 2]), kv_heads * rng.choice([1, 2]), *(rng.choice([1, 40, 64, 65, 130, 200]) for _ in range(2)),
        rng.choice([16, 64, 96, 128]), kv_heads=kv_heads, dtype=rng.choice(["bf16", "f16"]),
        layout=rng.choice(["bhsd", "bshd"]), causal=rng.random() < 0.5, window=rng.choice([0, 0, 1, 50]),
        softcap=rng.choice([0.0, 0.0, 5.0]), scale=rng.choice([0.0, 0.3]),
    )  # fmt: skip


SMALL: dict[str, Any] = {
    "KEYS_CONSUMERS": 1, "KEYS_WIDE": 32, "KEYS_STAGES": 2, "QUERIES_CONSUMERS": 2, "QUERIES_WIDE": 48,
    "QUERIES_STAGES": 2,
}  # fmt: skip


@pytest.mark.skipif(emulation.COMPILER is None, reason=emulation.NO_COMPILER)
@pytest.mark.parametrize(
    "overlaps",
    [("scores", "all"), *(pytest.param(n, marks=pytest.mark.slow) for n in (("all", "none"), ("none", "scores")))],
)
def test_a_small_case_is_right(overlaps: tuple[str, str], tmp_path: Path) -> None:
    operator = attention_backward(1, 2, 70, 100, 16, kv_heads=1, causal=True)
    config = {**SMALL, "KEYS_OVERLAP": overlaps[0], "QUERIES_OVERLAP": overlaps[1]}
    assert FAMILY.space(operator, HOPPER).explain(config) == []
    kernel = FAMILY.emit(operator, HOPPER, config)
    assert emulation.wrong(kernel, operator, tmp_path, "normal", "exact") == ""


@pytest.mark.slow
@pytest.mark.skipif(emulation.COMPILER is None, reason=emulation.NO_COMPILER)
@pytest.mark.parametrize("seed", range(4))
def test_drawn_cases_are_right(seed: int, tmp_path: Path) -> None:
    operator = drawn(seed)
    [config] = FAMILY.space(operator, HOPPER).sample(1, seed)
    kernel = FAMILY.emit(operator, HOPPER, config)
    assert emulation.wrong(kernel, operator, tmp_path, "normal", "exact") == "", config
