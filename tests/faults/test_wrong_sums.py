"""Kernels whose errors usual inputs do not reveal lose, and a correct kernel never does."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from wrong_sums import RIGHT, WrongSums

import deepgen as dg
from deepgen.operators import Gemm, gemm
from deepgen.run.measure.base import Policy

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

NARROW = ("SUM_OF_16_BITS", "SATURATED_PAIRS")
SINGLE = ("LOST", "DOUBLED")


def right_on(operator: Gemm, folder: Path, *faults: str) -> set[str]:
    """Tune, and return the faults of the kernels that reached the end of the finals. A correct one is among them, and
    wins.
    """
    family = WrongSums(*faults)
    study = dg.tune(
        operator,
        target="cpu",
        trials=len(family.faults),
        generator=family,
        policy=Policy(max_samples=10, max_seconds=0.02),
        baselines=False,
        out=folder / "studies",
        seed=0,
    )
    finals = study.finals()
    assert finals is not None
    found = {row.config["FAULT"] for row in finals.finalists}
    assert RIGHT in found, finals.dropped
    assert study.best().trial.config["FAULT"] in (found if len(found) > 1 else {RIGHT})
    return found - {RIGHT}


@pytest.mark.parametrize(
    "operator",
    [
        pytest.param(gemm(32, 24, 160, dtype="i8"), id="i8"),
        pytest.param(gemm(32, 24, 160, dtype="u8"), id="u8"),
        pytest.param(gemm(32, 24, 160, dtype="i8", a="u8"), id="u8 by i8"),
    ],
)
def test_sums_that_are_too_narrow_lose(operator: Gemm, tmp_path: Path) -> None:
    assert right_on(operator, tmp_path, *NARROW) == set()


@pytest.mark.parametrize("dtype", ["f16", "bf16"])  # in wider results usual inputs reveal it
def test_one_lost_or_doubled_product_loses(dtype: str, tmp_path: Path) -> None:
    assert right_on(gemm(48, 40, 300, dtype=dtype), tmp_path, *SINGLE) == set()


@pytest.mark.parametrize(("dtype", "passed"), [("f32", set()), ("f64", set()), ("bf16", {"FLUSHED"})])
def test_denormals_are_kept_where_that_is_promised(dtype: str, passed: set[str], tmp_path: Path) -> None:
    assert right_on(gemm(32, 24, 160, dtype=dtype), tmp_path, "FLUSHED") == passed
