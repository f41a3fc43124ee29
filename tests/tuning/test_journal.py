"""The journal: what was written survives anything, and no reader can damage it."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from deepgen.tuning.study.journal import FILE, Journal, JournalError, holder
from deepgen.tuning.study.rows import FORMAT, FORMAT_KEY, Proposal, keep
from deepgen.vocabulary import DeepgenError, Measurement, Trial, Verdict
from deepgen.vocabulary.measurement import IMPOSSIBLE


def trial(number: int, seconds: float | None = 1.0, rank: int | None = None) -> Trial:
    verdict = Verdict.CORRECT if seconds else Verdict.CRASHED
    measured = Measurement(verdict, samples=(seconds,) if seconds else ())
    return Trial(number, number if rank is None else rank, {"A": number}, f"k{number}", measured, {"code_bytes": 10})


def fill(journal: Journal, count: int) -> None:
    journal.define({"operator": "x"})
    journal.ask(0, count, [Proposal(i, i, {"A": i}) for i in range(count)])


def test_a_commit_waits_for_the_disk(tmp_path: Path) -> None:
    """In a separate process, because tests themselves do not wait for the disk."""
    program = (
        "import sys, pathlib; from deepgen.tuning.study.pages import connect_to_write;"
        "print(*connect_to_write(pathlib.Path(sys.argv[1])).execute('PRAGMA synchronous').fetchone())"
    )
    command = [sys.executable, "-c", program, str(tmp_path / FILE)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "2\n", "FULL"


def test_what_was_finished_is_read_back(tmp_path: Path) -> None:
    with Journal(tmp_path, write=True) as journal:
        fill(journal, 4)
        journal.finish([trial(2, 0.5), trial(0, 1.5), trial(1, None)])
    with Journal(tmp_path) as journal:
        assert [t.id for t in journal.trials()] == [0, 1, 2]
        assert journal.trial(2) == trial(2, 0.5)
        assert [t.id for t in journal.best(5)] == [2, 0]
        assert journal.tally().verdicts == {"correct": 2, "crashed": 1}
        assert [p.id for p in journal.proposals(open_only=True)] == [3]
        assert journal.asks()[0].count == 4


def test_a_default_whose_time_did_not_settle_is_right_all_the_same(tmp_path: Path) -> None:
    """On a busy machine it was once left out of the finals, where every other kernel then turned out to be wrong."""
    unstable = Measurement(Verdict.UNSTABLE, "it varied", (1.0, 3.0))
    wrong = Measurement(Verdict.WRONG, "C[0] is 1")
    with Journal(tmp_path, write=True) as journal:
        fill(journal, 3)
        journal.finish([replace(trial(0), measurement=unstable), replace(trial(1), measurement=wrong)])
        found = journal.right(trial(0).rank)
        assert found is not None and found.id == 0 and found.seconds is None
        assert journal.right(trial(1).rank) is None and journal.right(trial(2).rank) is None
        assert journal.best(3) == []
    assert not replace(unstable, conditions={IMPOSSIBLE: True}).right, "a time that is too short to be true"


def test_who_follows_a_journal_reads_only_what_is_new(tmp_path: Path) -> None:
    with Journal(tmp_path, write=True) as journal:
        fill(journal, 5)
        journal.finish([trial(1)])
        journal.finish([trial(0), trial(3, None)])
        assert [t.id for t, _ in journal.ended_from(0)] == [1, 0, 3]  # in order of completion
        assert [t.id for t, _ in journal.ended_from(2)] == [3]
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute("UPDATE trials SET done_at = done_at + 1 WHERE id = 3")
    db.close()
    with Journal(tmp_path) as journal:
        assert [t.id for t, _ in journal.ended_from(2)] == [] and journal.damage


def test_finishing_twice_changes_nothing(tmp_path: Path) -> None:
    with Journal(tmp_path, write=True) as journal:
        fill(journal, 1)
        journal.finish([trial(0, 1.0)])
        journal.finish([trial(0, 9.0)])
        assert journal.trials() == [trial(0, 1.0)]


def test_ranks_beyond_64_bits_survive(tmp_path: Path) -> None:
    huge = 10**40
    with Journal(tmp_path, write=True) as journal:
        journal.define({})
        journal.ask(0, 1, [Proposal(0, huge, {"A": 1})])
        journal.finish([trial(0, 1.0, rank=huge)])
        assert journal.trials()[0].rank == huge == journal.proposals()[0].rank


def test_equal_times_are_ordered_by_rank(tmp_path: Path) -> None:
    with Journal(tmp_path, write=True) as journal:
        journal.define({})
        ranks = [100, 9, 20]
        journal.ask(0, 3, [Proposal(i, r, {"A": i}) for i, r in enumerate(ranks)])
        journal.finish([trial(i, 1.0, rank=r) for i, r in enumerate(ranks)])
        assert [t.rank for t in journal.best(3)] == [9, 20, 100]


def test_a_second_writer_is_refused_and_readers_are_not(tmp_path: Path) -> None:
    with Journal(tmp_path, write=True) as journal:
        fill(journal, 1)
        assert holder(tmp_path) == os.getpid()
        with pytest.raises(JournalError, match=f"process {os.getpid()}"):
            Journal(tmp_path, write=True)
        with Journal(tmp_path) as reader:
            assert reader.proposals()
        journal.finish([trial(0)])
    assert holder(tmp_path) is None
    with Journal(tmp_path, write=True) as journal:
        assert len(journal.trials()) == 1


def test_who_asks_for_the_holder_is_not_in_the_way(tmp_path: Path) -> None:
    """`deepgen status` must not prevent `deepgen tune` from starting."""
    with Journal(tmp_path, write=True) as journal:
        fill(journal, 1)
    over = threading.Event()
    told: set[int | None] = set()

    def ask() -> None:
        while not over.is_set():
            told.add(holder(tmp_path))
            time.sleep(0.001)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for _ in range(300):
            Journal(tmp_path, write=True).close()  # raises if the lock is taken
    finally:
        over.set()
        asking.join()
    assert told <= {None, os.getpid()}
    assert holder(tmp_path) is None


def test_a_folder_without_a_study_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="is not a study"):
        Journal(tmp_path)


def test_a_file_that_is_no_journal_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("these are not the bytes you are looking for" * 100)
    for write in (False, True):
        with pytest.raises(JournalError):
            Journal(tmp_path, write=write)
    assert "bytes you are looking for" in (tmp_path / FILE).read_text()


@pytest.mark.parametrize("other", [FORMAT - 1, FORMAT + 1])
def test_a_journal_of_another_version_is_left_alone(tmp_path: Path, other: int) -> None:
    with Journal(tmp_path, write=True) as journal:
        fill(journal, 1)
    db = sqlite3.connect(tmp_path / FILE)
    keep(db, FORMAT_KEY, other)
    db.execute(f"PRAGMA user_version = {other}")
    db.commit()
    db.close()
    before = (tmp_path / FILE).read_bytes()
    sentence = rf"{tmp_path} was made by another version of deepgen.* format {other}.* again in a new folder"
    for write in (False, True):
        with pytest.raises(JournalError, match=sentence):
            Journal(tmp_path, write=write)
    assert (tmp_path / FILE).read_bytes() == before


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc/self").exists(), reason="needs /proc")
def test_a_folder_that_cannot_be_written_is_an_error_in_words(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(JournalError, match="--out"):
        Journal(blocked / "study", write=True)


def test_a_full_disk_is_an_error_in_words_and_loses_nothing(tmp_path: Path) -> None:
    with Journal(tmp_path, write=True) as journal:
        fill(journal, 2000)
        journal.finish([trial(0)])
        pages = journal._db.execute("PRAGMA page_count").fetchone()[0]
        journal._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(JournalError, match="full; free some space"):
            for i in range(1, 2000):
                journal.finish([trial(i)])
    with Journal(tmp_path, write=True) as journal:
        survived = len(journal.trials())
        assert survived >= 1
        journal.finish([trial(survived)])
        assert len(journal.trials()) == survived + 1


@pytest.mark.parametrize("missing", [1, 1000, 4000, 4096 + 24 + 100])
def test_a_commit_that_a_full_disk_cut_off_is_no_damage(tmp_path: Path, missing: int) -> None:
    """It was never reported, and what the writer had appended before the disk was full is in the log."""
    (later := tmp_path / "later").mkdir()
    with Journal(tmp_path, write=True) as journal:
        fill(journal, 10)
        journal.finish([trial(0)])
        before = (tmp_path / f"{FILE}-wal").stat().st_size
        journal.finish([trial(1)])
        log = (tmp_path / f"{FILE}-wal").read_bytes()
        shutil.copyfile(tmp_path / FILE, later / FILE)
    assert len(log) - missing > before
    (later / f"{FILE}-wal").write_bytes(log[:-missing])
    with Journal(later, write=True) as journal:
        assert [t.id for t in journal.trials()] == [0]
        assert not journal.damage
    assert not list(later.glob("*damaged*"))


WRITER = """
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_journal import trial
from deepgen.tuning.study.journal import Journal
from deepgen.tuning.study.rows import Proposal
journal = Journal(Path(sys.argv[1]), write=True)
journal.define({})
for i in range(100000):
    journal.ask(i, 1, [Proposal(i, i, {"A": i})])
    journal.finish([trial(i)])
    print(i, flush=True)
