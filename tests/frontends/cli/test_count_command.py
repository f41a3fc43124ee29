"""Counters on the command line, in config files and from Python, and where a study keeps them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import deepgen as dg
from deepgen.tuning import Study, counting
from deepgen.tuning.engines import LocalEngine
from deepgen.vocabulary import BadInput


@pytest.mark.skipif(shutil.which("objdump") is None, reason="there is no objdump here")
def test_a_study_keeps_counters_with_its_trials(tmp_path: Path) -> None:
    engine = LocalEngine()
    tune = partial(
        dg.tune, dg.gemm(24, 20, 16), target="cpu", family="c_gemm", trials=2, keep_top=1, baselines=False,
        out=tmp_path / "studies", engine=engine,
    )  # fmt: skip
    study = tune(counters="task-clock,oops")
    right = [trial for trial in study.trials() if trial.ok]
    for trial in right:
        missing = trial.measurement.conditions["not_counted"]
        assert "task-clock" in trial.measurement.counters or "task-clock" in str(missing)
        assert "oops" not in trial.measurement.counters and "oops" in str(missing)
    assert len([text for _, text in study.notes() if "oops" in text]) == 1, "told once for the study"
    times = [trial.measurement.samples for trial in right]

    told = counting.count(study, ["mix.branches"], 1, engine=engine)
    [counted] = told.trials
    assert 0.0 < counted.measurement.counters["mix.branches"] < 1.0
    reopened = Study.open(study.folder)
    assert counted in reopened.trials(), "kept beside the counters that it had"
    assert [trial.measurement.samples for trial in reopened.trials() if trial.ok] == times
    assert tune().folder == study.folder, "counting makes no other study"


def test_what_cannot_be_counted_is_missing_with_the_reason(deepgen: Callable, project: Path) -> None:
    tuned = deepgen("tune", "gemm", "MNK=64", "--target", "sim", "--trials", "4", "--counters", "default,r11", "--json")
    assert tuned.code == 0, tuned.err
    study = tuned.json()["study"]
    shown = deepgen("show", study, "--trial", "0")
    assert "missing  mix.instructions," in shown.out and "the simulated device has no counters" in shown.out
    counted = deepgen("count", study, "--counters", "r11", "--top", "2", "--json")
    assert counted.code == 1, "nothing was counted"
    assert counted.json()["missing"] == {"r11": "the simulated device has no counters"}
    assert [row["counters"] for row in counted.json()["trials"]] == [{}, {}]


@pytest.mark.parametrize("where", ["option", "file", "python"])
def test_a_name_that_no_counter_has_is_refused(deepgen: Callable, project: Path, where: str) -> None:
    if where == "python":
        with pytest.raises(BadInput, match="counters has '--import'"):
            dg.tune(dg.gemm(8, 8, 8), target="sim", counters=["--import"])
        return
    if where == "option":
        said = deepgen("tune", "gemm", "MNK=64", "--target", "sim", "--counters", "cycles,two words")
    else:
        (project / "my.toml").write_text('operator = "gemm"\nshapes = { MNK = 64 }\ncounters = ["two words"]\n')
        said = deepgen("tune", "my.toml", "--target", "sim")
    assert said.code == 2
    assert "'two words'" in said.err and "perf list" in said.err
    assert not (project / "deepgen-studies").exists()
