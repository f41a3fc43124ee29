"""Kernels on warp-wide products give correct results on a CPU: wrong indexing and missing barriers show there."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import mma_emulation as emulation
import pytest
import simt_emulation as simt

from deepgen import targets
from deepgen.kernels.gemm.mma_gemm import MmaGemm
from deepgen.operators import Gemm, gemm
from deepgen.vocabulary import Source

FAMILY = MmaGemm()
CHIP = targets.resolve("cuda:sm_90a")
SMALL = {"BM": [16, 32, 64], "BN": [16, 32, 64]}
pytestmark = pytest.mark.skipif(emulation.COMPILER is None, reason=emulation.NO_COMPILER)


@pytest.mark.parametrize(
    ("dtype", "layout"),
    [("bf16", w) for w in ("nn", "nt", "tn", "tt")]
    + [("tf32", "nt"), ("tf32", "tn"), ("i8", "tt"), ("i8", "nn"), ("f16", "tn"), ("f8e4m3", "tn")],
)
def test_odd_sizes_are_right_in_every_layout_and_no_rows_meet_on_banks(dtype: str, layout: str, tmp_path: Path) -> None:
    operator = replace(gemm(37, 41, 53, dtype=dtype, layout=layout), **({"c": "f32"} if dtype[:2] == "f8" else {}))
    seed = zlib.crc32(f"{dtype} {layout}".encode())
    (config,) = FAMILY.space(operator, CHIP).restrict({**SMALL, "FIXUP": "none"}).sample(1, seed=seed)
    assert emulation.check(operator, FAMILY.emit(operator, CHIP, config), tmp_path) == 0


WAYS: dict[str, dict[str, Any]] = {
    "fragments ahead, columns interleaved": {"FRAGMENTS": 2, "WIDE": 4, "FIXUP": "none"},
    "warps share K": {"WARPS_K": [2, 4]},
    "parts of K added by a second step": {"FIXUP": "step"},
    "parts of K added by the last block": {"FIXUP": "last"},
    "stream-K": {"FIXUP": "stream"},
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_is_right_run_after_run(way: str, tmp_path: Path) -> None:
    operator = Gemm(40, 48, 264, 2, "bf16", "bf16", "f32", "f32", "nt", alpha=0.5, beta=-2.0, bias=True)
    some = FAMILY.space(operator, CHIP).restrict({**SMALL, **WAYS[way]})
    (config,) = some.sample(1, seed=zlib.crc32(way.encode()))
    emulation.check(operator, FAMILY.emit(operator, CHIP, config), tmp_path, times=2)


@pytest.mark.parametrize(
    "more",
    [
        {"a": "i8", "b": "i8", "acc": "i32", "c": "f32", "scales": "row"},
        {"a": "f8e4m3", "b": "f8e5m2", "c": "bf16", "scales": "column", "activation": "silu"},
        {"a": "f16", "b": "f16", "c": "f16", "scales": "tensor", "activation": "gelu", "bias": True},
    ],
    ids=["rows", "columns", "tensor"],
)
def test_scales_bias_and_activations(more: dict[str, Any], tmp_path: Path) -> None:
    operator = Gemm(24, 40, 64, layout="nt", **more)
    emulation.check(operator, FAMILY.emit(operator, CHIP, FAMILY.default(operator, CHIP)), tmp_path)


@pytest.mark.parametrize(
    ("file", "wrong", "instead", "says"),
    [
        ("gemm_mma.cu", "copy_wait<STAGES - 2>();", "", "before its copy has landed"),
        ("gemm_mma.cu", "copy_wait<STAGES - 2>();\n        barrier();", "copy_wait<0>();", "race"),
        ("operands.h", "return order / IN_128;", "return 0;", "banks"),
    ],
)
def test_a_mistake_in_a_kernel_is_caught(file: str, wrong: str, instead: str, says: str, tmp_path: Path) -> None:
    operator = gemm(64, 64, 192, dtype="bf16", layout="nt")
    some = FAMILY.space(operator, CHIP).restrict({"BM": 32, "BN": 32, "FIXUP": "none", "STAGES": 2, "WARPS_K": 1})
    (config,) = some.restrict({"FRAGMENTS": 1, "WM": 16}).sample(1, 3)
    kernel = FAMILY.emit(operator, CHIP, config)
    assert any(wrong in s.text for s in kernel.sources if s.name == file)
    sources = tuple(
        Source(s.name, s.text.replace(wrong, instead) if s.name == file else s.text) for s in kernel.sources
    )
    broken = replace(kernel, sources=sources)
    library = emulation.build(broken, tmp_path)
    error, found = simt.run(broken, library, operator)
    if says == "banks":
        assert error == "" and found.ok and library.conflicts() > 0
    else:
        assert says in error
