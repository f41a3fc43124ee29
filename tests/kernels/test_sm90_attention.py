"""What the Hopper family of attention offers, and that its kernels build without spilling registers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import needs
from deepgen import generators, targets
from deepgen.kernels.attention.sm90_attention import REGISTERS, Sm90Attention
from deepgen.operators import Attention, Operator, attention, softmax
from deepgen.run.call.plans import check_shape, evaluate
from deepgen.vocabulary import BadInput, DescriptorArg, WorkspaceArg

FAMILY, HOPPER = Sm90Attention(), targets.resolve("cuda:sm_90a")
LONG = attention(4, 16, 4096, 4096, 128)
SHAPES = [
    LONG,
    attention(1, 32, 16384, 16384, 128, kv_heads=8, causal=True),
    attention(16, 16, 1024, 1024, 64, dtype="f16", layout="bshd"),
    attention(8, 32, 197, 197, 64),
    attention(2, 4, 1, 300, 80, causal=True),
    attention(1, 1, 5, 3, 8, v_width=256),
    attention(1, 8, 2048, 2048, 192, v_width=128, causal=True),
    attention(1, 8, 500, 700, 256, causal=True, window=100, softcap=30.0),
    attention(4, 16, 4096, 4096, 128, dtype="f8e4m3", scales=True),
    attention(2, 8, 1000, 1000, 64, dtype="f8e4m3", causal=True, layout="bshd"),
]


@pytest.mark.parametrize(
    ("operator", "target", "why"),
    [
        (LONG, "cuda:sm_80", "sm_90a"),
        (softmax(4, 4), "cuda:sm_90a", "attention only"),
        (attention(1, 1, 8, 8, 64, dtype="f32"), "cuda:sm_90a", "f16, bf16 and f8e4m3"),
        (attention(1, 1, 8, 8, 72, dtype="f8e4m3"), "cuda:sm_90a", "multiple of 16"),
        (attention(1, 1, 8, 8, 60), "cuda:sm_90a", "multiple of 8"),
        (attention(1, 1, 8, 8, 512), "cuda:sm_90a", "up to 256"),
    ],
)
def test_what_it_cannot_do_it_refuses_in_words(operator: Operator, target: str, why: str) -> None:
    assert why in (FAMILY.refuses(operator, targets.resolve(target)) or "")


def test_it_comes_before_rules_which_serve_the_rest() -> None:
    assert generators.find(LONG, HOPPER).name == "sm90_attention"
    assert generators.find(LONG, targets.resolve("cuda:sm_80")).name == "rules"


@pytest.mark.parametrize("operator", SHAPES, ids=Attention.slug)
def test_defaults_are_in_the_space_and_serve_other_lengths(operator: Attention) -> None:
    config = FAMILY.default(operator, HOPPER)
    assert FAMILY.space(operator, HOPPER).explain(config) == []
    kernel = FAMILY.emit(operator, HOPPER, config)
    other = attention(
        3, 12, 77, 1000, operator.width, kv_heads=4, v_width=operator.v_width, dtype=operator.dtype,
        layout=operator.layout, causal=operator.causal, window=operator.window, softcap=operator.softcap,
        scales=operator.scales,
    )  # fmt: skip
    if config.get("SINGLE"):
        with pytest.raises(BadInput, match="they are one tile"):
            check_shape(kernel, other.scalars())
    else:
        check_shape(kernel, other.scalars())
    wider = attention(
        1, 1, 8, 8, operator.width + 8, v_width=operator.v_width, scales=operator.scales, dtype=operator.dtype
    )
    with pytest.raises(BadInput, match=f"a width of {operator.width}"):
        check_shape(kernel, wider.scalars())


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_maps_follow_the_strides_of_a_call(layout: str) -> None:
    operator = attention(2, 6, 100, 50, 64, kv_heads=3, layout=layout, causal=True)
    kernel = FAMILY.emit(operator, HOPPER, FAMILY.default(operator, HOPPER))
    [step] = kernel.plan.steps
    maps = {arg.tensor: arg.spec for arg in step.args if isinstance(arg, DescriptorArg)}
    scalars = operator.scalars()
    [sizes, strides] = ([evaluate(n, scalars) for n in each or ()] for each in (maps["k"].sizes, maps["k"].strides))
    assert sizes == [64, 50, 3, 2]
    assert strides == ([128, 6400, 19200] if layout == "bhsd" else [384, 128, 19200])
    odd = {**scalars, "stride_k_1": 3201}
    with pytest.raises(BadInput, match="of k that lie multiples of 16 bytes apart"):
        check_shape(kernel, odd)


def test_emitted_kernels_stay_as_they_are(golden: Callable[[str, str], str]) -> None:
    kernel = FAMILY.emit(SHAPES[1], HOPPER, FAMILY.default(SHAPES[1], HOPPER))
    kept = {"flags": kernel.flags, "plan": kernel.plan.to_json()}
    assert golden("sm90_attention/long.json", json.dumps(kept, indent=1) + "\n") == ""
    assert golden("sm90_attention/products.h", next(s.text for s in kernel.sources if s.name == "products.h")) == ""


@pytest.mark.parametrize(("consumers", "blocks"), REGISTERS)
def test_a_block_hands_over_no_more_registers_than_it_has(consumers: int, blocks: int) -> None:
    """A warpgroup that asks for more registers waits for them forever."""
    own, fetching, begins = REGISTERS[consumers, blocks]
    assert own * consumers + fetching <= begins * (consumers + 1)
    assert begins * (consumers + 1) * 128 * blocks <= HOPPER.registers_per_sm


def test_v_of_8_bits_is_transposed_by_a_launch_of_its_own() -> None:
    """Into tiles of its keys, each as long as what one copy takes."""
    operator = attention(2, 4, 100, 300, 80, kv_heads=2, v_width=48, dtype="f8e4m3")
    for bn in (32, 96, 160, 256):
        config = {**FAMILY.default(operator, HOPPER), "BN": bn, "STAGES": 2}
        kernel = FAMILY.emit(operator, HOPPER, config)
        transposing, product = kernel.plan.steps
        assert (transposing.entry, product.entry, product.overlaps) == ("values", "attention", True)
        [space] = [arg for arg in transposing.args if isinstance(arg, WorkspaceArg)]
        tiles = -(-300 // bn)
        assert evaluate(space.bytes, operator.scalars()) == 2 * 2 * tiles * bn * 48
        assert evaluate(transposing.grid[0], operator.scalars()) == 2 * 2 * tiles
        assert space in product.args


def test_a_counter_is_kept_where_blocks_draw_tiles() -> None:
    for dynamic in (False, True):
        config = {**FAMILY.default(LONG, HOPPER), "DYNAMIC": dynamic}
        [step] = FAMILY.emit(LONG, HOPPER, config).plan.steps
        counters = [arg for arg in step.args if isinstance(arg, WorkspaceArg)]
        assert [(arg.zeroed, arg.lasting) for arg in counters] == [(True, True)] * dynamic


CONFIGS: list[tuple[Attention, dict[str, Any]]] = [
    (LONG, {}),
    (LONG, {"BN": 176, "STAGES": 2, "QUERIES": "shared", "PING_PONG": True, "EARLY": 2, "SELDOM": False, "LAZY": True}),
    (LONG, {"POLYNOMIALS": 4, "SELDOM": False, "LAZY": True}),
    (SHAPES[3], {"BN": 208, "STAGES": 2, "SINGLE": True}),
    (SHAPES[1], {"LAZY": False, "OVERLAP": False, "QUERIES": "shared", "PING_PONG": False}),
    (SHAPES[2], {}),
    (SHAPES[5], {}),
    (SHAPES[7], {}),
    (attention(4, 16, 4096, 4096, 128, bias=True, alibi=True, sinks=True, lse=True), {}),
    (attention(4, 16, 4096, 4096, 128, causal=True, lengths=True), {}),
    (attention(16, 16, 1024, 1024, 64, lengths=True), {}),
    (SHAPES[8], {}),
    (SHAPES[8], {"CONSUMERS": 2, "BN": 192, "STAGES": 2, "QUERIES": "registers", "SELDOM": False, "LAZY": True}),
    (SHAPES[9], {}),
]


@pytest.mark.parametrize(("operator", "change"), CONFIGS, ids=lambda value: str(value)[:40])
def test_kernels_build_with_next_to_nothing_in_memory(operator: Attention, change: dict[str, Any]) -> None:
    config = {**FAMILY.default(operator, HOPPER), **change}
    if change.get("SINGLE") or change.get("OVERLAP") is False:
        config = {name: value for name, value in config.items() if name not in ("SELDOM", "EARLY")} | {"LAZY": True}
        config |= change
    if config.get("PING_PONG"):
        config.setdefault("EARLY", 0)
    assert FAMILY.space(operator, HOPPER).explain(config) == []
    facts = needs.built_here(FAMILY.emit(operator, HOPPER, config), HOPPER).facts
    # The thread that fetches has few registers. Scores that are computed again are off the usual path.
    most = 600 if config.get("SELDOM") else 80 if operator.format.bits == 8 else 16
    assert int(str(facts["spill_bytes"])) <= most
