"""Heron's case files are tuned as they are: every number means what it means there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepgen.frontends.formats import Document, TuningFile, tuning_of
from deepgen.settings import Settings
from deepgen.tuning import Study
from deepgen.tuning.engines import Engine, local_engine
from deepgen.vocabulary import BadInput

# The first case of each of Heron's files, and what it is.
CASES = {
    "gemm": ([32, 2048, 1000], "gemm f16 nt 32x1000x2048"),
    "bmm": ([12, 512, 64, 512], "gemm f16 nt batch 12 of 512x512x64"),
    "gemv": ([512, 16], "gemv f16 M=512 K=16"),
    "scan": ([16, 512, 128], "scan f16 M=16 N=512 K=128"),
    "c1d": ([16, 892, 512, 512, 3, 1, 4, 1], "conv1d f16 N=16 L=892 CI=512 CO=512 k=3 pad=4"),
    "c2d": ([16, 28, 28, 128, 256, 1, 1, 2, 0, 1], "conv2d f16 nhwc 16x28x28x128 to 256 by 1x1 stride 2"),
    "dil": ([16, 56, 56, 64, 64, 3, 3, 1, 1, 2], "dilated_conv2d f16 N=16 H=56 W=56 CI=64 CO=64 k=3 pad=1"),
    "c3d": ([8, 8, 56, 56, 64, 64, 3, 3, 3, 1, 1, 1], "conv3d f16 N=8 D=8 H=56 W=56 CI=64 CO=64 k=3 pad=1"),
    "t2d": ([16, 56, 56, 64, 128, 1, 1, 2, 0, 1, 0], "conv_transpose2d f16 N=16 H=56 W=56 CI=64 CO=128 k=1 stride=2"),
}


def content(cases: dict[str, Any], **changed: Any) -> dict[str, Any]:
    usual = {
        "out_name": "OPS", "method": "CGA", "max_trials": 4, "runner_number": 3, "runner_repeat": 2,
        "runner_timeout": 50, "build_timeout": 50, "in_dtype": "float16", "out_dtype": "float16", "cases": cases,
    }  # fmt: skip
    return {"config": {**usual, **changed}}


def read(data: dict[str, Any]) -> TuningFile:
    return tuning_of(Document(Path("x.json"), data, "x.json"))


def test_the_numbers_of_every_case_are_understood() -> None:
    told = read(content({kind: [kind, numbers] for kind, (numbers, _) in CASES.items()}))
    assert [operator.describe() for operator in told.operators] == [says for _, says in CASES.values()]
    assert (told.strategy, told.trials, told.runs) == ("constrained_ga", 4, 6)
    assert (told.run_seconds, told.build_seconds) == (50, 50)


def test_a_file_gives_a_study_a_case(deepgen: Callable, project: Path) -> None:
    data = content({"G1": ["gemm", [64, 64, 64]], "G2": ["gemm", [64, 32, 16]]}, in_dtype="int8", out_dtype="int32")
    (project / "heron.json").write_text(json.dumps(data))
    said = deepgen("tune", "heron.json", "--target", "sim", "--out", "s")
    assert said.code == 0, said.err
    studies = [Study.open(folder) for folder in sorted((project / "s").iterdir())]
    assert {s.describe() for s in studies} == {"gemm i8_i32 nt 64x64x64", "gemm i8_i32 nt 64x16x32"}
    assert all(s.definition["strategy"] == "constrained_ga" and len(s.trials()) == 4 for s in studies)
    assert all(len(t.measurement.samples) in (0, 6) for s in studies for t in s.trials())  # failed, or timed so often


def test_a_limit_on_builds_is_kept_to(deepgen: Callable, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    def local(settings: Settings, jobs: int | None) -> Engine:
        limits.append(settings.build_limits().wall_seconds)
        return local_engine(settings, jobs)

    monkeypatch.setattr("deepgen.tuning.engines.local_engine", local)
    data = content({"G1": ["gemm", [64, 64, 64]]}, in_dtype="int8", out_dtype="int32", build_timeout=33)
    (project / "heron.json").write_text(json.dumps(data))
    said = deepgen("tune", "heron.json", "--target", "sim", "--out", "s")
    assert said.code == 0, said.err
    assert limits == [33.0]


def test_a_file_is_tuned_on_vta_and_its_times_are_called_simulated(deepgen: Callable, project: Path) -> None:
    data = content({"G1": ["gemm", [16, 32, 16]]}, in_dtype="int8", out_dtype="int32")
    (project / "quick_start.json").write_text(json.dumps(data))
    said = deepgen("tune", "quick_start.json", "--target", "vta", "--out", "s")
    assert said.code == 0, said.err
    assert "simulated, not measured" in said.out
    (folder,) = (project / "s").iterdir()
    assert Study.open(folder).target.name == "vta:pynq" and len(Study.open(folder).trials()) == 4
    files = {file.name: file.read_text() for file in (folder / "case").iterdir()}
    assert set(files) == {"constraints.json", "records.jsonl", "statistics.json", "schedule.txt"}
    assert "input buffer" in files["constraints.json"] and "gemm" in files["schedule.txt"]
    assert len(files["records.jsonl"].splitlines()) == 4
    assert json.loads(files["statistics.json"])["winner"]["verdict"] == "correct"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"cases": {"X": ["c9d", [1]]}}, "unknown operator 'c9d'"),
        ({"cases": {"X": ["gemm", [1, 2]]}}, "whole numbers: M, K, N"),
        ({"cases": {"X": "gemm"}}, "an operator and its numbers"),
        ({"cases": {"X": ["c2d", [16, 28, 28, 128, 256, 1, 3, 2, 0, 1]]}}, "the same size"),
        ({"cases": {"X": ["gemv", [4, 4]]}, "out_dtype": "float32"}, "in_dtype and out_dtype"),
        ({"cases": {"X": [[], []]}}, "an operator and its numbers"),
        ({"cases": {}}, "one case or more"),
        ({"out_dtype": {}}, "config.out_dtype is {}"),
        ({"in_dtype": ["float16"]}, "config.in_dtype is"),
        ({"method": []}, "one of CGA, RAND"),
        ({"method": "BAYES"}, "one of CGA, RAND"),
        ({"max_trials": 0}, "at least 1"),
        ({"runner_repeat": "often"}, "at least 1"),
        ({"runner_numbr": 3}, "unknown key config.runner_numbr"),
    ],
)
def test_a_mistake_is_told_by_its_place(changed: dict[str, Any], says: str) -> None:
    data = content(**{"cases": {"G1": ["gemm", [64, 64, 64]]}, **changed})
    with pytest.raises(BadInput, match=r"x\.json") as told:
        read(data)
    assert says in str(told.value)
