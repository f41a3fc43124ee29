"""Kernels with vector dot products compute correct results for any config, layout and CPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from dot_gemm_cases import bf16, integers
from kernel_runs import Runs

import needs
from deepgen import targets
from deepgen.kernels.gemm.x86_dot import DotGemm
from deepgen.operators import Gemm, gemm
from deepgen.operators.gemm import LAYOUTS
from deepgen.targets import X86
from deepgen.vocabulary import Kernel

NATIVE = needs.x86()
BF16 = targets.resolve("x86:avx512_bf16")
assert isinstance(BF16, X86)
TARGET = replace(BF16, isa=(*BF16.isa, "avx512_fp16"))
FAMILY = DotGemm()
MACHINES = [replace(TARGET, cores=cores, l2_bytes=size << 10) for cores in (2, 16) for size in (256, 1024, 2048)]
SIZES = [(1, 1, 1), (2, 3, 5), (1, 97, 101), (61, 1, 7), (131, 67, 259)]


def f16(m: int, n: int, k: int, **other: object) -> Gemm:
    return gemm(m, n, k, dtype="f16", **other)


def emulated(kernel: Kernel) -> Kernel:
    """The same source with its dot products in plain C, which is slow to compile with optimisation."""
    return replace(kernel, flags=(*kernel.flags, "-DEMULATE", "-O1"))


def runs(operator: Gemm, config: Mapping[str, object], target: X86 = TARGET) -> Runs:
    kernel = FAMILY.emit(operator, target, config)
    return Runs(kernel, target) if NATIVE.has(*target.isa) else Runs(emulated(kernel), NATIVE)


@pytest.mark.parametrize(
    ("seed", "of", "layout"), [(0, integers, "nn"), (1, f16, "nt"), (2, bf16, "tn"), (3, f16, "tt")]
)
def test_sampled_configs_are_right_on_all_sizes(seed: int, of: Callable[..., Gemm], layout: str) -> None:
    operator = of(70, 131, 300, layout=layout)
    [config] = FAMILY.space(operator, TARGET).sample(1, seed=seed)
    kernel = runs(operator, config)
    for m, n, k in SIZES:
        assert kernel.wrong(replace(operator, m=m, n=n, k=k)) == "", config
    assert kernel.wrong(replace(operator, batch=3)) == "", config


@pytest.mark.parametrize(
    ("signs", "swap"), [(("i8", "i8"), False), (("i8", "i8"), True), (("u8", "i8"), False), (("i8", "u8"), False)]
)
def test_every_pair_of_signs_is_right(signs: tuple[str, str], swap: bool) -> None:
    operator = integers(*((13, 150, 230) if swap else (37, 70, 130)), *signs, layout="nt")
    config = {**FAMILY.default(operator, TARGET), "KC": 128}
    assert config["SWAP"] == swap, "a B that is much larger, also than C, is the left operand"
    assert not FAMILY.default(replace(operator, k=64), TARGET)["SWAP"]
    assert runs(operator, config).wrong(operator) == ""


@pytest.mark.parametrize(
    "operator",
    [
        bf16(33, 50, 64, alpha=0.5, beta=-2.0, bias=True, activation="gelu"),
        bf16(33, 50, 64, c="f32", activation="silu", scales="row"),
        f16(33, 50, 64, alpha=0.5, beta=-2.0, bias=True, activation="relu"),
        f16(33, 50, 64, c="f32", scales="row", layout="nt"),
        integers(33, 50, 64, "u8", alpha=2.0, beta=3.0, bias=True, activation="relu"),
        integers(33, 50, 64, c="f32", alpha=0.5, scales="column"),
        integers(33, 50, 64, c="bf16", alpha=0.5, scales="tensor", activation="relu", layout="nt"),
    ],
    ids=lambda operator: operator.describe().replace(" ", "-"),
)
def test_what_follows_the_product_is_right(operator: Gemm) -> None:
    assert runs(operator, FAMILY.default(operator, TARGET)).wrong(operator) == ""


@pytest.mark.parametrize(
    ("of", "layout", "kind"),
    [
        (bf16, "nt", "rows"),
        (f16, "nt", "rows"),
        (integers, "nt", "rows"),
        (f16, "nn", "direct"),
        (integers, "nn", "direct"),
        (bf16, "tn", "direct"),
    ],
)
def test_few_rows_without_packing_are_right(of: Callable[..., Gemm], layout: str, kind: str) -> None:
    operator = of(8, 70, 300, layout=layout)
    assert FAMILY.default(operator, TARGET)["KIND"] == kind
    if of is integers and kind == "rows":  # which add the lanes of each sum in the end
        assert FAMILY.default(replace(operator, k=200), TARGET)["KIND"] == "panels"
    kernel = runs(operator, FAMILY.default(operator, TARGET))
    for m, n, k in ((8, 70, 300), *SIZES, (300, 20, 33)):  # also more rows than a block has
        assert kernel.wrong(replace(operator, m=m, n=n, k=k)) == ""
    epilogue = replace(operator, m=3, alpha=2.0, beta=3.0, bias=True, activation="relu")
    assert runs(epilogue, FAMILY.default(epilogue, TARGET)).wrong(epilogue) == ""


@pytest.mark.parametrize("partition", ["left", "right", "both"])
def test_every_way_to_share_the_work_is_right(partition: str) -> None:
    operator = integers(150, 331, 300)
    config = {**FAMILY.default(operator, TARGET), "THREADS": 3, "PARTITION": partition, "TASKS": 2}
    kernel = runs(operator, config)
    assert kernel.wrong(operator) == ""
    assert kernel.wrong(replace(operator, m=1, batch=4)) == ""


def test_the_emulation_gives_the_same_as_the_instructions() -> None:
    for operator in (bf16(40, 50, 70), integers(40, 50, 70), f16(40, 50, 70, layout="nt"), integers(4, 50, 70)):
        # A small tile, for the same reason as -O1.
        config = {**FAMILY.default(operator, TARGET), "WIDEN": operator.a == "f16", "MR": 1, "NR": 2}
        kernel = FAMILY.emit(operator, TARGET, config)
        assert Runs(emulated(kernel), targets.resolve("x86:avx2")).wrong(operator) == ""


@pytest.mark.parametrize("probe", f16(8, 8, 8).probes())
def test_special_numbers_come_out_as_in_the_reference(probe: str) -> None:
    for operator in (f16(29, 45, 77), bf16(29, 45, 77)):
        assert runs(operator, FAMILY.default(operator, TARGET)).wrong(operator, probe) == ""


def test_vectors_of_avx2_multiply_integers_too() -> None:
    operator, target = integers(30, 40, 200), targets.resolve("x86:avx2_vnni")
    assert isinstance(target, X86)
    assert runs(operator, FAMILY.default(operator, target), target).wrong(operator) == ""


def test_defaults_lie_in_the_space() -> None:
    for of in (bf16, f16, integers):
        for m, n, k in (
            (1, 1, 1),
            (1, 4096, 4096),
            (4, 15, 4096),
            (32, 1024, 4096),
            (100, 4096, 60000),
            (2048, 2048, 2048),
            (180000, 15, 1),
        ):
            for layout in LAYOUTS:
                operator = of(m, n, k, layout=layout)
                for target in MACHINES:
                    assert FAMILY.space(operator, target).explain(FAMILY.default(operator, target)) == []


def test_the_emitted_kernel_is_the_one_we_looked_at(golden: Callable[[str, str], str]) -> None:
    machine = replace(TARGET, cores=2, l1d_bytes=48 << 10, l2_bytes=2 << 20, l3_bytes=32 << 20)
    operator = integers(384, 1024, 1024)
    kernel = FAMILY.emit(operator, machine, FAMILY.default(operator, machine))
    told = {"sources": [s.name for s in kernel.sources], "flags": kernel.flags, "plan": kernel.to_json()["plan"]}
    assert golden("x86_dot/square.json", json.dumps(told, indent=1) + "\n") == ""


def test_what_a_processor_lacks_is_said() -> None:
    assert "avx512_fp16" in str(FAMILY.refuses(f16(8, 8, 8), BF16))
    assert "avx512_vnni" in str(FAMILY.refuses(integers(8, 8, 8), targets.resolve("x86:avx2")))
    assert "unsigned by signed" in str(FAMILY.refuses(integers(8, 8, 8, "u8", "u8"), TARGET))
    assert "f16" in str(FAMILY.refuses(bf16(8, 8, 8, c="f16"), TARGET))
