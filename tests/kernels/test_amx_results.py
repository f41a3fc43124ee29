"""Kernels on tiles compute correct results for any config, layout, sizes and CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from dot_gemm_cases import bf16, emulated, integers
from kernel_runs import Runs

import needs
from deepgen import targets
from deepgen.kernels.gemm.x86_amx_gemm import AmxGemm, AmxGemmConstant
from deepgen.operators import Gemm
from deepgen.operators.gemm import LAYOUTS
from deepgen.targets import X86

NATIVE = needs.x86()
SIZES = [(1, 1, 1), (2, 3, 5), (1, 97, 101), (61, 1, 7), (131, 67, 259)]
FAMILY, MACHINE = AmxGemm(), "x86:amx"
TARGET = targets.resolve(MACHINE)


def runs(operator: Gemm, config: Mapping[str, object], family: AmxGemm = FAMILY) -> Runs:
    assert isinstance(TARGET, X86) and isinstance(NATIVE, X86)
    kernel = family.emit(operator, TARGET, config)
    return Runs(kernel, TARGET) if NATIVE.has(*TARGET.isa) else Runs(emulated(kernel), NATIVE)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sampled_configs_are_right_on_all_sizes(layout: str) -> None:
    place = LAYOUTS.index(layout)
    operator = (bf16, integers)[place % 2](70, 131, 300, layout=layout)
    [config] = FAMILY.space(operator, TARGET).sample(1, seed=place)
    kernel = runs(operator, config)
    for m, n, k in SIZES:
        assert kernel.wrong(replace(operator, m=m, n=n, k=k)) == "", config
    assert kernel.wrong(replace(operator, batch=3)) == "", config


@pytest.mark.parametrize(
    "operator",
    [
        bf16(8, 1100, 300), bf16(64, 96, 64, batch=5), integers(70, 131, 300, "u8", layout="tn"),
        bf16(1, 1100, 300), integers(4, 1100, 300),
    ],
    ids=str,
)  # fmt: skip
def test_default_configs_are_right_on_all_sizes(operator: Gemm) -> None:
    """Sums that wait in memory; a batch, with prefetching; a transposed left operand; few rows."""
    kernel = runs(operator, FAMILY.default(operator, TARGET))
    assert kernel.wrong(operator) == ""
    for m, n, k in SIZES:
        assert kernel.wrong(replace(operator, m=m, n=n, k=k)) == ""


@pytest.mark.parametrize(
    ("signs", "swap"), [(("i8", "i8"), True), (("i8", "u8"), False), (("u8", "i8"), True), (("u8", "u8"), False)]
)
def test_every_pair_of_signs_is_right(signs: tuple[str, str], swap: bool) -> None:
    operator = integers(37, 70, 130, *signs, layout="nt")
    config = {**FAMILY.default(operator, TARGET), "SWAP": swap, "KC": 64}
    assert runs(operator, config).wrong(operator) == ""


@pytest.mark.parametrize(
    "operator",
    [
        bf16(33, 50, 64, alpha=0.5, beta=-2.0, bias=True, activation="gelu"),
        bf16(33, 50, 64, c="f32", activation="silu", scales="row", layout="tt"),
        integers(33, 50, 64, "u8", alpha=2.0, beta=3.0, bias=True, activation="relu"),
        integers(33, 50, 64, c="bf16", alpha=0.5, scales="column", activation="relu", layout="nt"),
    ],
    ids=lambda operator: operator.describe().replace(" ", "-"),
)
def test_what_follows_the_product_is_right(operator: Gemm) -> None:
    assert runs(operator, FAMILY.default(operator, TARGET)).wrong(operator) == ""


@pytest.mark.parametrize("operator", [integers(70, 131, 300), bf16(150, 7, 150, layout="tt")], ids=str)
def test_sums_of_all_columns_may_wait_for_the_next_block_of_k(operator: Gemm) -> None:
    """Several panels and blocks of either operand; and tiles of fewer than 16 rows, with C computed transposed."""
    changes = {"K_OUTSIDE": True, "KC": 64, "NC": 64, "PASSING": "left", "THREADS": 2, "PARTITION": "right", "TASKS": 1}
    kernel = runs(operator, {**FAMILY.default(operator, TARGET), **changes})
    assert kernel.wrong(operator) == ""
    for m, n, k in SIZES:
        assert kernel.wrong(replace(operator, m=m, n=n, k=k)) == ""


@pytest.mark.parametrize("partition", ["right", "both"])
def test_every_way_to_share_the_work_is_right(partition: str) -> None:
    operator = bf16(150, 131, 300)
    config = {**FAMILY.default(operator, TARGET), "THREADS": 3, "PARTITION": partition, "TASKS": 2}
    kernel = runs(operator, config)
    assert kernel.wrong(operator) == ""
    assert kernel.wrong(replace(operator, m=1, batch=4)) == ""


@pytest.mark.parametrize(
    ("operator", "changes"),
    [
        (bf16(70, 131, 600, alpha=0.5, beta=2.0, bias=True, activation="relu", layout="tt"), {"KC": 64}),
        (integers(70, 131, 600, "u8"), {"HUGE_PAGES": True}),
    ],
    ids=["turned", "huge-pages"],
)
def test_slices_of_k_are_added_up(operator: Gemm, changes: Mapping[str, object]) -> None:
    """Sums that also wait for the next block of K, with C computed transposed; and scratch that
    starts at a huge page.
    """
    config = {**FAMILY.default(operator, TARGET), "THREADS": 2, "PARTITION": "k", "TASKS": 1, **changes}
    kernel = runs(operator, config)
    assert kernel.wrong(operator) == "" and kernel.wrong(replace(operator, batch=3)) == ""
    for m, n, k in SIZES:
        assert kernel.wrong(replace(operator, m=m, n=n, k=k)) == ""


def test_parts_of_c_may_be_drawn_along_a_curve() -> None:
    operator = bf16(150, 131, 70)
    changes = {"THREADS": 3, "PARTITION": "both", "TASKS": 2, "CURVE": True}
    kernel = runs(operator, {**FAMILY.default(operator, TARGET), **changes})
    assert kernel.wrong(operator) == "" and kernel.wrong(replace(operator, m=1, batch=4)) == ""


@pytest.mark.parametrize(
    ("operator", "changes"),
    [
        (integers(8, 300, 600), {"THREADS": 2, "PARTITION": "k", "TASKS": 1}),
        (bf16(70, 131, 300, layout="tt"), {"KC": 128, "NC": 64, "HUGE_PAGES": True}),
        (bf16(64, 64, 64, batch=5, layout="nt"), {"AHEAD": "item"}),
    ],
    ids=["few-rows", "blocks", "batch"],
)
def test_a_constant_b_packed_ahead_gives_the_same(operator: Gemm, changes: Mapping[str, object]) -> None:
    family = AmxGemmConstant()
    kernel = runs(operator, {**family.default(operator, TARGET), **changes}, family)
    assert kernel.wrong(operator) == "" and kernel.wrong(replace(operator, batch=3)) == ""
    for m, n, k in SIZES:
        assert kernel.wrong(replace(operator, m=m, n=n, k=k)) == ""


def test_the_emulation_gives_the_same_as_the_instructions() -> None:
    for operator in (bf16(40, 50, 70), integers(40, 50, 70)):
        kernel = FAMILY.emit(operator, TARGET, FAMILY.default(operator, TARGET))
        assert Runs(emulated(kernel), targets.resolve("x86:avx2")).wrong(operator) == ""


@pytest.mark.parametrize("probe", bf16(8, 8, 8).probes())
def test_special_numbers_come_out_as_in_the_reference(probe: str) -> None:
    operator = bf16(29, 45, 77)
    config = FAMILY.default(operator, TARGET)
    assert runs(operator, config).wrong(operator, probe) == ""
