"""Damaged journals: damage is reported and remeasured, the rest is kept, and nothing wrong is shown."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from pathlib import Path

import pytest

import deepgen as dg
from deepgen.tuning import search
from deepgen.tuning.study.journal import FILE, Journal, JournalError
from deepgen.tuning.study.rows import FORMAT
from deepgen.vocabulary import DeepgenError

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import damaged_journals as damaged

COUNT = int(os.environ.get("DEEPGEN_DAMAGED_JOURNALS", "16"))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> damaged.Original:
    return damaged.original(tmp_path_factory.mktemp("original"))


@pytest.mark.parametrize("harm", damaged.HARMS)
def test_random_damage_costs_only_what_it_hit(harm: str, original: damaged.Original, tmp_path: Path) -> None:
    for seed in range(max(1, COUNT // len(damaged.HARMS))):
        seen = damaged.one(original, tmp_path, harm, seed, go_on=seed == 0 and not harm.startswith("log"))
        assert not seen.faults, (seed, seen.faults)


@pytest.fixture
def study(original: damaged.Original, tmp_path: Path) -> Path:
    """A copy of the study that may be damaged."""
    return shutil.copytree(original.folder, tmp_path / original.folder.name)


def change(folder: Path, statement: str) -> None:
    db = sqlite3.connect(folder / FILE)
    db.execute(statement)
    db.commit()
    db.close()


def test_a_time_that_was_changed_is_never_told(study: Path) -> None:
    change(study, "UPDATE trials SET seconds = seconds / 2 WHERE id = 7")
    with Journal(study) as journal:
        assert journal.trial(7) is None and len(journal.trials()) == damaged.TRIALS - 1
        assert "trial 7" in journal.damage_text()
    kept = (study / FILE).read_bytes()
    with Journal(study, write=True) as journal:
        assert [p.id for p in journal.proposals(open_only=True)] == [7]
        assert "journal.damaged-1.sqlite" in journal.notes()[-1][1]
    assert (study / "journal.damaged-1.sqlite").read_bytes() == kept
    with Journal(study) as journal:
        assert not journal.damage


def test_rows_that_went_missing_are_missed(study: Path) -> None:
    change(study, "DELETE FROM trials WHERE id = 3")
    with Journal(study) as journal:
        assert len(journal.trials()) == damaged.TRIALS - 1 and journal.damage


@pytest.mark.parametrize("number", [-1, 0, FORMAT + 1, 1 << 20])
def test_a_damaged_format_number_costs_nothing(number: int, study: Path) -> None:
    change(study, f"PRAGMA user_version = {number}")
    for write in (False, True):
        with Journal(study, write=write) as journal:
            assert len(journal.trials()) == damaged.TRIALS


@pytest.mark.parametrize("number", [-1, 0, FORMAT + 1])
def test_a_database_of_another_program_gets_a_sentence(number: int, tmp_path: Path) -> None:
    change(tmp_path, "CREATE TABLE songs(title TEXT)")
    change(tmp_path, f"PRAGMA user_version = {number}")
    before = (tmp_path / FILE).read_bytes()
    for write in (False, True):
        with pytest.raises(DeepgenError, match=r"another program.*new folder"):
            Journal(tmp_path, write=write)
    assert (tmp_path / FILE).read_bytes() == before


def test_a_lost_definition_comes_back_with_the_command(study: Path, original: damaged.Original) -> None:
    change(study, "UPDATE meta SET value = x'00' WHERE key = 'study'")
    change(study, "VACUUM")  # so that no older copy of the page remains
    with pytest.raises(JournalError, match="`deepgen tune` command"):
        dg.Study.open(study)
    again = damaged.tuned(study.parent, original.engine, damaged.TRIALS)
    assert again.folder == study and {t.id: t for t in again.trials()} == original.trials


@pytest.mark.parametrize("strategy", sorted(search.STRATEGIES.own))
def test_a_search_that_was_cut_off_goes_on_and_can_be_repeated(strategy: str, tmp_path: Path) -> None:
    """A trial that was reported before later asks is lost: those asks cannot be repeated, but nothing else is lost."""
    given = {"target": "sim:noise=0.01", "strategy": strategy, "baselines": False, "out": tmp_path}
    engine = dg.LocalEngine(jobs=2, cache=tmp_path / "cache")
    first = dg.tune(dg.gemm(64, 64, 64), trials=30, engine=engine, **given)  # type: ignore[arg-type]
    before = {t.id: t for t in first.trials()}
    change(first.folder, "DELETE FROM trials WHERE id = 4")
    second = dg.tune(dg.gemm(64, 64, 64), trials=40, engine=engine, **given)  # type: ignore[arg-type]
    after = {t.id: t for t in second.trials()}
    assert len(after) == 40 and 4 not in after
    assert all(after[i] == trial for i, trial in before.items() if i != 4)
    assert len({t.rank for t in after.values()} - {before[4].rank}) >= 39
    assert "cannot be repeated" in " ".join(text for _, text in second.notes())
    third = dg.tune(dg.gemm(64, 64, 64), trials=44, engine=engine, **given)  # type: ignore[arg-type]
    assert {t.id: t for t in third.trials() if t.id in after} == after and len(third.trials()) == 44


def test_a_damaged_journal_is_kept_under_a_name_of_its_own(study: Path, tmp_path: Path) -> None:
    """A stranger's study may hold a link for the copy: what it names would be written with the stranger's bytes."""
    for n, end in ((1, ""), (2, "-wal")):
        (study / f"journal.damaged-{n}.sqlite{end}").symlink_to(tmp_path / f"planted{n}")
    change(study, "UPDATE trials SET seconds = seconds / 2 WHERE id = 7")
    kept = (study / FILE).read_bytes()
    with Journal(study, write=True) as journal:
        assert "journal.damaged-3.sqlite" in journal.notes()[-1][1]
    assert (study / "journal.damaged-3.sqlite").read_bytes() == kept
    assert not list(tmp_path.glob("planted*"))


@pytest.mark.parametrize("leads", ["an empty file", "nowhere"])
def test_no_journal_is_written_through_a_link(leads: str, tmp_path: Path) -> None:
    (folder := tmp_path / "study").mkdir()
    mine = tmp_path / "mine"
    if leads == "an empty file":
        mine.touch()
    (folder / FILE).symlink_to(mine)
    with pytest.raises(JournalError, match="is a link"):
        Journal(folder, write=True)
    assert not mine.exists() or mine.read_bytes() == b""
