"""T1 files on the command line: recognised by their content, tuned, resumed, and refused with a message."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from deepgen.frontends import formats
from deepgen.tuning import Study
from t1_files import written


def test_a_t1_file_is_tuned_and_its_study_needs_the_file_no_more(deepgen: Callable, project: Path) -> None:
    written(project)
    said = deepgen("tune", "scale.json", "--target", "cpu", "--trials", "2", "--out", "s")
    assert said.code == 0, said.err
    assert "agrees with config 0" in said.out and "correct" not in said.out, "there is no reference to be right by"
    before = formats.read(project / "scale.json").kernel.operator()
    for file in ("scale.json", "scale.c"):
        (project / file).unlink()
    study = Study.open(next((project / "s").iterdir()))
    assert study.operator.to_json() == before.to_json()
    np.testing.assert_array_equal(study.operator.inputs(0)["x"], before.inputs(0)["x"])
    assert study.emitted(study.best().trial).id == study.best().trial.kernel_id


def test_a_t1_file_has_a_space_and_is_built(deepgen: Callable, project: Path) -> None:
    written(project)
    assert deepgen("space", "scale.json", "--target", "cpu", "--json").json()["count"] == 3
    assert deepgen("build", "scale.json", "--target", "cpu", "--config", "UNROLL=4", "-o", "built").code == 0


def test_other_json_files_are_what_they_are(deepgen: Callable, project: Path) -> None:
    (project / "ours.json").write_text(json.dumps({"operator": "gemm", "shapes": {"MNK": 16}}))
    assert deepgen("tune", "ours.json", "--target", "sim", "--trials", "2").code == 0


def test_a_study_leaves_as_t4_and_is_replayed(deepgen: Callable, project: Path) -> None:
    assert deepgen("tune", "gemm", "MNK=64", "--target", "sim", "--trials", "12", "--out", "s").code == 0
    (study,) = (project / "s").iterdir()
    assert deepgen("export", str(study), "--as-t4", "-o", "t4.json").code == 0
    data = json.loads((project / "t4.json").read_text())
    assert data["schema_version"] == "1.0.0" and len(data["results"]) == 12
    for row in data["results"]:
        assert {"configuration", "times", "invalidity", "correctness"} <= set(row), "what T4's schema requires"
    said = deepgen("replay", "t4.json", "--strategy", "random", "--budget", "5", "--repeats", "2", "--json")
    assert said.code == 0 and len(said.json()["scores"]) == 2
    fresh = ("tune", "gemm", "MNK=64", "--target", "sim", "--trials", "3", "--no-transfer", "--learn-from", "t4.json")
    assert deepgen(*fresh, "--out", "again").code == 0
    (again,) = (project / "again").iterdir()
    assert any("t4.json" in note for _, note in Study.open(again).notes())
    assert deepgen(*fresh, "--out", "again").code == 0, "what it began with is kept"
    late = deepgen(*fresh[:-1], "other.json", "--out", "again")
    assert late.code == 2 and "was started without other.json" in late.err
    learned = deepgen("replay", "t4.json", "--budget", "3", "--repeats", "1", "--learn-from", "t4.json", "--json")
    assert learned.json()["learned_from"] == ["t4"]
