"""The parts of reports: facts, charts, Markdown, pictures, and the command line."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hostile_text import HOSTILE
from hypothesis import given
from hypothesis import strategies as st
from long_study import made_up

from deepgen import report
from deepgen.frontends.cli.main import main
from deepgen.report import charts, knob_charts, trials
from deepgen.report.facts import facts_of, facts_of_several
from deepgen.report.markdown import markdown
from deepgen.targets import resolve
from deepgen.tuning import Study
from deepgen.tuning.study.journal import FILE, Journal
from deepgen.vocabulary import BadInput, DeepgenError

CELLS = st.one_of(st.none(), st.integers(), st.text(max_size=3), st.floats(allow_nan=False))


def test_a_devices_rates_are_words(sim: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim, "target", resolve("cuda:sm_90a"))
    versions = facts_of(sim)["versions"]
    assert versions["vector peaks"].startswith("f64 33500.0, f32 66900.0, ")
    assert versions["features"].startswith("dp4a half2 ")


def test_facts_are_plain_json_and_agree_with_the_summary(sim: Study) -> None:
    facts = facts_of(sim)
    assert json.loads(json.dumps(facts, allow_nan=False)) == json.loads(json.dumps(facts))
    summary: Any = sim.summary()
    assert facts["winner"]["trial"] == summary["winner"]["trial"]
    assert facts["winner"]["low"] <= facts["winner"]["seconds"] <= facts["winner"]["high"]
    shown = {row["trial"]: row for row in trials.unpacked(facts["trials"])}[facts["winner"]["trial"]]
    assert shown["timed"] == "finals", "one time for the winner in all charts"
    assert shown["time"] == pytest.approx(facts["winner"]["seconds"] * facts["unit"]["scale"], rel=1e-4)
    assert f"datum.trial === {facts['winner']['trial']}" in str(knob_charts.parallel(facts).to_dict(validate=False))
    assert {"compiler", "numpy", "python"} <= facts["versions"].keys()
    assert not any("_" in name for name in facts["versions"]), "words, not names of fields"
    assert not any("[" in value for value in facts["versions"].values()), "words, not Python's lists"
    assert "search" in facts["time"]["phases"], "shorter ones are left out"
    began = next(row for row in facts["finalists"] if row["default"])
    assert facts["ratios"][0]["seconds"] == began["seconds"], "the default has a time, too"
    assert {one["verdict"]: one["count"] for one in facts["verdicts"]} == summary["trials"]
    assert len(trials.unpacked(facts["trials"])) == facts["ended"] == 60
    assert sum(facts["time"]["parts"].values()) == pytest.approx(facts["time"]["total"], abs=0.01)
    assert len(facts["pair"]) == 2


def test_every_state_has_its_word(sim: Study, failed: Study, empty: Study, h200: Study) -> None:
    states = [facts_of(study)["state"] for study in (sim, failed, empty, h200)]
    assert states == ["finished", "failed", "empty", "recorded"]
    with Journal(empty.folder, write=True):
        running = facts_of(empty)
    assert running["state"] == "running" and running["state_words"].startswith("running as process ")


def test_the_command_makes_the_same_study(sim: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    command = facts_of(sim)["reproduce"]["command"]
    monkeypatch.chdir(sim.folder.parent.parent)
    before = sorted(sim.folder.parent.iterdir())
    words = shlex.split(command)
    assert words[:2] == ["deepgen", "tune"]
    assert main([*words[1:], "--out", str(sim.folder.parent), "--json"]) == 0
    assert sorted(sim.folder.parent.iterdir()) == before  # the finished study was found


def test_what_no_command_line_says_has_no_command(h200: Study, tmp_path: Path) -> None:
    assert facts_of(h200)["reproduce"]["command"] is None


def test_charts_in_notebooks(sim: Study, empty: Study) -> None:
    pytest.importorskip("altair")
    plot = sim.plot
    made = [plot.history(over="time"), plot.roofline(), plot.importance(), plot.knob("BLOCK_M"), plot.heatmap()]
    made += [plot.heatmap("STAGES", "SWIZZLE"), plot.parallel(), plot.verdicts(), plot.time(), plot.ratios()]
    for chart in made:
        assert chart.to_dict()["$schema"].endswith(".json")  # valid and complete
    assert len(plot.history().to_dict()["datasets"]["trials"]) == 60
    with pytest.raises(BadInput, match="knob 'BLOCK_Q' does not vary"):
        plot.knob("BLOCK_Q")
    with pytest.raises(BadInput, match="over is 'days'"):
        plot.history(over="days")
    with pytest.raises(DeepgenError, match="too little data"):
        empty.plot.history()


def test_charts_need_a_library(sim: Study, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(charts, "_LIBRARIES", {"no_such_module": "altair"})
    assert main(["report", str(sim.folder)]) == 1
    err = capfd.readouterr().err
    assert "altair is missing" in err and "[view]" in err
    assert main(["report", str(sim.folder), "--markdown"]) == 0  # text needs none


def test_markdown_for_a_pull_request(sim: Study, hostile: Study, cluster_run: Path, capfd: Any) -> None:
    assert main(["report", str(sim.folder), "--markdown"]) == 0
    text = capfd.readouterr().out
    assert text.startswith("## gemm f32 nn 64x64x64 on sim") and "| the default | " in text
    assert "99% interval" in text and "deepgen tune gemm" in text
    told = markdown(facts_of(hostile))
    assert "<script" not in told.replace("\\<script", "") and "| `" not in told
    assert main(["report", str(cluster_run), "--markdown"]) == 0
    assert len([line for line in capfd.readouterr().out.splitlines() if line.startswith("| gemm")]) == 2


def test_pictures_for_papers(cluster_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("vl_convert")
    page, folder = tmp_path / "report.html", tmp_path / "charts"
    assert main(["report", str(cluster_run), "-o", str(page), "--png", str(folder), "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["bytes"] == page.stat().st_size
    assert [Path(name).name for name in told["png"]] == ["ratios.png"]
    assert (folder / "ratios.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["nowhere"], 2, "no study 'nowhere'"),
        (["STUDY", "-o", "no/such/folder/report.html"], 2, "cannot be written"),
        (["STUDY", "--markdown", "--json"], 2, "cannot both go to stdout"),
    ],
)
def test_refusals(sim: Study, capfd: Any, argv: list[str], code: int, message: str) -> None:
    assert main(["report", *(str(sim.folder) if word == "STUDY" else word for word in argv)]) == code
    assert message in capfd.readouterr().err


def test_one_broken_study_does_not_hide_the_others(sim: Study, tmp_path: Path, capfd: Any) -> None:
    shutil.copytree(sim.folder, tmp_path / "fine")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / FILE).write_text("no journal")
    facts = facts_of_several(sorted(tmp_path.iterdir()), "two")
    assert [one["name"] for one in facts["studies"]] == ["fine"]
    assert len(facts["unreadable"]) == 1 and "broken" in facts["unreadable"][0]
    assert main(["report", str(tmp_path / "broken")]) == 1
    assert "broken" in capfd.readouterr().err


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_texts_can_be_read_on_their_ground(scheme: int) -> None:
    style = (Path(report.__file__).parent / "page.css").read_text()
    block = re.findall(r":root \{(.*?)\}", style, re.DOTALL)[scheme]
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", block))
    pairs = [(ink, ground) for ink in ("ink", "quiet", "link") for ground in ("paper", "panel")]
    for ink, ground in (*pairs, ("warn", "warn-panel"), ("warn", "paper"), ("ink", "warn-panel")):
        assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)


def contrast(first: str, second: str) -> float:
    """As defined by the Web Content Accessibility Guidelines."""

    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(first), light(second)))
    return (high + 0.05) / (low + 0.05)


def test_a_recording_becomes_a_study_once(h200: Study, home: Path, capfd: Any) -> None:
    assert {t.measurement.conditions["temperature.gpu"] for t in h200.trials()} == {"29"}
    assert "recorded on NVIDIA H200" in h200.notes()[0][1]
    argv = ["import", str(home / "h200.json"), "--as-study", "-o", str(home / "h200")]
    assert main([*argv, "--target", "cuda:h200"]) == 2 and "exists" in capfd.readouterr().err
    assert main(argv) == 2 and "--target cuda:h200" in capfd.readouterr().err
    assert main(["resume", str(h200.folder)]) == 2
    assert "recorded" in capfd.readouterr().err


def test_many_trials_are_thinned_and_the_fastest_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "SHOWN", 50)
    study = made_up(120, tmp_path)
    facts = facts_of(study)
    rows = trials.unpacked(facts["trials"])
    shown = [row for row in rows if row["shown"]]
    assert facts["thinned"] and (len(rows), len(shown)) == (120, 50)
    assert min(row["time"] for row in shown if row["time"]) == pytest.approx(facts["best_time"], rel=1e-5)
    assert facts["events"][0]["name"] == "event.l2_miss"
    few = trials.kept(study.rows(), 60)
    assert len(few) == 60 and [row["trial"] for row in few] == sorted(row["trial"] for row in few)


@pytest.mark.parametrize("about", ["[]", '"toolchain"', "{}", "{", '{"toolchain": "gcc 13"}'])
def test_a_damaged_winner_leaves_the_report_whole(about: str, tmp_path: Path) -> None:
    study = made_up(3, tmp_path)
    (study.folder / "winner").mkdir(exist_ok=True)
    (study.folder / "winner" / "about.json").write_text(about)
    assert facts_of(study)["versions"].get("compiler") == ("gcc 13" if "gcc" in about else None)


@given(st.lists(st.fixed_dictionaries({"a": CELLS, "b": CELLS}), max_size=12))
def test_packed_rows_are_the_same_rows(rows: list[dict[str, Any]]) -> None:
    found = trials.unpacked(trials.packed(rows))
    assert [(repr(row["a"]), repr(row["b"])) for row in found] == [(repr(row["a"]), repr(row["b"])) for row in rows]


def test_time_between_runs_is_left_out() -> None:
    at, breaks = trials.elapsed([10.0, 12.0, 11.0, 90_000.0], 8.0)
    assert (at, breaks) == ([2.0, 4.0, 3.0, 5.0], 1)
    assert trials.elapsed([], None) == ([], 0)


@pytest.mark.parametrize(("seconds", "name"), [(2.0, "s"), (0.9, "ms"), (2e-6, "us"), (2e-10, "ns")])
def test_the_unit_suits_the_fastest(seconds: float, name: str) -> None:
    assert trials.Unit.of([seconds, 10.0]).name == name


def test_hostile_names_reach_no_expression(hostile: Study) -> None:
    pytest.importorskip("altair")
    facts = facts_of(hostile)
    expressions: list[str] = []

    def look(value: Any) -> None:
        if isinstance(value, dict):
            expressions.extend(str(value[key]) for key in ("calculate", "filter", "expr", "test") if key in value)
            for inner in value.values():
                look(inner)
        elif isinstance(value, list):
            for inner in value:
                look(inner)

    for make in (charts.history, knob_charts.parallel, charts.roofline, charts.verdicts):
        drawn: Callable[..., Any] = make
        look(drawn(facts).to_dict(validate=False))
    look(knob_charts.knob(facts, "k0").to_dict(validate=False))
    assert expressions and not any(HOSTILE[:9] in text or "datum['x']" in text for text in expressions)
