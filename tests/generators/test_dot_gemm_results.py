"""bf16 and 8-bit kernels give the right numbers, whatever the config, the layout, the sizes and the processor."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dot_gemm_cases import bf16, emulated, integers
from gemm_runs import Runs

from deepgen import targets
from deepgen.generators.templates.x86_dot.dot_gemm import DotGemm, amx_gemm, vector_gemm
from deepgen.operators import Gemm
from deepgen.operators.gemm import LAYOUTS
from deepgen.targets import X86

NATIVE = targets.resolve("x86:native")
SIZES = [(1, 1, 1), (2, 3, 5), (1, 97, 101), (61, 1, 7), (131, 67, 259)]
FAMILIES = [
    pytest.param(amx_gemm(), "x86:amx", id="tiles"),
    pytest.param(vector_gemm(), "x86:avx512_bf16", id="vectors"),
]


def runs(family: DotGemm, operator: Gemm, machine: str, config: dict[str, object]) -> Runs:
    target = targets.resolve(machine)
    assert isinstance(target, X86) and isinstance(NATIVE, X86)
    kernel = family.emit(operator, target, config)
    return Runs(kernel, target) if NATIVE.has(*target.isa) else Runs(emulated(kernel), NATIVE)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("family", "machine"), FAMILIES)
def test_sampled_configs_are_right_on_all_sizes(family: DotGemm, machine: str, layout: str) -> None:
    target = targets.resolve(machine)
    for seed, operator in enumerate([bf16(70, 131, 300, layout=layout), integers(70, 131, 300, "u8", layout=layout)]):
        [config] = family.space(operator, target).sample(1, seed=seed + LAYOUTS.index(layout))
        kernel = runs(family, operator, machine, config)
        for m, n, k in SIZES:
            assert kernel.wrong(replace(operator, m=m, n=n, k=k)) == "", config
        assert kernel.wrong(replace(operator, batch=3)) == "", config


@pytest.mark.parametrize(("family", "machine"), FAMILIES)
@pytest.mark.parametrize("signs", [("i8", "i8"), ("i8", "u8"), ("u8", "u8")])
def test_every_pair_of_signs_is_right(family: DotGemm, machine: str, signs: tuple[str, str]) -> None:
    operator = integers(37, 70, 130, *signs, layout="nt")
    target = targets.resolve(machine)
    if (reason := family.refuses(operator, target)) is not None:
        assert "unsigned by signed" in reason
        return
    for swap in (False, True):
        config = {**family.default(operator, target), "SWAP": swap, "KC": 128}
        assert runs(family, operator, machine, config).wrong(operator) == ""


@pytest.mark.parametrize(("family", "machine"), FAMILIES)
@pytest.mark.parametrize(
    "operator",
    [
        bf16(33, 50, 64, alpha=0.5, beta=-2.0, bias=True, activation="gelu"),
        bf16(33, 50, 64, c="f32", activation="silu", scales="row"),
        integers(33, 50, 64, "u8", alpha=2.0, beta=3.0, bias=True, activation="relu"),
        integers(33, 50, 64, c="f32", alpha=0.5, scales="column"),
        integers(33, 50, 64, c="bf16", alpha=0.5, scales="tensor", activation="relu", layout="nt"),
    ],
    ids=lambda operator: operator.describe().replace(" ", "-"),
)
def test_what_follows_the_product_is_right(family: DotGemm, machine: str, operator: Gemm) -> None:
    config = dict(family.default(operator, targets.resolve(machine)))
    assert runs(family, operator, machine, config).wrong(operator) == ""


@pytest.mark.parametrize(("family", "machine"), FAMILIES)
@pytest.mark.parametrize("partition", ["left", "right", "both"])
def test_every_way_to_share_the_work_is_right(family: DotGemm, machine: str, partition: str) -> None:
    operator = bf16(150, 131, 300)
    config = {**family.default(operator, targets.resolve(machine)), "THREADS": 3, "PARTITION": partition, "TASKS": 2}
    kernel = runs(family, operator, machine, config)
    assert kernel.wrong(operator) == ""
    assert kernel.wrong(replace(operator, m=1, batch=4)) == ""


@pytest.mark.parametrize(("family", "machine"), FAMILIES)
def test_the_emulation_gives_the_same_as_the_instructions(family: DotGemm, machine: str) -> None:
    for operator in (bf16(40, 50, 70), integers(40, 50, 70)):
        kernel = family.emit(operator, targets.resolve(machine), family.default(operator, targets.resolve(machine)))
        assert Runs(emulated(kernel), targets.resolve("x86:avx2")).wrong(operator) == ""


@pytest.mark.parametrize("probe", bf16(8, 8, 8).probes())
def test_special_numbers_come_out_as_in_the_reference(probe: str) -> None:
    operator = bf16(29, 45, 77)
    config = dict(amx_gemm().default(operator, targets.resolve("x86:amx")))
    assert runs(amx_gemm(), operator, "x86:amx", config).wrong(operator, probe) == ""


def test_vectors_of_avx2_multiply_integers_too() -> None:
    operator, target = integers(30, 40, 200), targets.resolve("x86:avx2_vnni")
    config = dict(vector_gemm().default(operator, target))
    assert runs(vector_gemm(), operator, "x86:avx2_vnni", config).wrong(operator) == ""
