"""`deepgen analyze` on a study: text, JSON and plots."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import deepgen as dg
from deepgen.analysis import analyze, plots
from deepgen.cli.main import main
from deepgen.tuning import Study
from deepgen.vocabulary import BadInput


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    out = tmp_path_factory.mktemp("studies")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(out / "config"))  # where the key is that signs the winner
        request = {"strategy": "random", "trials": 60, "keep_top": 1, "out": out}
        return dg.tune(dg.gemm(64, 64, 64), target="sim", **request)


def test_it_tells_what_explains_the_time(study: Study, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(study.folder)]) == 0
    text = capfd.readouterr().out
    assert "trials   60 correct ones of 60" in text and "explains" in text and "derived.threads" in text
    assert max(map(len, text.splitlines()[1:])) <= 80  # the first line is the study's folder
    assert main(["analyze", str(study.folder), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["important_knobs"][0] in found["summary"]
    assert {one["name"] for one in found["relations"]} >= {*found["findings"], "derived.threads"}


def test_too_few_trials_and_a_bad_threshold(tmp_path: Path, study: Study, capfd: pytest.CaptureFixture[str]) -> None:
    few = dg.tune(dg.gemm(32, 32, 32), target="sim", trials=3, keep_top=1, baselines=False, out=tmp_path)
    assert main(["analyze", str(few.folder)]) == 1
    assert "3 correct trials are too few to analyze" in capfd.readouterr().err
    assert main(["analyze", str(study.folder), "--threshold", "1.5"]) == 2


def test_plots_need_a_library(study: Study, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(plots, "_LIBRARIES", {"no_such_module": "vl-convert-python"})
    assert main(["analyze", str(study.folder), "--plots", "here"]) == 1
    err = capfd.readouterr().err
    assert "vl-convert-python is missing" in err and "[view]" in err


def test_plots_are_svg_and_png(tmp_path: Path) -> None:
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(60):
        block = int(rng.choice([16, 32, 64]))
        misses = float(rng.lognormal(8.0, 1.0))
        seconds = 1e-3 * float(block**-0.5 * misses**0.3 * np.exp(rng.normal(0.0, 0.05)))
        rows.append({"verdict": "correct", "seconds": seconds, "knob.BLOCK": block, "event.l2_miss": misses})
    files = plots.draw(analyze(rows), rows, tmp_path / "plots")
    assert [path.name for path in files] == [
        "correlations.svg", "correlations.png", "knobs.svg", "knobs.png", "findings.svg", "findings.png",
    ]  # fmt: skip
    assert all(path.read_bytes()[:4] in (b"<svg", b"\x89PNG") for path in files)
    assert "L2 misses" in files[0].read_text()
    (tmp_path / "taken").touch()
    with pytest.raises(BadInput, match="cannot be written to"):
        plots.draw(analyze(rows), rows, tmp_path / "taken")
