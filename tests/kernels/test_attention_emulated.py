"""Hopper's attention is correct on random small cases of every option and knob, emulated on the CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import attention_emulation as emulation
import pytest

from deepgen import targets
from deepgen.kernels.attention.sm90_attention import Sm90Attention
from deepgen.operators import Array, Attention, attention

FAMILY, HOPPER = Sm90Attention(), targets.resolve("cuda:sm_90a")
DRAWN = 4


def drawn(seed: int) -> Attention:
    rng = Random(seed)
    kv_heads = rng.choice([1, 2])
    return attention(
        rng.choice([1, 2]), kv_heads * rng.choice([1, 2]), *(rng.choice([1, 40, 64, 65, 130, 200]) for _ in range(2)),
        rng.choice([16, 64, 72, 128]), kv_heads=kv_heads, v_width=rng.choice([16, 64, 72]),
        dtype=rng.choice(["bf16", "f16"]), layout=rng.choice(["bhsd", "bshd"]), causal=rng.random() < 0.5,
        window=rng.choice([0, 0, 1, 50]), softcap=rng.choice([0.0, 0.0, 5.0]), scale=rng.choice([0.0, 0.3]),
        **{word: rng.random() < 0.4 for word in ("bias", "alibi", "sinks", "lse")},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(emulation.COMPILER is None, reason=emulation.NO_COMPILER)
@pytest.mark.parametrize("seed", range(DRAWN))
def test_drawn_cases_are_right(seed: int, tmp_path: Path) -> None:
    operator = drawn(seed)
    [config] = FAMILY.space(operator, HOPPER).sample(1, seed)
    kernel = FAMILY.emit(operator, HOPPER, config)
    assert emulation.wrong(kernel, operator, tmp_path, "normal", "exact") == "", config


@pytest.mark.slow
@pytest.mark.skipif(emulation.COMPILER is None, reason=emulation.NO_COMPILER)
@pytest.mark.parametrize("seed", [1, 2, 7])
def test_batches_may_have_fewer_keys(seed: int, tmp_path: Path) -> None:
    """What lies after them may be no number."""
    operator = replace(drawn(seed), batch=4, lengths=True)
    [config] = FAMILY.space(operator, HOPPER).sample(1, seed)
    kernel = FAMILY.emit(operator, HOPPER, config)
    assert emulation.wrong(kernel, operator, tmp_path, "normal", "exact", "large") == "", config


def drawn_eight(seed: int) -> Attention:
    one = drawn(seed)
    width, v_width = (-(-n // 16) * 16 for n in (one.width, one.v_width))
    scales, lengths = seed % 4 < 3, seed % 2 == 1
    return replace(one, width=width, v_width=v_width, dtype="f8e4m3", scales=scales, lengths=lengths)


@pytest.mark.slow
@pytest.mark.skipif(emulation.COMPILER is None, reason=emulation.NO_COMPILER)
@pytest.mark.parametrize("seed", range(4))
def test_numbers_of_8_bits(seed: int, tmp_path: Path) -> None:
    """Keys of V lie in lines of 32, 64 or 128."""
    operator = drawn_eight(seed)
    [config] = FAMILY.space(operator, HOPPER).sample(1, seed)
    kernel = FAMILY.emit(operator, HOPPER, config)
    assert emulation.wrong(kernel, operator, tmp_path, "normal", "exact", "large") == "", config


class OneHeadOfZeros(Attention):
    """Of its first head the factor of q is zero, as that of a head of zeros is."""

    def inputs(self, seed: int, probe: str = "normal") -> dict[str, Array]:
        inputs = super().inputs(seed, probe)
        inputs["q_scales"][0, 0] = 0.0
        return inputs


@pytest.mark.skipif(emulation.COMPILER is None, reason=emulation.NO_COMPILER)
def test_heads_whose_factors_are_zero_see_all_their_keys_alike(tmp_path: Path) -> None:
    operator = OneHeadOfZeros(1, 2, 2, 40, 70, 16, 16, dtype="f8e4m3", causal=True, bias=True, lse=True, scales=True)
    kernel = FAMILY.emit(operator, HOPPER, FAMILY.default(operator, HOPPER))
    assert emulation.wrong(kernel, operator, tmp_path, "normal") == ""


@pytest.mark.slow
@pytest.mark.skipif(emulation.COMPILER is None, reason=emulation.NO_COMPILER)
@pytest.mark.parametrize(
    ("dtype", "width", "queries"),
    [("bf16", 64, "shared"), ("f16", 128, "registers"), ("f8e4m3", 64, "registers"), ("f8e4m3", 160, "shared")],
)
def test_maxima_that_are_seldom_looked_for(dtype: str, width: int, queries: str, tmp_path: Path) -> None:
    """With scores that grow by more than numbers may: these are computed again."""
    operator = attention(1, 2, 100, 130, width, v_width=64, dtype=dtype, causal=width == 128)
    config = {**FAMILY.default(operator, HOPPER), "BN": 32, "STAGES": 2, "PING_PONG": False, "SELDOM": True}
    config = {name: value for name, value in config.items() if name not in ("SINGLE", "EARLY", "LAZY")}
    config |= {"QUERIES": queries}
    assert FAMILY.space(operator, HOPPER).explain(config) == []
    kernel = FAMILY.emit(operator, HOPPER, config)
    assert emulation.wrong(kernel, operator, tmp_path, "normal", "peak", "large") == ""


@pytest.mark.slow
@pytest.mark.skipif(emulation.COMPILER is None, reason=emulation.NO_COMPILER)
@pytest.mark.parametrize("early", [4])
def test_warpgroups_that_take_turns_over_many_tiles(early: int, tmp_path: Path) -> None:
    operator = attention(1, 2, 300, 260, 64, causal=True)
    config = {**FAMILY.default(operator, HOPPER), "BN": 32, "PING_PONG": True, "EARLY": early, "QUERIES": "registers"}
    kernel = FAMILY.emit(operator, HOPPER, config)
    assert emulation.wrong(kernel, operator, tmp_path, "peak", "large") == ""
