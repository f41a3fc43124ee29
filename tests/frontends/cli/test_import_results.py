"""`deepgen import` and `deepgen export --as-results` exchange results with the older tool."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deepgen.frontends.formats import write_results
from deepgen.operators import gemm
from deepgen.space import Space
from deepgen.tuning import Study
from deepgen.tuning.study.finals import RacedBaseline
from deepgen.tuning.study.journal import Journal
from deepgen.vocabulary import BadInput

CONFIG = {
    "BLOCK_SIZE_M": 64,
    "BLOCK_SIZE_N": 32,
    "LOCAL_SPLIT_U": 1,
    "GLOB_STORE_WIDTH": 0,
    "M_SIZE": 1024,
    "N_SIZE": 512,
    "K_SIZE": 256,
    "BATCH_SIZE": 2,
    "IS_ATRANS": 1,
}


def entry(ms: float, **changes: Any) -> dict[str, Any]:
    config = {**CONFIG, **{k: v for k, v in changes.items() if k.isupper()}}
    result = {"correct": True, "acc": 1.0 / ms, "torchMs": 1.0, "kcgMs": ms, "config": config}
    return {**result, **{k: v for k, v in changes.items() if not k.isupper()}}


RESULTS = [
    entry(2.0, BLOCK_SIZE_M=32),
    entry(0.5),
    entry(0.1, BLOCK_SIZE_M=16, correct=False),
    entry(1.0, BLOCK_SIZE_N=64, torchMs=None, acc=None),
]


@pytest.fixture
def file(project: Path) -> str:
    (project / "old_card0.json").write_text(json.dumps({"results": RESULTS}))
    return "old_card0.json"


def test_results_are_listed_with_their_speed(deepgen: Callable, file: str) -> None:
    rows = deepgen("import", file, "--json").json()["results"]
    assert [row["ms"] for row in rows] == [0.5, 2.0, 1.0, None]
    assert [row["speedup"] for row in rows] == [2.0, 0.5, None, None]
    assert rows[0]["gflops"] == pytest.approx(2 * 2 * 1024 * 512 * 256 / 0.5e-3 / 1e9)
    assert [row["correct"] for row in rows] == [True, True, True, False]
    said = deepgen("import", file)
    assert said.code == 0
    assert "500 us" in said.out and "wrong" in said.out and "2.000" in said.out
    assert "M_SIZE=1024" in said.out
    assert max(map(len, said.out.splitlines())) <= 80


def test_right_ones_become_a_space_that_can_be_shown(deepgen: Callable, project: Path, file: str) -> None:
    said = deepgen("import", file, "--as-space", "-o", "space.json")
    assert said.code == 0
    assert "deepgen space show space.json" in said.out
    space = Space.from_json(json.loads((project / "space.json").read_text()))
    assert space.count() == 3
    assert all(space.contains(e["config"]) == e["correct"] for e in RESULTS)
    assert deepgen("space", "show", "space.json", "--json").json()["count"] == 3


def test_the_list_can_be_kept_in_a_file(deepgen: Callable, project: Path, file: str) -> None:
    said = deepgen("import", file, "-o", "list.json", "--json")
    kept = json.loads((project / "list.json").read_text())
    assert said.json() == {**kept, "written": "list.json"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "'results'"),
        ('{"results": 3}', "'results'"),
        ('{"results": []}', "'results' is empty"),
        ('{"results": [7]}', "results[0]"),
        (json.dumps({"results": [RESULTS[0], {**RESULTS[1], "config": None}]}), "results[1]: key 'config' is missing"),
        (json.dumps({"results": [{**RESULTS[0], "correct": "yes"}]}), "key 'correct' is 'yes'"),
        (json.dumps({"results": [{**RESULTS[0], "kcgMs": 0}]}), "key 'kcgMs' is 0"),
        (json.dumps({"results": [{**RESULTS[0], "kcgMs": float("nan")}]}), "NaN is not a JSON number"),
        (json.dumps({"results": [{k: v for k, v in RESULTS[0].items() if k != "kcgMs"}]}), "key 'kcgMs' is missing"),
        (json.dumps({"results": [{**RESULTS[0], "torchMs": "1"}]}), "key 'torchMs' is '1'"),
        (json.dumps({"results": [{**RESULTS[0], "config": {"BLOCK_SIZE_M": {}}}]}), "key 'BLOCK_SIZE_M' is {}"),
        (json.dumps({"results": [{**RESULTS[0], "config": {"BLOCK_SIZE_M": None}}]}), "key 'BLOCK_SIZE_M' is missing"),
    ],
)
def test_a_bad_file_is_named_with_its_key(deepgen: Callable, project: Path, text: str, said: str) -> None:
    (project / "bad.json").write_text(text)
    found = deepgen("import", "bad.json")
    assert (found.code, found.out) == (2, "")
    assert "bad.json" in found.err and said in found.err
    assert len(found.err.strip().splitlines()) == 1


def test_other_misuses_are_bad_input(deepgen: Callable, project: Path, file: str) -> None:
    assert "-o FILE" in deepgen("import", file, "--as-space").err
    assert deepgen("import", "absent.json").code == 2
    (project / "wrong.json").write_text(json.dumps({"results": [RESULTS[2]]}))
    none = deepgen("import", "wrong.json", "--as-space", "-o", "space.json")
    assert (none.code, "no result is correct" in none.err) == (2, True)
    assert not (project / "space.json").exists()


@pytest.fixture
def study(deepgen: Callable) -> Study:
    said = deepgen("tune", "gemm", "MNK=64", "B=2", "--layout", "nt", "--target", "sim", "t=12", "--json")
    return Study.open(said.json()["study"])


def test_a_study_goes_out_as_a_result_file_and_comes_back(deepgen: Callable, project: Path, study: Study) -> None:
    said = deepgen("export", study.folder.name, "--as-results", "mine", "--device", "3", "--top", "4")
    assert said.code == 0
    assert "mine_card3.json" in said.out
    entries = json.loads((project / "mine_card3.json").read_text())["results"]
    assert [set(e) for e in entries] == [{"correct", "acc", "torchMs", "kcgMs", "config"}] * 4
    best = study.best()
    assert entries[0]["kcgMs"] == pytest.approx(1e3 * best.seconds)
    assert entries[0]["torchMs"] is entries[0]["acc"] is None, "torch does not run on a simulated device"
    problem = {"M_SIZE": 64, "BATCH_SIZE": 2, "IS_ATRANS": 0, "IS_BTRANS": 1, "DATATYPE_A": 4}
    assert entries[0]["config"].items() >= {**problem, **best.trial.config}.items()
    rows = deepgen("import", "mine_card3.json", "--json").json()["results"]
    flops = gemm(64, 64, 64, batch=2).flops()
    assert max(row["gflops"] for row in rows) == pytest.approx(flops / best.seconds / 1e9, rel=0.05)


def test_torch_is_told_where_it_was_measured(project: Path, study: Study) -> None:
    finals = study.finals()
    assert finals is not None
    with Journal(study.folder, write=True) as journal:
        row = RacedBaseline("torch", 0.5, 1.0, (1.0, 1.0))
        journal.add_finals(replace(finals, baselines=(replace(row, name="numpy", seconds=9.0), row)))
    path = write_results(study, project / "with", 0)
    [first, *_] = json.loads(path.read_text())["results"]
    assert first["torchMs"] == 500.0
    assert first["acc"] == pytest.approx(500.0 / first["kcgMs"])
    with pytest.raises(BadInput, match="cannot be written"):
        write_results(study, project / "absent" / "x", 0)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--as-space"],
        ["--as-results", "x", "-o", "y.json"],
        ["--as-space", "--as-config", "-o", "y.json"],
        ["--as-space", "--as-results", "x", "-o", "y.json"],
    ],
)
def test_export_needs_one_form_and_one_file(deepgen: Callable, study: Study, words: list[str]) -> None:
    found = deepgen("export", study.folder.name, *words)
    assert found.code == 2
    assert "--as-results" in found.err
