"""Attention on AMX tiles: right on drawn small cases of every option, by emulated tiles where there are none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from dot_gemm_cases import emulated
from kernel_runs import Runs, inside_larger

import needs
from deepgen import generators, targets
from deepgen.kernels.attention.x86_amx_attention import X86AmxAttention
from deepgen.operators import Attention, Operator, attention, softmax
from deepgen.operators.compare import compare
from deepgen.run.call.loaded import load
from deepgen.run.call.plans import check_shape
from deepgen.targets import X86
from deepgen.vocabulary import BadInput
from deepgen.vocabulary.dtypes import narrow

NATIVE = needs.x86()
FAMILY, MACHINE = X86AmxAttention(), targets.resolve("x86:amx")
assert isinstance(MACHINE, X86)
TARGET = replace(MACHINE, cores=2, l1d_bytes=48 << 10, l2_bytes=2 << 20, l3_bytes=32 << 20)
ORDERS = (("tile", True), ("head", True), ("ahead", False))


def drawn(seed: int) -> Attention:
    """Each option in some case: those that add a tensor in turn."""
    rng = Random(seed)
    kv_heads = rng.choice([1, 2])
    return attention(
        rng.choice([1, 2]), kv_heads * rng.choice([1, 2]), *(rng.choice([5, 40, 64, 100]) for _ in range(2)),
        rng.choice([16, 33, 64, 80]), kv_heads=kv_heads, v_width=rng.choice([16, 7, 64, 100]),
        layout=rng.choice(["bhsd", "bshd"]), causal=seed % 2 == 0, window=(0, 0, 50)[seed % 3],
        softcap=5.0 * (seed % 4 == 1), scale=rng.choice([0.0, 0.3]), bias=seed % 3 == 0, alibi=seed % 3 == 1,
        sinks=seed % 4 == 2, lse=seed % 5 < 3,
    )  # fmt: skip


def runs(operator: Attention, config: Mapping[str, Any]) -> Runs:
    kernel = FAMILY.emit(operator, TARGET, config)
    return Runs(kernel, TARGET) if NATIVE.has(*TARGET.isa) else Runs(emulated(kernel), NATIVE)


@pytest.mark.parametrize("seed", range(4))
def test_drawn_cases_are_right(seed: int) -> None:
    """On every probe, and on other lengths: a few queries, several tiles of several heads, parts of blocks."""
    operator, (pack, overlap) = drawn(seed), ORDERS[seed % 3]
    config = {"PARTS": 1 + seed % 2, "KEYS": 64, "PACK": pack, "OVERLAP": overlap, "THREADS": 1 + seed % 3}
    kernel = runs(operator, config)
    for probe in operator.probes():
        assert kernel.wrong(operator, probe) == "", config
    for batch, queries, keys in ((1, 1, 150), (5, 40, 33), (1, 35, 1)):
        assert kernel.wrong(replace(operator, batch=batch, queries=queries, keys=keys)) == "", config


@pytest.mark.parametrize("pack", ["tile", "head"])
def test_caches_may_be_longer_than_what_they_hold(pack: str) -> None:
    operator = attention(2, 4, 20, 40, 32, kv_heads=2)
    config = {"PARTS": 1, "KEYS": 64, "PACK": pack, "OVERLAP": True, "THREADS": 1}
    kernel, here = FAMILY.emit(operator, TARGET, config), TARGET
    if not NATIVE.has(*TARGET.isa):
        kernel, here = emulated(kernel), NATIVE
    inputs = operator.inputs(3, "normal")
    found = compare(
        np.asarray(load(kernel, operator, here)(*map(inside_larger, inputs.values()))),
        operator.reference(inputs)["o"], operator.tensors()[-1].dtype, operator.tolerance(),
    )  # fmt: skip
    assert found.ok, found


class OneLarge(Attention):
    """One key of the second block has a weight of about 2^10 times that of each other."""

    def inputs(self, seed: int, probe: str = "normal") -> dict[str, Any]:
        arrays, shape = super().inputs(seed, probe), (self.batch, self.kv_heads, self.keys, self.width)
        keys = np.zeros(shape, np.float32)
        keys[:, :, 100] = 1.25
        ones = np.ones((self.batch, self.heads, self.queries, self.width), np.float32)
        return {**arrays, "q": narrow(ones, self.format), "k": narrow(keys, self.format)}


def test_sums_are_scaled_once_where_a_later_block_has_the_largest_score() -> None:
    """With one part, so that sums are added to beside the weights that scale them."""
    operator = OneLarge(1, 2, 1, 20, 200, 32, 32)
    config = {"PARTS": 1, "KEYS": 64, "PACK": "tile", "OVERLAP": True, "THREADS": 1}
    assert runs(operator, config).wrong(operator) == ""


def test_the_default_builds_with_the_instructions_it_is_made_for() -> None:
    operator = attention(1, 16, 1024, 1024, 64)
    needs.built_here(FAMILY.emit(operator, TARGET, FAMILY.default(operator, TARGET)), TARGET)


def test_defaults_are_in_the_space_and_serve_other_lengths() -> None:
    small = replace(TARGET, l2_bytes=256 << 10)
    for operator, cpu in (
        (attention(1, 16, 1024, 1024, 64), TARGET), (attention(1, 8, 1024, 1024, 128, causal=True), small),
        (attention(2, 12, 197, 197, 64), replace(TARGET, cores=1)), (attention(1, 1, 40, 1, 256, v_width=8), small),
        (attention(1, 32, 1, 4096, 128, kv_heads=8), replace(TARGET, cores=8)),
    ):  # fmt: skip
        config = FAMILY.default(operator, cpu)
        assert FAMILY.space(operator, cpu).explain(config) == []
        kernel = FAMILY.emit(operator, cpu, config)
        check_shape(kernel, {**operator.scalars(), "SQ": 77, "SK": 1000, "B": 3})
        with pytest.raises(BadInput, match="a width of"):
            check_shape(kernel, {**operator.scalars(), "D": operator.width + 1})


def test_a_thread_packs_a_head_once_where_heads_are_enough() -> None:
    assert FAMILY.default(attention(1, 16, 1024, 1024, 64), TARGET)["PACK"] == "head"
    assert FAMILY.default(attention(1, 1, 2048, 4096, 64), replace(TARGET, cores=32))["PACK"] == "ahead"
    assert FAMILY.default(attention(1, 1, 30, 4096, 64), replace(TARGET, cores=1))["PACK"] != "ahead"


def test_it_comes_before_vectors_but_for_few_queries() -> None:
    def names(operator: Attention) -> list[str]:
        return [family.name for family in generators.serving(operator, TARGET)]

    assert names(attention(1, 8, 64, 64, 64))[:2] == [FAMILY.name, "c_attention"]
    assert names(attention(1, 8, 1, 4096, 64))[:2] == ["c_decode", FAMILY.name]
    assert names(attention(1, 32, 1, 4096, 64, kv_heads=4))[0] == names(attention(1, 1, 10, 651, 64))[0] == FAMILY.name
    assert FAMILY.name not in names(attention(1, 8, 64, 64, 64, dtype="f32"))


@pytest.mark.parametrize(
    ("operator", "target", "why"),
    [
        (attention(1, 1, 8, 8, 64), "arm:neon", "x86 targets only"),
        (softmax(4, 4), "x86:amx", "attention only"),
        (attention(1, 1, 8, 8, 64, dtype="f32"), "x86:amx", "bf16 only"),
        (attention(1, 1, 8, 8, 257), "x86:amx", "up to 256"),
        (attention(2, 1, 8, 8, 64, lengths=True), "x86:amx", "not lengths"),
        (attention(1, 1, 8, 8, 64), "x86:avx512_bf16", "amx_tile"),
    ],
)
def test_what_it_cannot_do_it_refuses_in_words(operator: Operator, target: str, why: str) -> None:
    assert why in (FAMILY.refuses(operator, targets.resolve(target)) or "")
