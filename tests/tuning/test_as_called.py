"""A winner timed as its users call it: loaded, in a separate process, beside baselines that are called the same way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import deepgen as dg
from deepgen.frontends.cli.result import print_calls
from deepgen.frontends.cli.tune import retest
from deepgen.tuning import as_called
from deepgen.vocabulary import DeepgenError


def test_the_winner_is_called_beside_numpy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words: dict[str, Any] = {"trials": 1, "keep_top": 1, "baselines": False, "out": tmp_path / "studies"}
    study = dg.tune(dg.gemm(64, 64, 64), target="cpu", **words)
    finals = study.finals()
    retest(str(study.folder), as_called=True, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["seconds"] > 0 and told["baselines_lost"] == []
    [numpy] = [row for row in told["baselines"] if row["name"] == "numpy"]
    assert numpy["interval"][0] <= numpy["ratio"] <= numpy["interval"][1]
    print_calls(study, {"seconds": 2e-6, "baselines": [{**numpy, "seconds": 3e-6}], "baselines_lost": []})
    assert "as called\nours     2 us a call\nagainst  numpy: " in capsys.readouterr().out
    assert study.finals() == finals, "nothing in the study changes"


def test_a_winner_that_cannot_be_called_says_why(tmp_path: Path) -> None:
    study = dg.tune(dg.gemm(64, 64, 64), target="sim", trials=1, strategy="random", out=tmp_path / "studies")
    with pytest.raises(DeepgenError, match=r"could not be called: .*sim"):
        as_called.as_called(study)
