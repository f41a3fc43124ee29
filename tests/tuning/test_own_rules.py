"""Studies with the user's own schedule rules: other rules make another study, and the rules' code is found again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from preloaded import deepgen

import deepgen as dg
from deepgen.compiler.family import Rules
from deepgen.report.reproduce import tune_command
from deepgen.vocabulary import BadInput

CODE = """
class Serial:
    name, exclusive = "Serial", True

    def __init__(self, parts=1):
        if parts != 1:
            self.parts = parts

    def declines(self, draft, stage):
        return None if stage.reduce is None else "it reduces"

    def apply(self, draft, stage):
        way = draft.branch("serial")
        way.finish(stage.name)
        return [way]
"""


def twice() -> Any:
    x = dg.tensor("x", (100,))
    return dg.compute("y", (100,), lambda i: x[i] * 2)


def tuned(out: Path, rules: list[Any]) -> dg.Study:
    return dg.tune(twice(), target="cpu", rules=rules, trials=1, baselines=False, out=out, family="rules")


@pytest.fixture
def serial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "serial_rule.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "serial_rule", raising=False)
    import serial_rule  # type: ignore[import-not-found]

    return serial_rule.Serial


def test_a_study_is_of_its_rules(tmp_path: Path, serial: Any) -> None:
    study = tuned(tmp_path / "studies", [serial()])
    assert tuned(tmp_path / "studies", [serial()]).folder == study.folder
    others = [tuned(tmp_path / "studies", rules).folder for rules in ([], [serial(2)])]
    assert len({study.folder, *others}) == 3
    for rules in ([], [serial(2)]):
        with pytest.raises(BadInput, match=r"was tuned with the schedule rules Serial .the same ones"):
            dg.Study.open(study.folder, generator=Rules(rules))
    with pytest.raises(BadInput, match="was tuned with no schedule rules but deepgen's own"):
        dg.Study.open(others[0], generator=Rules([serial()]))
    assert tune_command(study, {}) is None  # the command line cannot express it
    made = dg.Study.open(others[1])
    with pytest.raises(BadInput, match=r"schedule rules that cannot be recreated from here .*Study.open"):
        _ = made.generator  # it was created with arguments
    assert dg.Study.open(others[1], generator=Rules([serial(2)])).kernel(made.best().trial)


def test_another_process_finds_its_code_again(tmp_path: Path, serial: Any) -> None:
    folder = tuned(tmp_path / "studies", [serial()]).folder
    (tmp_path / "serial_rule.py").unlink()  # the study has a copy
    done = deepgen("show", str(folder), "--rules", "--json")
    assert done.returncode == 0, done.stderr
    first = json.loads(done.stdout)["rules"][0]
    assert (first["rule"], first["chosen"], first["sketches"]) == ("Serial", True, ["serial"])
    done = deepgen("show", str(folder), "--check-passes", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["check_passes"]["wrong"] is None
    expected = json.loads(deepgen("show", str(folder), "--cost", "--json").stdout)["cost"]
    assert expected["seconds"] > 0 and expected["measured"] > 0 and expected["phases"][0]["beside"]
    done = deepgen("show", str(folder), "--cost")
    assert "arithmetic" in done.stdout and "from memory" in done.stdout and "measured" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    done = deepgen("bundle", "pack", str(folder), "-o", str(tmp_path / "bundle.tar.gz"), "--trials", "2")
    assert done.returncode == 0, done.stderr
    (folder / "code" / "serial_rule.py").write_text(CODE + "\n# changed")
    done = deepgen("show", str(folder), "--rules")
    assert done.returncode == 2 and "has changed since the study was started" in done.stderr


def test_kernels_are_compared_where_a_rules_text_changed(tmp_path: Path, serial: Any) -> None:
    study = tuned(tmp_path / "studies", [serial()])
    path = tmp_path / "serial_rule.py"
    path.write_text(CODE + "\n# the same kernels")
    assert tuned(tmp_path / "studies", [serial()]).folder == study.folder
