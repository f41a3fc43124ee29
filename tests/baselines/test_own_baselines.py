"""Baselines passed as objects: raced like any other, found again by the command line, refused with a message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import preloaded
import pytest
from own_baseline import COPYING, Einsum, SlowCopy, misnamed, multiplied

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


def test_a_function_is_enough_and_a_finished_study_is_compared_with_it_too(tmp_path: Path) -> None:
    study = dg.tune(dg.gemm(16, 16, 16), **FEW, out=tmp_path, baselines=["numpy"])
    assert names(study) == ["numpy"]
    study = dg.tune(dg.gemm(16, 16, 16), **FEW, out=tmp_path, baselines=[multiplied, misnamed])
    finals: Any = study.finals()
    assert names(study) == ["multiplied"] and len(study.trials()) == 2
    assert [(row.name, "takes 'left'" in row.detail) for row in finals.baselines_lost] == [("misnamed", True)]


OWN = """
import deepgen as dg
if __name__ != "__main__" and {tunes}:
    dg.tune(dg.gemm(8, 8, 8))
kernel = dg.kernel(
    "void twice(float *y, const float *x, int n) {{ for (int i = 0; i < n; i += 1) y[i] = STEP * x[i] * 2 / STEP; }}",
    entry="twice", language="c", sizes={{"n": 64}}, knobs={{"STEP": [1, 2]}}, reference=lambda x: 2 * x,
    arguments=[dg.output("y", ("n",), "f32"), dg.input("x", ("n",), "f32"), dg.scalar("n", "i32")],
    baseline=lambda x: x + x,
)
"""


def test_a_kernel_brings_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "twice.py").write_text(OWN.format(tunes=False))
    monkeypatch.chdir(tmp_path)
    done = preloaded.deepgen("tune", "twice.py", "--trials", "2", "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["baselines"]
    assert row["name"] == "baseline"
    done = preloaded.deepgen("resume", "last", "--trials", "3")
    assert done.returncode == 0, done.stderr
    (tmp_path / "tunes.py").write_text(OWN.format(tunes=True))
    done = preloaded.deepgen("tune", "tunes.py", "--trials", "2")
    assert done.returncode == 2 and 'tune below `if __name__ == "__main__":`' in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["nope"], "nope"),
        ([Einsum()], "is not a baseline"),
        ([lambda A, B: A @ B], "its code is in no file or module"),
        ([type("Mine", (Einsum,), {"name": "numpy"})], "another baseline has that name"),
        ([type("Mine", (Einsum,), {"name": "mine", "__module__": "gone"})], "its code is in no file or module"),
    ],
)
def test_what_is_no_baseline_is_refused(given: list[Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=says):
        dg.tune(dg.gemm(16, 16, 16), **FEW, out=tmp_path, baselines=given)
