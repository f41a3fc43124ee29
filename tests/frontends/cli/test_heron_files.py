"""Heron's case files are tuned unchanged: every number keeps its meaning there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compiled import COMPILERS, NO_COMPILER

import deepgen as dg
from deepgen import operators
from deepgen.frontends import formats
from deepgen.frontends.cli import session
from deepgen.frontends.formats import Document, TuningFile, tuning_of
from deepgen.settings import Settings
from deepgen.tuning import Study
from deepgen.tuning import tune as run_tuner
from deepgen.tuning.engines import Engine, local_engine
from deepgen.vocabulary import BadInput, DeepgenError

# The first case of each of Heron's files, and the operator it describes.
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


FOLDER = Path(__file__).parents[2] / "data" / "heron"
FILES = sorted(FOLDER.glob("*/*.json"))


def test_all_files_are_read_as_they_are() -> None:
    assert len(FILES) == 22
    files = {f"{path.parent.name}/{path.stem}": formats.read(path) for path in FILES}
    networks = {name: (len(file.operators), sum(file.counts.values())) for name, file in files.items() if file.counts}
    assert networks == {"figure10/bert": (3, 84), "figure10/inceptionv3": (43, 94), "figure10/resnet50": (21, 54),
                        "figure10/vgg16": (10, 17)}  # fmt: skip
    described = {name: [one.describe() for one in file.operators] for name, file in files.items()}
    assert "conv2d f16 nhwc 16x17x17x128 to 128 by 1x7" in described["figure10/inceptionv3"]
    assert "conv2d i8_i32 nhwc 1x14x14x256 to 512 by 1x1 stride 2 OhwI48o4i" in described["figure8/c2d"]
    packed = {name: {one.parameters().get("weight_layout") for one in file.operators} for name, file in files.items()}
    assert packed["figure8/t2d"] == {"OIhw4i16o4i"} and packed["figure8/c1d"] == {"OwI64o4i"}
    for file in files.values():
        assert all(operators.from_json(one.to_json()) == one for one in file.operators)


def test_a_network_is_added_up(deepgen: Callable, project: Path) -> None:
    cases = {"layer-0 ": ["c2d", [1, 9, 9, 8, 16, 1, 7, 1, 0, 1], 2], "layer-1": ["gemm", [16, 16, 16], 3],
             "layer-2": ["gemm", [16, 16, 16]]}  # fmt: skip
    (project / "net.json").write_text(json.dumps(content(cases, max_trials=2)))
    said = deepgen("tune", "net.json", "--target", "sim", "--out", "s", "--json")
    assert said.code == 0, said.err
    told = json.loads(said.out)
    each = {study["operator"]["name"]: study["winner"]["seconds"] for study in told["studies"]}
    assert told["network"]["seconds"] == pytest.approx(2 * each["conv2d"] + 4 * each["gemm"])
    assert (told["network"]["layers"], told["network"]["calls"]) == (2, 6)
    said = deepgen("tune", "net.json", "--target", "sim", "--out", "s")
    assert "network of 2 layers, 6 calls" in said.out and "in all" in said.out
    said = deepgen("show", "net.json")
    assert said.code == 0 and "by 1x7" in said.out
    assert json.loads(deepgen("show", "net.json", "--json").out)["operators"][1]["count"] == 4


def test_a_layer_that_fails_does_not_end_the_others(
    deepgen: Callable, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tune(request: Any, **named: Any) -> Study:
        if request.operator.name == "conv2d":
            raise DeepgenError("the time budget ended")
        return run_tuner(request, **named)

    monkeypatch.setattr(session, "run_tuner", tune)
    cases = {"a": ["c2d", [1, 9, 9, 8, 16, 1, 7, 1, 0, 1], 2], "b": ["gemm", [16, 16, 16], 3]}
    (project / "net.json").write_text(json.dumps(content(cases, max_trials=1)))
    said = deepgen("tune", "net.json", "--target", "sim", "--out", "s")
    assert said.code == 1 and "by 1x7: the time budget ended" in said.err
    assert "of 1 of 2 layers, so no total" in said.out


@pytest.mark.skipif(not COMPILERS, reason=NO_COMPILER)
@pytest.mark.parametrize(("name", "place"), [("figure10/inceptionv3", 22), ("figure8/c2d", -1)])
def test_a_case_is_tuned_on_this_processor(name: str, place: int, tmp_path: Path) -> None:
    operator = formats.read(FOLDER / f"{name}.json").operators[place]
    one = operator.make({**operator.parameters(), "N": 1})  # of the network's batch size
    study = dg.tune(one, target="cpu", trials=1, baselines=False, out=tmp_path)
    assert study.best().trial.ok


def test_a_file_gives_a_study_a_case(deepgen: Callable, project: Path) -> None:
    data = content({"G1": ["gemm", [64, 64, 64]], "G2": ["gemm", [64, 32, 16]]}, in_dtype="int8", out_dtype="int32")
    (project / "heron.json").write_text(json.dumps(data))
    said = deepgen("tune", "heron.json", "--target", "sim", "--out", "s")
    assert said.code == 0, said.err
    studies = [Study.open(folder) for folder in sorted((project / "s").iterdir())]
    assert {s.describe() for s in studies} == {"gemm i8_i32 nt 64x64x64", "gemm i8_i32 nt 64x16x32"}
    assert all(s.definition["strategy"] == "constrained_ga" and len(s.trials()) == 4 for s in studies)
    assert all(len(t.measurement.samples) in (0, 6) for s in studies for t in s.trials())  # failed, or timed this often


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
        ({"cases": {"X": "gemm"}}, "an operator, its sizes"),
        ({"cases": {"X": ["gemm", [4, 4, 4], 0]}}, "a count of at least 1"),
        ({"cases": {"X": ["gemm", [4, 4, 4], 1, 2]}}, "then nothing else"),
        ({"cases": {"X": ["gemm", [4, 4, 4, "OIhw4i"]]}}, "whole numbers: M, K, N"),
        ({"cases": {"X": ["c2d", [16, 28, 28, 128, 256, 1, 3, 2, 0, 1, "OIdhw4i"]]}}, "not of a filter here"),
        ({"cases": {"X": ["gemv", [4, 4]]}, "out_dtype": "float32"}, "in_dtype and out_dtype"),
        ({"cases": {"X": [[], []]}}, "an operator, its sizes"),
        ({"cases": {}}, "at least one case"),
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
