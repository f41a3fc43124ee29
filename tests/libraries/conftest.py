"""Studies and libraries shared by tests: tuning takes longer than anything done with the winners."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import deepgen as dg
from deepgen.libraries import Library
from deepgen.libraries.entry import Rival
from deepgen.tuning import Study

SHAPES = ((48, 64, 32), (96, 64, 80))


@pytest.fixture(scope="session")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> list[Study]:
    """Two GEMMs and a softmax, tuned with a single trial each, signed with a separate key."""
    folder = tmp_path_factory.mktemp("tuned")
    words: dict[str, Any] = {"target": "cpu", "trials": 1, "keep_top": 1, "out": folder / "studies"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        patch.setenv("XDG_DATA_HOME", str(folder / "data"))
        studies = [dg.tune(dg.gemm(*sizes), baselines=["numpy"], **words) for sizes in SHAPES]
        return [*studies, dg.tune(dg.softmax(24, 40), baselines=False, **words)]


@pytest.fixture
def studies(tuned: list[Study], monkeypatch: pytest.MonkeyPatch) -> list[Study]:
    """The same studies, with their user's key."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tuned[0].folder.parents[1] / "config"))
    return tuned


@pytest.fixture(scope="session")
def filled(tuned: list[Study], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filled") / "library"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tuned[0].folder.parents[1] / "config"))
        library = dg.library(folder, create=True)
        for study in tuned:
            assert library.add(study) == "added"
    for entry in library.list():  # the same choices on every machine: our kernel is ten times as fast as numpy
        rivals = {name: Rival(10 * entry.seconds, 10.0, (9.0, 11.0)) for name in entry.timed[0].baselines}
        fixed = replace(entry, timed=(replace(entry.timed[0], baselines=rivals),))
        (library.path_of(entry) / "about.json").write_text(json.dumps(fixed.to_json()))
    return folder


@pytest.fixture
def library(filled: Path, studies: list[Study], tmp_path: Path) -> Library:
    """A library of all three, which a test may damage."""
    return dg.library(shutil.copytree(filled, tmp_path / "library"))


@pytest.fixture(scope="session")
def expressed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library of operators with fixed shapes: a mean in two shapes, a filter, an expression without sizes."""
    folder = tmp_path_factory.mktemp("expressed")
    x = dg.tensor("x", (2,), "f32")
    doubled = dg.expression(dg.compute("y", (2,), lambda i: x[i] * 2.0), name="doubled")
    means = [dg.operator("mean", rows=rows, cols=cols) for rows, cols in ((2, 6), (1, 8))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        patch.setenv("XDG_DATA_HOME", str(folder / "data"))
        for operator in (*means, dg.operator("conv1d", N=1, L=4, CI=1, CO=1, k=2), doubled):
            study = dg.tune(operator, target="cpu", trials=1, keep_top=1, baselines=False, out=folder / "studies")
            dg.library(folder / "library", create=True).add(study)
    return folder / "library"


@pytest.fixture
def expressed_ones(expressed: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same library, with its user's key."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(expressed.parent / "config"))
    return expressed
