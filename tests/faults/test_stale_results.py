"""Inputs change in place, like a user's: a kernel that caches by address is wrong, and never wins."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from wrong_family import DTYPES, RIGHT, STALE, WrongGemm

import deepgen as dg
from deepgen.run.measure.base import Policy
from deepgen.vocabulary import Verdict

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

QUICK = {"target": "cpu", "trials": len(RIGHT + STALE), "second_look": False, "baselines": False, "keep_top": 2}


@pytest.fixture(scope="module")
def engine() -> dg.LocalEngine:
    return dg.LocalEngine()


def tuned(dtype: str, folder: Path, engine: dg.LocalEngine, **policy: bool) -> dg.Study:
    given = Policy(max_samples=8, max_seconds=0.05, **policy)  # type: ignore[arg-type]
    family, operator = WrongGemm(*RIGHT, *STALE), dg.gemm(33, 31, 29, dtype=dtype)
    return dg.tune(operator, generator=family, policy=given, out=folder, engine=engine, **QUICK)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_keeps_results_or_packed_data_by_address_is_wrong(
    dtype: str, tmp_path: Path, engine: dg.LocalEngine
) -> None:
    study = tuned(dtype, tmp_path, engine)
    found = {t.config["FAULT"]: t.measurement for t in study.trials()}
    assert {name: found[name].verdict for name in STALE} == dict.fromkeys(STALE, Verdict.WRONG)
    assert not [found[name].detail for name in RIGHT if not found[name].ok]
    assert all(found[name].conditions["reproducible"] for name in RIGHT)
    assert study.best().trial.config["FAULT"] in RIGHT
    assert "the result for the previous inputs" in found["STALE_RESULT"].detail
    assert "overwritten in place" in found["STALE_B"].detail


def test_also_where_caches_stay_warm(tmp_path: Path, engine: dg.LocalEngine) -> None:
    study = tuned("f32", tmp_path, engine, cold=False)
    assert {t.config["FAULT"] for t in study.trials() if not t.measurement.ok} == set(STALE)


def test_a_winner_sees_what_its_user_changes_in_place(tmp_path: Path, engine: dg.LocalEngine) -> None:
    call = tuned("f32", tmp_path, engine).best().load()
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((33, 29), np.float32), rng.standard_normal((29, 31), np.float32)
    out = np.empty((33, 31), np.float32)
    for _ in range(3):
        np.testing.assert_allclose(call(a, b, out=out), a @ b, rtol=1e-4, atol=1e-4)
        a *= 2
        b -= 1
