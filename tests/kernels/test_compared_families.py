"""Among several families of GPU matrix products, the one with the fastest default serves."""

from __future__ import annotations

from math import exp, log

import pytest

from deepgen import generators, targets
from deepgen.operators import Gemm, gemm

H200 = targets.resolve("cuda:h200")
NAMES = ("sm90_gemm", "mma_gemm", "skinny_gemm", "simt_gemm")
# Microseconds of each family's default of 2026-11-18 on an H200 with cold L2, interleaved; None: it does not serve, or
# takes far longer; of three shapes whose lines producers now copy, of 2026-11-19. Shapes were drawn by
# `benchmarks/any_shape.py`.
TIMED = (
    (gemm(4176, 80, 10584, dtype="bf16", layout="tt"), (38.8, 52.4, None, 296.7)),
    (gemm(4176, 80, 10592, dtype="f8e4m3", layout="nt"), (27.3, 56.7, None, None)),
    (gemm(288, 248, 8, batch=221, dtype="f16", layout="tn"), (16.9, 33.0, None, 17.7)),
    (gemm(16, 1320, 4440, dtype="bf16", layout="nt"), (10.0, 11.6, 12.7, 18.7)),
    (gemm(16, 1328, 4448, dtype="i8", layout="nt"), (7.9, 9.3, 9.1, 10.9)),
    (gemm(12, 1320, 4436, dtype="tf32", layout="nt"), (14.2, 14.7, 15.7, None)),
    (gemm(1960, 8, 3848, dtype="bf16", layout="tt"), (11.3, 12.2, 13.0, 13.7)),
    (gemm(8, 5440, 1216, dtype="f16", layout="nn"), (8.2, 9.9, 10.6, 13.1)),
    (gemm(12664, 1488, 104, dtype="bf16", layout="nt"), (26.6, 32.6, None, 218.4)),
    (gemm(12672, 1488, 112, dtype="i8", layout="nt"), (29.0, 54.0, None, 140.5)),
    (gemm(712, 1747, 371, dtype="tf32", layout="nt"), (16.5, 42.1, None, None)),
    (gemm(49, 2916, 3795, dtype="bf16", layout="tt"), (22.6, 96.5, 186.4, 66.0)),
    (gemm(16, 4080, 32, dtype="i8", layout="nt"), (5.7, 5.2, None, 4.4)),
    (gemm(21, 2, 412, dtype="bf16", layout="nt"), (5.5, 5.5, None, 6.0)),
    (gemm(2, 3655, 868, dtype="bf16", layout="nt"), (8.7, 8.5, None, 8.9)),
    (gemm(12994, 2, 12984, dtype="i8", layout="nt"), (58.5, 83.0, 156.0, 107.3)),
    (gemm(2, 2021, 2, dtype="bf16", layout="nt"), (5.9, 5.4, None, 4.4)),
    (gemm(2, 2021, 2, dtype="i8", layout="nt"), (6.0, 7.1, None, 4.2)),
    (gemm(16, 832, 8, dtype="bf16", layout="nt"), (4.9, 4.5, None, 4.0)),
    (gemm(16, 832, 16, dtype="f8e4m3", layout="nt"), (4.9, 4.5, None, None)),
    (gemm(1, 10813, 5, dtype="bf16", layout="tt"), (6.8, 6.5, None, 5.5)),
    (gemm(4020, 10, 8, dtype="bf16", layout="nn"), (5.8, 5.5, None, 4.6)),
    (gemm(4, 3728, 1656, layout="tt"), (None, None, 19.6, 14.2)),
    (gemm(2248, 4, 4132, layout="nn"), (None, None, 29.4, 18.7)),
    (gemm(16, 2076, 3080, batch=82, layout="nt"), (None, None, 763.8, 615.7)),
)


@pytest.mark.slow
def test_the_family_that_serves_is_nearly_the_fastest_of_those_that_were_timed() -> None:
    longer = {}
    for operator, row in TIMED:
        us = {name: time for name, time in zip(NAMES, row, strict=True) if time is not None}
        longer[operator.describe()] = us.get(generators.find(operator, H200).name, 99.0) / min(us.values())
    assert max(longer.values()) < 1.2, longer
    assert exp(sum(map(log, longer.values())) / len(longer)) < 1.04


@pytest.mark.parametrize(
    ("operator", "names"),
    [
        (gemm(11, 12343, 1, dtype="bf16", layout="nt"), {"simt_gemm"}),  # tiles of 64 x 32 took 1.8 times as long
        (gemm(1051, 1, 34, batch=83, dtype="tf32", layout="nt"), {"mma_gemm"}),  # 10.2 us; 11.2 and 12.0 by others
        (gemm(4096, 4096, 4096, dtype="bf16", layout="nt"), {"sm90_gemm"}),
        (gemm(4096, 4096, 4096, dtype="i8", layout="tn"), {"mma_gemm"}),
        (gemm(4096, 4096, 4096, layout="nt"), {"simt_gemm"}),
    ],
    ids=lambda value: value.slug() if isinstance(value, Gemm) else "",
)
def test_what_a_family_is_made_for_it_serves(operator: Gemm, names: set[str]) -> None:
    assert generators.find(operator, H200).name in names


def test_a_family_that_cannot_be_the_fastest_chooses_no_config(monkeypatch: pytest.MonkeyPatch) -> None:
    from deepgen.kernels.gemm.simt_gemm import SimtGemm

    monkeypatch.setattr(SimtGemm, "default", None)
    assert generators.find(gemm(4096, 4096, 4096, dtype="bf16", layout="nt"), H200).name == "sm90_gemm"


@pytest.mark.parametrize(
    ("m", "n", "dtype", "target"),
    [
        (1, 1, "f32", "cuda:sm_90a"),
        (8, 16, "f16", "cuda:sm_80"),
        (31, 1, "f64", "hip:gfx90a"),
        (25, 31, "tf32", "cuda:h200"),
    ],
)
def test_any_number_of_small_products_has_a_default(m: int, n: int, dtype: str, target: str) -> None:
    """Tiles need not be larger than such matrices, however many there are."""
    operator, chip = gemm(m, n, 64, batch=100000, dtype=dtype), targets.resolve(target)
    for family in generators.serving(operator, chip):
        assert family.space(operator, chip).explain(family.default(operator, chip)) == [], family.name
