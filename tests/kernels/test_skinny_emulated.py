"""Kernels for thin operands give correct results on a CPU, whichever side is thin and for any memory layout."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path

import mma_emulation as emulation
import pytest

from deepgen import targets
from deepgen.kernels.gemm.skinny_gemm import SkinnyGemm
from deepgen.operators import Gemm, gemm

FAMILY = SkinnyGemm()
CHIP = targets.resolve("cuda:sm_90a")
pytestmark = pytest.mark.skipif(emulation.COMPILER is None, reason=emulation.NO_COMPILER)


# Smaller than the sizes the family serves, to save time: the kernels do not depend on it.
@pytest.mark.parametrize(
    ("dtype", "layout", "m", "n", "k"),
    [
        ("bf16", "nt", 5, 130, 520), ("bf16", "nn", 16, 128, 777), ("bf16", "tn", 150, 24, 512),
        ("f16", "nn", 150, 10, 520), ("f16", "nt", 50, 130, 264), ("i8", "nt", 96, 64, 272),
        ("tf32", "tn", 90, 8, 256), ("i8", "nt", 9, 100, 1040), ("i8", "tn", 130, 8, 515),
        ("f32", "nt", 6, 66, 260), ("f32", "nn", 70, 13, 256),
    ],
)  # fmt: skip
def test_either_side_may_be_thin(dtype: str, layout: str, m: int, n: int, k: int, tmp_path: Path) -> None:
    operator = replace(gemm(m, n, k, dtype=dtype, layout=layout), **({"c": "f32"} if dtype[:2] == "f8" else {}))
    (config,) = FAMILY.space(operator, CHIP).sample(1, seed=zlib.crc32(f"{dtype} {layout} {m}".encode()))
    emulation.check(operator, FAMILY.emit(operator, CHIP, config), tmp_path)


@pytest.mark.parametrize("splits", [1, 3])
def test_batches_scales_and_parts_of_k_run_after_run(splits: int, tmp_path: Path) -> None:
    operator = Gemm(
        7,
        80,
        1024,
        2,
        "bf16",
        "bf16",
        "bf16",
        layout="nt",
        alpha=0.5,
        beta=2.0,
        bias=True,
        scales="row",
        activation="relu",
    )
    some = FAMILY.space(operator, CHIP).restrict({"SPLITS": splits, "CHUNK": [1, 2]})
    (config,) = some.sample(1, seed=splits)
    emulation.check(operator, FAMILY.emit(operator, CHIP, config), tmp_path, times=2)
