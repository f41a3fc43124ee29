"""`top`, `show`, `status`, `clean`, and the forms of a STUDY argument."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from deepgen import settings, targets
from deepgen.frontends.cli.studies import check_machine
from deepgen.operators import gemm
from deepgen.space import Space
from deepgen.tuning import Study
from deepgen.tuning.study.journal import FILE
from deepgen.tuning.study.rows import keep
from deepgen.vocabulary import DeepgenError, folders


@pytest.fixture
def study(deepgen: Callable, project: Path) -> Study:
    said = deepgen("tune", "gemm", "MNK=64", "--target", "sim:faults=0.2", "t=15", "--json")
    return Study.open(said.json()["study"])


def _other(deepgen: Callable) -> str:
    return deepgen("tune", "gemm", "MNK=32", "--target", "sim", "t=3", "--json").json()["study"]


def test_a_study_is_named_by_folder_by_its_parent_or_by_name(deepgen: Callable, study: Study) -> None:
    for word in (str(study.folder), f"deepgen-studies/{study.folder.name}", "deepgen-studies", study.folder.name):
        said = deepgen("top", word, "--json")
        assert said.code == 0
        assert Path(said.json()["study"]).resolve() == study.folder.resolve()


def test_a_family_without_an_estimate_has_no_cost_to_show(deepgen: Callable, study: Study) -> None:
    said = deepgen("show", str(study.folder), "--cost")
    assert said.code == 2 and "has no cost model" in said.err


@pytest.mark.slow
def test_a_study_keeps_its_trials_under_another_name(deepgen: Callable, project: Path, study: Study) -> None:
    renamed = study.folder.rename(project / "mine")
    before = Study.open(renamed).trials()
    said = deepgen("resume", "mine", "--trials", "17", "--json").json()
    assert said["study"] == "mine" and len(Study.open(renamed).trials()) == 17
    assert Study.open(renamed).trials()[:15] == before
    assert deepgen("bundle", "pack", "mine", "--trials", "19", "--json").json()["study"] == "mine"
    assert list((project / "deepgen-studies").iterdir()) == []


def test_a_study_whose_space_has_changed_is_read_but_not_gone_on_with(deepgen: Callable, study: Study) -> None:
    with contextlib.closing(sqlite3.connect(study.folder / FILE)) as journal, journal:
        keep(journal, "study", {**study.definition, "space": "another"})
    said = deepgen("resume", study.folder.name, "--trials", "20")
    assert said.code == 1 and "changed since" in said.err and "tune again" in said.err
    assert deepgen("top", study.folder.name, "--json").code == 0
    assert len(study.trials()) == 15


def test_what_could_be_meant_is_listed(deepgen: Callable, study: Study) -> None:
    other = _other(deepgen)
    for word in ("deepgen-studies", "nonsense"):
        said = deepgen("top", word)
        assert said.code == 2
        assert study.folder.name in said.err
        assert Path(other).name in said.err


def test_a_study_is_meant_by_how_its_name_begins_or_as_the_last_one(deepgen: Callable, study: Study) -> None:
    assert deepgen("top", study.folder.name[:-3], "--json").json()["study"].endswith(study.folder.name)
    other = _other(deepgen)
    assert deepgen("top", "last", "--json").json()["study"].endswith(Path(other).name)
    both = deepgen("top", study.folder.name[:4])
    assert both.code == 2 and "2 studies in deepgen-studies begin with" in both.err and study.folder.name in both.err


def test_top_shows_of_other_configs_what_differs(deepgen: Callable, study: Study) -> None:
    first, *others = [row["config"] for row in deepgen("top", study.folder.name, "-k", "3", "--json").json()["top"]]
    words = deepgen("top", study.folder.name, "-k", "3").out.replace(",", " ").split()
    wanted = Counter(f"{k}={v}" for k, v in first.items())
    wanted += Counter(f"{k}={v}" for other in others for k, v in other.items() if v != first.get(k))
    assert Counter(word for word in words if re.fullmatch(r"[A-Z_0-9]+=.*", word)) == wanted


def test_top_tells_the_fastest_first(deepgen: Callable, study: Study) -> None:
    rows = deepgen("top", study.folder.name, "-k", "5", "--json").json()["top"]
    assert len(rows) == 5
    assert rows[0]["trial"] == study.best().trial.id
    order = [(row["finals"] is None, (row["finals"] or row)["seconds"]) for row in rows[1:]]
    assert order == sorted(order), "finalists by their time in the finals, then the others by theirs in the search"
    said = deepgen("top", study.folder.name)
    assert "GFLOP/s" in said.out
    assert max(map(len, said.out.splitlines())) <= 80


def test_top_can_be_kept_in_a_file(deepgen: Callable, project: Path, study: Study) -> None:
    said = deepgen("top", study.folder.name, "--save", "top.json", "--json")
    assert json.loads((project / "top.json").read_text()) == said.json()
    assert deepgen("top", study.folder.name, "--save", "no/such/top.json").code == 2


def test_winners_become_a_space_of_exactly_those_points(deepgen: Callable, project: Path, study: Study) -> None:
    assert deepgen("export", study.folder.name, "--as-space", "--top", "3", "-o", "space.json").code == 0
    space = Space.from_json(json.loads((project / "space.json").read_text()))
    assert space.count() == 3
    assert space.contains(dict(study.best().trial.config))


def test_winners_become_a_config_that_can_be_tuned(deepgen: Callable, project: Path, study: Study) -> None:
    assert deepgen("export", study.folder.name, "--as-config", "--top", "1", "-o", "next.json").code == 0
    found = deepgen("tune", "next.json", "t=3", "--json")
    assert found.code == 2  # words cannot follow a file
    found = deepgen("tune", "next.json", "--trials", "4", "--out", "next", "--json").json()
    knobs = json.loads((project / "next.json").read_text())["knobs"]
    assert all(trial.config[name] in knobs[name] for trial in Study.open(found["study"]).trials() for name in knobs)


def test_a_report_that_was_not_named_is_not_written_through_a_link(
    deepgen: Callable, project: Path, study: Study
) -> None:
    (mine := project.parent / "mine").write_text("years of work")
    (project / "report.html").symlink_to(mine)
    said = deepgen("report", study.folder.name)
    assert said.code == 2 and "report.html is a link" in said.err and mine.read_text() == "years of work"


def test_retest_measures_the_best_again_and_tries_nothing_new(deepgen: Callable, study: Study) -> None:
    before = study.trials()
    found = deepgen("retest", study.folder.name, "--top", "3", "--json").json()
    assert found["winner"]["config"] in [dict(trial.config) for trial in before]
    assert study.trials() == before
    finals = study.finals()
    assert finals is not None and finals.retest


def test_show_tells_the_study_as_tune_did(deepgen: Callable, study: Study) -> None:
    said = deepgen("show", study.folder.name)
    assert said.code == 0
    assert "winner" in said.out
    assert study.folder.name in said.out
    assert deepgen("show", study.folder.name, "--json").json()["winner"] == study.summary()["winner"]


def test_show_tells_a_trial_good_or_bad(deepgen: Callable, study: Study) -> None:
    for trial in study.trials():
        said = deepgen("show", study.folder.name, "--trial", str(trial.id))
        assert said.code == 0
        assert str(trial.measurement.verdict) in said.out
        assert max(map(len, said.out.splitlines())) <= 80
    found = deepgen("show", study.folder.name, "--trial", "2", "--json").json()
    assert (found["trial"], found["config"]) == (2, dict(study.trial(2).config))


def test_show_gives_source_and_assembly(deepgen: Callable, study: Study) -> None:
    best = study.best()
    source = deepgen("show", study.folder.name, "--source")
    assert source.out == best.kernel.sources[0].text + "\n"
    assert deepgen("show", study.folder.name, "--asm").out.strip()
    both = deepgen("show", study.folder.name, "--trial", str(best.trial.id), "--source", "--asm", "--json").json()
    assert both["source"] == best.kernel.sources[0].text
    assert both["asm"]


def test_a_trial_that_is_not_there_is_bad_input(deepgen: Callable, study: Study) -> None:
    said = deepgen("show", study.folder.name, "--trial", "999")
    assert said.code == 2
    assert "999" in said.err


def test_status_tells_state_trials_and_best(deepgen: Callable, project: Path, study: Study) -> None:
    (row,) = deepgen("status", "--json").json()["studies"]
    assert (row["state"], row["pid"], row["budget"]) == ("finished", None, 15)
    assert sum(row["trials"].values()) == 15
    assert row["best"]["gflops"] > 0
    text = deepgen("status", study.folder.name)
    assert "finished" in text.out
    assert max(map(len, text.out.splitlines())) <= 80


def test_status_without_studies(deepgen: Callable) -> None:
    said = deepgen("status")
    assert (said.code, said.out) == (0, "no studies in deepgen-studies\n")
    assert deepgen("status", "--json").json()["studies"] == []


def test_one_broken_study_does_not_hide_the_others(deepgen: Callable, project: Path, study: Study) -> None:
    broken = project / "deepgen-studies" / "broken"
    broken.mkdir()
    (broken / "journal.sqlite").write_text("this is no database")
    states = {Path(row["study"]).name: row["state"] for row in deepgen("status", "--json").json()["studies"]}
    assert states == {"broken": "unreadable", study.folder.name: "finished"}
    said = deepgen("status")
    assert said.code == 0
    assert "broken" in said.out
    assert deepgen("top", "broken").code == 1


def test_stop_says_when_nothing_runs(deepgen: Callable, study: Study) -> None:
    said = deepgen("stop", study.folder.name)
    assert said.code == 1
    assert "is not running" in said.err


def test_clean_deletes_only_when_told(deepgen: Callable, project: Path, study: Study) -> None:
    (project / "deepgen.toml").write_text('cache = "cache"\n')
    settings.allow(project / "deepgen.toml")
    deepgen("build", "gemm", "MNK=8", "--target", "sim", "-o", "out")
    (project / "cache" / "mine.txt").write_text("not deepgen's")
    plan = deepgen("clean", "--json").json()
    assert [(item["kind"], item["bytes"] > 0) for item in plan["items"]] == [("cache", True)]
    assert plan["deleted"] is False
    assert deepgen("clean", "--json").json() == plan
    said = deepgen("clean", "--yes")
    assert "freed" in said.out
    assert deepgen("clean", "--json").json()["items"] == []
    assert (project / "cache" / "mine.txt").exists()
    assert study.folder.exists()


def test_clean_deletes_studies_by_name_or_all(deepgen: Callable, project: Path, study: Study) -> None:
    other = Path(_other(deepgen))
    assert "would be freed" in deepgen("clean", "--studies").out
    assert deepgen("clean", study.folder.name, "--yes").code == 0
    assert (study.folder.exists(), other.exists()) == (False, True)
    assert deepgen("clean", "--studies", "--yes").code == 0
    assert not other.exists()
    assert deepgen("clean", "--studies").out == "there is nothing to delete\n"


def test_clean_removes_a_link_and_not_what_it_leads_to(deepgen: Callable, project: Path, study: Study) -> None:
    mine = project.parent / "mine"
    shutil.copytree(study.folder, mine)
    links = [project / "link", project / "deepgen-studies" / "link"]
    for link, arguments in zip(links, (["link"], ["--studies"]), strict=True):
        link.symlink_to(mine)
        plan = deepgen("clean", *arguments, "--json").json()
        assert all(item["bytes"] < 1000 for item in plan["items"] if item["path"].endswith("link")), "the link's own"
        assert deepgen("clean", *arguments, "--yes").code == 0
        assert not link.is_symlink() and (mine / FILE).exists()
    assert not study.folder.exists()


def test_clean_follows_no_link_in_a_cache(deepgen: Callable, project: Path) -> None:
    mine, cache, key = project.parent / "mine", project / "cache", "ab" + 30 * "0"
    for name in (key, "work/old", "go/src"):
        (mine / name).mkdir(parents=True)
        (mine / name / "entry.json").write_text("{}")
    cache.mkdir()
    os.utime(mine / "work" / "old", (0, 0))
    (project / "deepgen.toml").write_text('cache = "cache"\n')
    settings.allow(project / "deepgen.toml")
    (cache / "ab").symlink_to(mine)
    (cache / "cd").mkdir()
    (cache / "cd" / key.replace("ab", "cd")).symlink_to(mine / key)
    (cache / "work").symlink_to(mine / "work")
    (cache / "go").mkdir()
    (cache / "go" / "mine").mkdir()  # a folder that existed before it became a cache
    assert deepgen("clean", "--cache", "--yes").code == 0
    assert len(list(mine.rglob("entry.json"))) == 3
    assert (cache / "go" / "mine").exists() and not list((cache / "cd").iterdir())


def test_a_winner_that_is_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("")
    (tmp_path / "winner").symlink_to(tmp_path / "mine")
    folders.remove_tree(tmp_path / "winner")
    assert (tmp_path / "mine" / "file").exists() and not (tmp_path / "winner").is_symlink()


def test_a_study_of_another_machine_is_not_gone_on_with(project: Path) -> None:
    operator, here = gemm(8, 8, 8), targets.resolve("x86:avx2")
    for cores, refused in ((here.cores, False), (here.cores + 1, True)):
        target = replace(here, cores=cores)
        definition = {"operator": operator.to_json(), "target": target.to_json()}
        with pytest.raises(DeepgenError, match="this machine") if refused else nullcontext():
            check_machine(Study(project, definition))
