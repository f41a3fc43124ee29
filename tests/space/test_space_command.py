"""`deepgen space` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deepgen.frontends.cli.main import main
from deepgen.space import Space

DATA = Path(__file__).parent.parent.parent / "data"


def test_a_hub_file_is_shown_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["space", "show", str(DATA / "recorded" / "gemm.T1.json"), "--removed", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["product"], shown["count"]) == (663_552, 116_928)
    assert {k["name"] for k in shown["knobs"]} >= {"MWG", "NWG", "KWG"}
    assert shown["seconds"] > 0
    removed = {r["name"]: r for r in shown["requirements"]}
    assert removed["KWG % KWI == 0"]["removes_alone"] == 0
    assert removed["MWG % (MDIMC * VWM) == 0"]["removes_alone"] > 0
    assert main(["space", "show", str(DATA / "recorded" / "gemm.T1.json"), "--removed"]) == 0
    assert "alone" in capsys.readouterr().out


def test_what_requirements_remove_is_counted_only_when_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Space, "removed_by", lambda _: pytest.fail("seconds of work in a large space"))
    assert main(["space", "show", str(DATA / "recorded" / "gemm.T1.json")]) == 0
    assert "MWG % (MDIMC * VWM) == 0" in capsys.readouterr().out


def test_a_tuning_config_is_shown_by_either_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(DATA / "deepgen" / "TuningConfigs" / "GEMM_configs_1024.json")
    assert main(["space", "show", file, "--space-strategy", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["count"] == 9_583_920
    assert main(["space", "show", file, "--space-strategy", "0", "--sample", "2"]) == 0
    text = capsys.readouterr().out
    assert "blocks divide M" in text
    assert "valid configs of 835,884,417,024" in text


def test_an_empty_space_says_what_leaves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["space", "show", str(DATA / "deepgen" / "TuningConfigs" / "GEMM_single_test.json")]) == 0
    assert "No config satisfies: tiles are as high as wide" in capsys.readouterr().out


def test_the_space_of_an_operator_is_saved_and_used_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "s.json"
    command = ["space", "gemm", "MNK=256", "--target", "cpu", "-o", str(file), "--json"]
    assert main(command) == 0
    first = json.loads(capsys.readouterr().out)
    written = file.stat().st_mtime_ns
    assert main(command) == 0
    assert "reused" in json.loads(capsys.readouterr().out)["file"]
    assert file.stat().st_mtime_ns == written
    assert Space.from_json(json.loads(file.read_text(encoding="utf-8"))).count() == first["count"]
    assert main(["space", "show", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fingerprint"] == first["fingerprint"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "missing.json"], "missing.json: cannot be read"),
        (["show"], "show takes one file"),
        (["gemm"], "needs a value for M"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["space", *words]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told
