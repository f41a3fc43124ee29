"""The families of attention's backward pass: what they serve, that their kernels build, and that they are right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import mma_emulation as emulation
import numpy as np
import pytest
import simt_emulation as simt

import needs
from deepgen import generators, targets
from deepgen.kernels.attention.c_attention import CBackward
from deepgen.kernels.attention.mma_backward import MmaBackward
from deepgen.operators import AttentionBackward, Operator, attention_backward, softmax
from deepgen.operators.compare import compare
from deepgen.run.call.loaded import load
from deepgen.run.call.plans import check_shape
from deepgen.toolchains import build_once
from deepgen.vocabulary import BadInput
from deepgen.vocabulary.dtypes import dtype

FAMILY, AMPERE, HOPPER = MmaBackward(), targets.resolve("cuda:sm_80"), targets.resolve("cuda:sm_90a")
USUAL = attention_backward(4, 16, 4096, 4096, 128)
SHAPES = [
    USUAL,
    attention_backward(16, 16, 1024, 1024, 64, causal=True, dtype="f16"),
    attention_backward(2, 12, 300, 500, 96, kv_heads=4, layout="bshd", window=100, softcap=30.0),
    attention_backward(1, 1, 1, 1, 16),
]


@pytest.mark.parametrize(
    ("operator", "target", "why"),
    [
        (USUAL, "cuda:sm_75", "sm_80"),
        (softmax(4, 4), "cuda:sm_90a", "backward pass only"),
        (replace(USUAL, dtype="f32"), "cuda:sm_90a", "f16 and bf16"),
        (replace(USUAL, width=72, v_width=72), "cuda:sm_90a", "a multiple of 16"),
        (replace(USUAL, v_width=64), "cuda:sm_90a", "equally wide"),
    ],
)
def test_what_it_cannot_do_it_refuses_in_words(operator: Operator, target: str, why: str) -> None:
    assert why in (FAMILY.refuses(operator, targets.resolve(target)) or "")


@pytest.mark.parametrize("operator", SHAPES, ids=AttentionBackward.slug)
def test_what_it_ranks_is_in_the_space_and_serves_other_lengths(operator: AttentionBackward) -> None:
    for target in (HOPPER, AMPERE, targets.resolve("cuda:sm_86")):
        space, ranked = FAMILY.space(operator, target), list(FAMILY.ranked(operator, target))
        assert ranked[0] == FAMILY.default(operator, target) and all(not space.explain(one) for one in ranked)
    kernel = FAMILY.emit(operator, HOPPER, ranked[0])
    other = replace(operator, batch=3, heads=12, kv_heads=4, queries=7, keys=1000)
    check_shape(kernel, other.scalars())
    wider = replace(operator, width=operator.width + 16, v_width=operator.width + 16)
    with pytest.raises(BadInput, match=f"a width of {operator.width}"):
        check_shape(kernel, wider.scalars())
    with pytest.raises(BadInput, match="of dout that lie multiples of 16 bytes apart"):
        check_shape(kernel, {**operator.scalars(), "stride_dout_1": 129})


@pytest.mark.parametrize("operator", SHAPES[:3], ids=AttentionBackward.slug)
def test_kernels_build_with_next_to_nothing_in_memory(operator: AttentionBackward) -> None:
    facts = needs.built_here(FAMILY.emit(operator, AMPERE, FAMILY.default(operator, AMPERE)), AMPERE).facts
    assert int(str(facts["spill_bytes"])) <= 128


def drawn(seed: int) -> AttentionBackward:
    rng = Random(seed)
    kv_heads = rng.choice([1, 2])
    return attention_backward(
        rng.choice([1, 2]), kv_heads * rng.choice([1, 2]), *(rng.choice([1, 17, 40, 64, 65, 100]) for _ in range(2)),
        rng.choice([16, 64, 96]), kv_heads=kv_heads, dtype=rng.choice(["bf16", "f16"]),
        layout=rng.choice(["bhsd", "bshd"]), causal=rng.random() < 0.5, window=rng.choice([0, 0, 1, 50]),
        softcap=rng.choice([0.0, 0.0, 5.0]), scale=rng.choice([0.0, 0.3]),
    )  # fmt: skip


@pytest.mark.skipif(emulation.COMPILER is None, reason=emulation.NO_COMPILER)
@pytest.mark.parametrize("seed", range(1, 5))
def test_drawn_cases_are_right(seed: int, tmp_path: Path) -> None:
    operator = drawn(seed)
    [config] = FAMILY.space(operator, HOPPER).sample(1, seed)
    kernel = FAMILY.emit(operator, HOPPER, config)
    library = emulation.build(kernel, tmp_path)
    for probe in ("normal", "exact"):
        error, result = simt.run(kernel, library, operator, probe)
        assert error == "" and result.ok, (operator.describe(), config, result)
    assert library.conflicts() == 0


C_OPTIONS: list[dict[str, Any]] = [
    {"causal": True, "kv_heads": 1},
    {"dtype": "f32", "window": 4, "softcap": 2.0, "layout": "bshd"},
]


@pytest.mark.parametrize("options", C_OPTIONS, ids=str)
@pytest.mark.parametrize("probe", ["normal", "peak"])
def test_processors_are_served_in_c(options: dict[str, Any], probe: str) -> None:
    operator, target = attention_backward(2, 2, 13, 30, 20, **options), targets.resolve("cpu")
    family = generators.find(operator, target)
    assert family.name == CBackward.name
    kernel = family.emit(operator, target, family.default(operator, target))
    build_once(kernel, target)
    inputs = operator.inputs(2, probe)
    order = [tensor.name for tensor in operator.tensors() if tensor.role == "input"]
    results = load(kernel, operator, target)(*(inputs[name] for name in order))
    for (name, want), result in zip(operator.reference(inputs).items(), results, strict=True):
        one = compare(np.asarray(result), want, dtype(operator.dtype), operator.tolerance(name, probe))
        assert one.ok, (name, one)