"""


def test_what_was_reported_survives_sigkill(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path), str(Path(__file__).parent)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    reported = [int(child.stdout.readline()) for _ in range(30)]
    child.send_signal(signal.SIGKILL)
    reported += [int(line) for line in child.stdout.read().splitlines()]
    child.wait()
    with Journal(tmp_path, write=True) as journal:
        kept = [t.id for t in journal.trials()]
    assert set(reported) <= set(kept)
    assert kept == list(range(len(kept)))


# Whether another process can lock the bytes of a file that SQLite holds shared while it has the file open.
TAKER = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)
    except OSError:
        sys.exit(3)
"""
# In another process: closing the file in this one would release the locks.
DAMAGER = """
import sys
with open(sys.argv[1], "r+b") as file:
    at = file.read().index(b"the first note")
    file.seek(at)
    file.write(b"another")
"""


def _open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _is_locked(folder: Path) -> bool:
    done = subprocess.run([sys.executable, "-c", TAKER, str(folder / FILE)], check=False)
    assert done.returncode in (0, 3)
    return done.returncode == 3


def test_looking_at_a_journal_takes_no_lock_from_its_writer(tmp_path: Path) -> None:
    """A process that closes a file loses all its locks on it, so a reader next to a writer must not close the file."""
    study, linked, other = (tmp_path / name for name in ("study", "linked", "other"))
    linked.symlink_to(study)
    other.mkdir()
    (other / FILE).symlink_to(study / FILE)
    with Journal(study, write=True) as journal:
        journal.note("the writer holds it")
        for folder in (study, linked, other, study):
            with suppress(DeepgenError), Journal(folder):
                pass
            assert _is_locked(study)
    assert not _is_locked(study)


def test_salvaging_a_journal_takes_no_lock_from_its_writer(tmp_path: Path) -> None:
    with Journal(tmp_path, write=True) as journal:
        journal.note("the first note")
        journal.note("the second note")
    with Journal(tmp_path, write=True) as journal:
        subprocess.run([sys.executable, "-c", DAMAGER, str(tmp_path / FILE)], check=True)
        before = _open_files()
        for _ in range(5):
            with Journal(tmp_path) as reader:
                reader.check()
                assert "1 of 2 notes cannot be read" in reader.damage_text()
        assert _is_locked(tmp_path)
        assert _open_files() <= before + 1  # open files are reused
    assert _open_files() < before
