"""`deepgen analyze` on a study: text, JSON and plots."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import deepgen as dg
from deepgen.frontends.cli.main import main
from deepgen.report import charts
from deepgen.report.analysis import analyze, rows_of
from deepgen.report.facts import facts_from
from deepgen.report.plots import write_analysis
from deepgen.tuning import Study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    out = tmp_path_factory.mktemp("studies")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(out / "config"))  # where the key that signs the winner is
        request = {"strategy": "random", "trials": 60, "keep_top": 1, "out": out}
        return dg.tune(dg.gemm(64, 64, 64), target="sim", **request)


def test_it_tells_what_explains_the_time(study: Study, capfd: pytest.CaptureFixture[str]) -> None:
    # In these trials a derived value correlates with the time by 0.498.
    assert main(["analyze", str(study.folder), "--threshold", "0.4"]) == 0
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
    monkeypatch.setattr(charts, "_LIBRARIES", {"no_such_module": "vl-convert-python"})
    assert main(["analyze", str(study.folder), "--plots", "here"]) == 1
    err = capfd.readouterr().err
    assert "vl-convert-python is missing" in err and "[view]" in err


def test_plots_are_svg_and_png(study: Study, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    (tmp_path / "taken").touch()
    assert main(["analyze", str(study.folder), "--plots", str(tmp_path / "taken")]) == 2
    assert "cannot be written to" in capfd.readouterr().err
    assert main(["analyze", str(study.folder), "--plots", str(tmp_path / "plots"), "--json"]) == 0
    found = capfd.readouterr().out
    files = [Path(name) for name in json.loads(found)["plots"]]
    assert [path.name for path in files] == [
        "correlations.svg", "correlations.png", "knobs.svg", "knobs.png", "findings.svg", "findings.png",
    ]  # fmt: skip
    assert all(path.read_bytes()[:4] in (b"<svg", b"\x89PNG") for path in files)
    assert json.loads(found)["important_knobs"][0] in files[2].read_text()


def test_plots_name_counted_events_in_words(study: Study, tmp_path: Path) -> None:
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    reading = study.read()
    rows = [
        row if row["seconds"] is None else {**row, "event.l2_miss": 1e9 * row["seconds"]} for row in rows_of(reading)
    ]
    report = analyze(rows)
    files = write_analysis(report, facts_from(reading, rows, report), tmp_path)
    assert "L2 misses" in next(path for path in files if path.name == "correlations.svg").read_text()
