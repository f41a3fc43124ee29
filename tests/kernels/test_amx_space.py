"""The AMX family's space, launch and defaults are as reviewed, on whatever CPU the tests run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from dot_gemm_cases import bf16, integers

from deepgen import generators, targets
from deepgen.kernels.gemm.x86_amx_gemm import AmxGemm, AmxGemmConstant
from deepgen.operators import Gemm, gemm
from deepgen.targets import X86
from deepgen.vocabulary import Kernel, TensorArg

MACHINE = targets.resolve("x86:amx")
assert isinstance(MACHINE, X86)
FAMILY, CONSTANT = AmxGemm(), AmxGemmConstant()
# Defaults depend on the cores and caches of the machine that runs the tests.
TARGET = replace(MACHINE, cores=2, l1d_bytes=48 << 10, l2_bytes=2 << 20, l3_bytes=32 << 20)


def test_the_emitted_kernel_is_the_one_we_looked_at(golden: Callable[[str, str], str]) -> None:
    operator = bf16(384, 1024, 1024, bias=True, activation="gelu")
    kernel = FAMILY.emit(operator, TARGET, FAMILY.default(operator, TARGET))
    assert Kernel.from_json(kernel.to_json()) == kernel
    told = {"sources": [s.name for s in kernel.sources], "flags": kernel.flags, "plan": kernel.to_json()["plan"]}
    assert golden("x86_amx_gemm/square.json", json.dumps(told, indent=1) + "\n") == ""


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1),
        (1, 4096, 4096),
        (4096, 16, 64),
        (100, 100, 100),
        (256, 256, 8192),
        (1, 512, 8192),
        # The partial sums kept for the next block of K exceed the caches.
        (60000, 128, 4096),
        (16, 60000, 4096),
        (16000, 6500, 11000),
        (80000, 16, 60000),
    ],
    ids=str,
)
def test_every_default_is_in_the_space(shape: tuple[int, int, int], layout: str) -> None:
    for operator in (bf16(*shape, layout=layout), integers(*shape, "u8", layout=layout), bf16(*shape, batch=64)):
        for family in (FAMILY, CONSTANT):
            assert family.space(operator, TARGET).explain(dict(family.default(operator, TARGET))) == []


def test_a_constant_b_is_packed_in_a_step_of_its_own() -> None:
    operator = bf16(256, 512, 1024, layout="nt")
    kernel = CONSTANT.emit(operator, TARGET, CONSTANT.default(operator, TARGET))
    assert [step.entry for step in kernel.plan.prepare] == ["deepgen_gemm_pack"]
    assert TensorArg("B") not in kernel.plan.steps[0].args
    assert generators.find(operator, TARGET).name == FAMILY.name, "who says nothing of B may change it between runs"


def test_products_that_are_done_before_tiles_are_set_up_go_to_vectors_first() -> None:
    for dtype in ("bf16", "i8"):
        names = [family.name for family in generators.serving(gemm(64, 32, 16, dtype=dtype, layout="nt"), TARGET)]
        assert names[:2] == ["x86_vector_dot_gemm", FAMILY.name]
        assert generators.find(gemm(64, 64, 64, dtype=dtype, layout="nt"), TARGET).name == FAMILY.name


def test_few_rows_by_a_b_that_tiles_would_have_to_pack_go_to_vectors_first() -> None:
    for few in (bf16(1, 4096, 4096), integers(4, 4096, 4096, "u8"), bf16(1, 512, 512, layout="tn")):
        names = [family.name for family in generators.serving(few, TARGET)]
        assert names[:3] == ["x86_vector_dot_gemm", FAMILY.name, "rules"], "tiles serve who asks for them"
        assert CONSTANT.name in names[3:]
    for operator in (bf16(8, 4096, 4096), bf16(1, 4096, 4096, layout="nt"), integers(1, 512, 512, "u8", "u8")):
        assert generators.find(operator, TARGET).name == FAMILY.name


def test_slices_of_k_are_long_and_their_sums_near() -> None:
    def complaints(operator: Gemm) -> list[str]:
        changes = {"THREADS": 2, "PARTITION": "k", "TASKS": 1}
        return [str(x) for x in FAMILY.space(operator, TARGET).explain({**FAMILY.default(operator, TARGET), **changes})]

    assert FAMILY.default(bf16(256, 256, 8192), TARGET)["PARTITION"] == "k"
    assert complaints(bf16(256, 256, 8192)) == []
    assert any("slice of K" in words for words in complaints(bf16(512, 512, 300)))
    assert any("twice L2" in words for words in complaints(bf16(2048, 2048, 2048)))


@pytest.mark.parametrize(
    ("operator", "target", "reason"),
    [
        (gemm(64, 64, 64), "x86:amx", "bf16"),
        (bf16(64, 64, 64), "x86:avx512_bf16", "amx_tile"),
        (integers(64, 64, 64, alpha=0.5), "x86:amx", "must be integers"),
        (integers(64, 64, 64, scales="row"), "x86:amx", "floating"),
    ],
)
def test_what_it_cannot_do_is_said(operator: Gemm, target: str, reason: str) -> None:
    assert reason in (FAMILY.refuses(operator, targets.resolve(target)) or "")
