"""A winner's handling of NaN, infinities and denormals is shown, stored, and enforced on request."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import deepgen as dg
from deepgen.kernels.own import OwnKernel
from deepgen.libraries import Library
from deepgen.run.measure.base import Policy
from deepgen.tuning.study.reading import all_doubts
from deepgen.vocabulary import DeepgenError
from deepgen.vocabulary.measurement import Properties

RELU = """
void relu(float *y, const float *x, int n) {
    for (int i = 0; i < n; i++) y[i] = KEEPS ? (x[i] < 0 ? 0 : x[i]) : (x[i] > 0 ? x[i] : 0);
}
"""
QUICK = {"target": "cpu", "trials": 2, "baselines": False, "strategy": "exhaustive", "transfer": False}


def relu(*keeps: int) -> OwnKernel:
    arguments = [dg.output("y", "n", "f32"), dg.input("x", "n", "f32"), dg.scalar("n", "i32")]
    return dg.kernel(
        RELU, language="c", entry="relu", arguments=arguments, sizes={"n": 2000}, knobs={"KEEPS": keeps},
        reference=lambda x: np.maximum(x, 0),
    )  # fmt: skip


@pytest.fixture(scope="module")
def loser(tmp_path_factory: pytest.TempPathFactory) -> dg.Study:
    return dg.tune(relu(0), out=tmp_path_factory.mktemp("loser"), **QUICK)  # type: ignore[arg-type]


def test_a_winner_that_loses_nan_is_said_to(loser: dg.Study) -> None:
    finals = loser.finals()
    assert finals is not None and finals.properties is not None
    assert finals.properties.marks() == {"nan": "lost"}
    assert (finals.properties.inf, finals.properties.denormals) == ("kept", "kept")
    assert finals.properties.alignment == "element"
    summary = loser.summary()
    assert summary["winner"]["properties"]["nan"] == "lost"  # type: ignore[index, call-overload]
    doubts = all_doubts(finals, (), summary["winner"], cold=True)  # type: ignore[arg-type]
    assert "the winner does not handle NaN as its reference does" in doubts


def test_a_library_keeps_what_is_known(tmp_path: Path) -> None:
    study = dg.tune(dg.gemm(16, 16, 16), out=tmp_path / "studies", **{**QUICK, "trials": 1})  # type: ignore[arg-type]
    Library(tmp_path / "library").add(study, noisy=True)
    (entry,) = Library(tmp_path / "library").list()
    assert entry.properties.to_json() == study.finals().properties.to_json()  # type: ignore[union-attr]
    assert (entry.properties.nan, entry.properties.denormals, entry.properties.loses()) == ("kept", "kept", [])
    assert Properties("lost", "kept", "flushed").loses() == ["NaN", "denormal numbers"]


def test_strict_floats_leave_the_one_that_keeps_them(tmp_path: Path) -> None:
    policy = Policy(strict_floats=True)
    study = dg.tune(relu(0, 1), out=tmp_path, policy=policy, **QUICK)  # type: ignore[arg-type]
    finals = study.finals()
    assert finals is not None and study.best().trial.config == {"KEEPS": 1}
    (dropped,) = finals.dropped
    assert "on nan inputs" in dropped.detail
    with pytest.raises(DeepgenError, match="nan inputs"):
        dg.tune(relu(0), out=tmp_path, policy=policy, **QUICK)  # type: ignore[arg-type]
