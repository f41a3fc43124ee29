"""A journal written by any version of deepgen opens in this one; one that is migrated keeps all that it held."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

import deepgen as dg
from deepgen.tuning.reuse import top_rows
from deepgen.tuning.study import migrations
from deepgen.tuning.study.journal import FILE, Journal, JournalError
from deepgen.tuning.study.rows import Proposal
from deepgen.vocabulary import DeepgenError, Measurement, Trial, Verdict

EXAMPLES = sorted((Path(__file__).parent / "journals").glob("format_*.sql"))


def restore(example: Path, folder: Path) -> Path:
    """A study's folder with the stored journal in it."""
    folder.mkdir(exist_ok=True)
    db = sqlite3.connect(folder / FILE)
    db.executescript(example.read_text())
    db.close()
    return folder


def version(folder: Path) -> int:
    db = sqlite3.connect(folder / FILE)
    found = migrations.version(db)
    db.close()
    return found


def test_every_format_up_to_todays_has_its_stored_example() -> None:
    assert [path.stem for path in EXAMPLES] == [f"format_{n}" for n in range(1, migrations.FORMAT + 1)]
    assert set(migrations.STEPS) == set(range(1, migrations.FORMAT))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_a_stored_study_opens_and_tells_its_results(example: Path, tmp_path: Path) -> None:
    study = dg.Study.open(restore(example, tmp_path / "study"))
    assert study.operator == dg.gemm(64, 48, 32)
    assert [t.id for t in study.trials()] == list(range(8))
    assert study.trial(2).measurement.verdict is Verdict.CRASHED
    assert study.best().trial.id == top_rows(study, 3)[0]["trial"] == 5
    assert study.summary()["trials"] == {"correct": 7, "crashed": 1}
    assert study.budget()["trials"] == 8
    assert len(study.notes()) == 1
    assert study.running() is None


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_a_stored_study_can_be_gone_on_with(example: Path, tmp_path: Path) -> None:
    folder = restore(example, tmp_path / "study")
    more = Trial(8, 77, {"BLOCK_M": 8}, "k", Measurement(Verdict.CORRECT, samples=(1e-9,)), {})
    with Journal(folder, write=True) as journal:
        assert [ask.given for ask in journal.asks()] == [2, 2, 2, 2]
        assert not journal.proposals(open_only=True)
        journal.ask(8, 1, [Proposal(8, 77, {"BLOCK_M": 8})])
        journal.finish([more])
    assert version(folder) == migrations.FORMAT
    with Journal(folder) as journal:
        assert journal.trials()[8] == more
        assert journal.best(1) == [more]


@pytest.fixture
def next_format(monkeypatch: pytest.MonkeyPatch) -> int:
    """As if formats had moved on by two since the examples were written."""
    today = migrations.FORMAT
    steps = {
        **migrations.STEPS,
        today: "ALTER TABLE trials ADD COLUMN host TEXT NOT NULL DEFAULT 'here'",
        today + 1: "ALTER TABLE notes RENAME COLUMN text TO words; ALTER TABLE notes RENAME COLUMN words TO text;"
        " UPDATE trials SET host = 'there' WHERE id = 0",
    }
    monkeypatch.setattr(migrations, "STEPS", steps)
    monkeypatch.setattr(migrations, "FORMAT", today + 2)
    return today + 2


def hosts(folder: Path) -> list[str]:
    db = sqlite3.connect(folder / FILE)
    found = [row[0] for row in db.execute("SELECT host FROM trials ORDER BY id")]
    db.close()
    return found


def test_an_older_journal_is_migrated_step_by_step_when_it_is_written(tmp_path: Path, next_format: int) -> None:
    folder = restore(EXAMPLES[0], tmp_path / "study")
    with Journal(folder, write=True) as journal:
        assert len(journal.trials()) == 8
    assert version(folder) == next_format
    assert hosts(folder) == ["there"] + ["here"] * 7


def test_reading_an_older_journal_changes_nothing_in_it(tmp_path: Path, next_format: int) -> None:
    folder = restore(EXAMPLES[0], tmp_path / "study")
    with Journal(folder) as journal:
        assert journal._db.execute("SELECT host FROM trials WHERE id = 0").fetchone() == ("there",)
        assert len(journal.trials()) == 8
    assert version(folder) == 1 < next_format


def test_a_step_that_fails_leaves_the_journal_as_it_was(
    tmp_path: Path, next_format: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = restore(EXAMPLES[0], tmp_path / "study")
    last = {next_format - 1: "UPDATE trials SET host = 'lost'; UPDATE nonsense SET x = 1"}
    monkeypatch.setattr(migrations, "STEPS", {**migrations.STEPS, **last})
    with pytest.raises(JournalError, match="nonsense"):
        Journal(folder, write=True)
    assert version(folder) == 1
    monkeypatch.setattr(migrations, "STEPS", {**migrations.STEPS, next_format - 1: "UPDATE trials SET host = 'kept'"})
    with Journal(folder, write=True) as journal:
        assert len(journal.trials()) == 8
    assert hosts(folder) == ["kept"] * 8


def test_a_journal_of_a_newer_format_is_named_with_both_numbers(
    tmp_path: Path, next_format: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = restore(EXAMPLES[0], tmp_path / "study")
    Journal(folder, write=True).close()
    monkeypatch.setattr(migrations, "FORMAT", next_format - 1)
    for write in (False, True):
        with pytest.raises(DeepgenError, match=f"study: .*newer deepgen.*format {next_format}"):
            Journal(folder, write=write)
