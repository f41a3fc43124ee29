"""Baselines passed as objects: raced like any other, found again by the command line, refused in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import preloaded
import pytest
from own_baseline import COPYING, Einsum, SlowCopy

import deepgen as dg
from deepgen.tuning import Study
from deepgen.tuning.study.finals import Finals
from deepgen.vocabulary import BadInput

FEW: dict[str, Any] = {"target": "cpu", "trials": 2, "keep_top": 1}


def names(study: Study) -> list[str]:
    return [row.name for row in (study.finals() or Finals(None)).baselines]


def test_it_races_beside_those_that_are_named(tmp_path: Path) -> None:
    study = dg.tune(dg.gemm(16, 16, 16), **FEW, out=tmp_path, baselines=["numpy", Einsum])
    assert names(study) == ["numpy", "einsum"]
    done = preloaded.deepgen("resume", str(study.folder), "--trials", "3")
    assert done.returncode == 0, done.stderr
    again = Study.open(study.folder)
    assert len(again.trials()) == 3 and names(again) == ["numpy", "einsum"]


def test_a_new_result_is_compared_and_its_copy_is_not_timed(tmp_path: Path) -> None:
    finals: Any = dg.tune(dg.gemm(16, 16, 16), **FEW, out=tmp_path, baselines=[SlowCopy]).finals()
    [row] = finals.baselines
    assert row.name == "slow_copy" and row.seconds < COPYING


def test_one_that_cannot_run_is_told_of(tmp_path: Path) -> None:
    study = dg.tune(dg.gemm(16, 16, 16), **FEW, out=tmp_path, baselines=["numpy", "cublaslt"])
    finals: Any = study.finals()
    assert names(study) == ["numpy"] and [row.name for row in finals.baselines_lost] == ["cublaslt"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["nope"], "nope"),
        ([Einsum()], "is not a baseline"),
        ([type("Mine", (Einsum,), {"name": "numpy"})], "another baseline has that name"),
        ([type("Mine", (Einsum,), {"name": "mine", "__module__": "gone"})], "no file or module holds its code"),
    ],
)
def test_what_is_no_baseline_is_refused(given: list[Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=says):
        dg.tune(dg.gemm(16, 16, 16), **FEW, out=tmp_path, baselines=given)
