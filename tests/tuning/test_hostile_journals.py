"""An untrusted journal may hold anything: it is refused with a message, and memory use stays bounded."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Callable
from contextlib import closing, redirect_stderr, redirect_stdout, suppress
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from deepgen.frontends.cli.main import main
from deepgen.tuning import Study
from deepgen.tuning.study import rows
from deepgen.tuning.study.journal import FILE, Journal
from deepgen.vocabulary import DeepgenError

MEGABYTES = 300
LISTS, LETTERS = 8_000_000, 200_000_000  # either takes more than that once it is read


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies")
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        main(["tune", "gemm", "MNK=64", "--target", "sim", "--trials", "6", "--out", str(folder)])
    (path,) = folder.iterdir()
    with closing(sqlite3.connect(path / FILE)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.execute("PRAGMA journal_mode = DELETE")
    return path


@cache
def packed(before: bytes, unit: bytes, many: int, after: bytes) -> bytes:
    packer = zlib.compressobj(9, zdict=rows._USUAL)
    return packer.compress(before + unit * many + after) + packer.flush()


def bomb(many: int = LISTS) -> bytes:
    return packed(b"[", b"[],", many, b"[]]")


def meta(key: str, text: Callable[[], bytes]) -> Callable[[sqlite3.Connection], None]:
    def forge(db: sqlite3.Connection) -> None:
        [number] = db.execute("SELECT seq FROM meta WHERE key = ?", (key,)).fetchone()
        row = rows.sealed("meta", number, key, text())
        db.execute("UPDATE meta SET value = ?, seal = ? WHERE seq = ?", (row[2], row[3], number))

    return forge


def outcomes(text: Callable[[], bytes]) -> Callable[[sqlite3.Connection], None]:
    def forge(db: sqlite3.Connection) -> None:
        for number, rank, verdict, seconds, at in db.execute(
            "SELECT id, rank, verdict, seconds, done_at FROM trials"
        ).fetchall():
            values = (verdict, seconds, text(), at)
            seal = rows.seal("done", number, rank, *values)
            db.execute("UPDATE trials SET outcome = ?, seal = ? WHERE id = ?", (values[2], seal, number))

    return forge


def finals(text: Callable[[], bytes]) -> Callable[[sqlite3.Connection], None]:
    def forge(db: sqlite3.Connection) -> None:
        number, at = db.execute("SELECT seq, at FROM finals").fetchone()
        row = rows.sealed("finals", number, at, text())
        db.execute("UPDATE finals SET result = ?, seal = ?", row[2:])

    return forge


def view(db: sqlite3.Connection) -> None:
    db.execute("DROP TABLE notes")
    db.execute(
        "CREATE VIEW notes AS WITH RECURSIVE n(seq) AS (SELECT 1 UNION ALL SELECT seq + 1 FROM n) "
        "SELECT seq, 0.0 AS at, hex(zeroblob(100000)) AS text, x'00' AS seal FROM n"
    )


def note(db: sqlite3.Connection) -> None:
    db.execute("INSERT INTO notes VALUES (?, ?, ?, ?)", rows.sealed("notes", 1, b"", "text"))


HOSTILE: dict[str, Callable[[sqlite3.Connection], None]] = {
    **{f"{key} of lists": meta(key, bomb) for key in ("tally", "study", "run", "time", "space")},
    "a long text": meta("run", lambda: packed(b'"', b"x", LETTERS, b'"')),
    "outcomes of lists": outcomes(lambda: bomb(1_000_000)),
    "finals of lists": finals(bomb),
    "a view": view,
    "a note that is no text": note,
}
_READ_ALL = """
import resource, sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from deepgen.frontends.cli.main import main
resource.setrlimit(resource.RLIMIT_CPU, (100, 100))
for study in sorted(Path(sys.argv[1]).iterdir()):
    for words in ("status", "top", "show", "export --as-config -o /dev/null", "report -o /dev/null"):
        said = StringIO()
        with redirect_stdout(said), redirect_stderr(said):
            command, *others = words.split()
            main([command, str(study), *others])
        assert "bug in deepgen" not in said.getvalue(), said.getvalue()
[peak] = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(int(peak) >> 10)
"""


@pytest.mark.slow
def test_a_small_journal_never_becomes_large(study: Path, tmp_path: Path) -> None:
    for name, forge in HOSTILE.items():
        forged = shutil.copytree(study, tmp_path / name)
        with closing(sqlite3.connect(forged / FILE)) as db:
            forge(db)
            db.commit()
    done = subprocess.run([sys.executable, "-c", _READ_ALL, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) < MEGABYTES


FORGED_TIMES: list[Any] = [
    3,
    [3],
    [{}],
    [{"total": "x"}],
    [{"total": 1, "started_at": []}],
    [{"total": 1e300}],
    [{"total": 1, "search": None}],
    {},
]


@pytest.mark.parametrize("value", FORGED_TIMES)
def test_what_no_deepgen_wrote_of_times_is_told(study: Path, tmp_path: Path, value: Any) -> None:
    forged = shutil.copytree(study, tmp_path / "study")
    with closing(sqlite3.connect(forged / FILE)) as db:
        rows.keep(db, "time", value)
        db.commit()
    said = StringIO()
    for words in (["status"], ["show"], ["show", "--json"], ["top"], ["report", "--markdown"]):
        with redirect_stdout(said), redirect_stderr(said):
            main([words[0], str(forged), *words[1:]])
    assert "bug in deepgen" not in said.getvalue()
    if value:
        with pytest.raises(DeepgenError, match="contains data that deepgen did not write"):
            Study.open(forged).summary()


def test_damaged_finals_let_nothing_win_that_they_had_rejected(study: Path, tmp_path: Path) -> None:
    harmed = shutil.copytree(study, tmp_path / "study")
    best = Study.open(harmed).best()
    assert best.judged
    with closing(sqlite3.connect(harmed / FILE)) as db:
        [result] = db.execute("SELECT result FROM finals").fetchone()
        db.execute("UPDATE finals SET result = ?", (bytes([result[0], result[1] ^ 1, *result[2:]]),))
        db.commit()
    for _ in range(2):  # first as a reader finds it, then as a writer repairs it
        opened = Study.open(harmed)
        with pytest.raises(DeepgenError, match=r"its finals are damaged.*deepgen retest"):
            opened.best()
        with Journal(harmed, write=True) as journal:
            assert journal.finals() is None and journal.finals_lost
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        assert main(["retest", str(harmed)]) == 0
    assert Study.open(harmed).best().judged


def test_a_kernel_that_no_finals_judged_is_loaded_with_a_warning(study: Path, tmp_path: Path) -> None:
    early = shutil.copytree(study, tmp_path / "study")
    shutil.rmtree(early / "winner")
    with closing(sqlite3.connect(early / FILE)) as db:
        tally = rows.unpack(db.execute("SELECT value FROM meta WHERE key = 'tally'").fetchone()[0])
        db.execute("DELETE FROM finals")
        rows.keep(db, "tally", {**tally, "finals": 0, "final": None})
        db.commit()
    best = Study.open(early).best()
    assert not best.judged
    with pytest.warns(UserWarning, match="no finals were run"), suppress(DeepgenError):  # no code runs on `sim`
        best.load()


ESCAPE = "\x1b]0;title\x07\x1b[2J"


def test_escape_sequences_reach_no_terminal(study: Path, tmp_path: Path) -> None:
    forged = shutil.copytree(study, tmp_path / "study")
    with closing(sqlite3.connect(forged / FILE)) as db:
        for number, rank, verdict, seconds, outcome, at in db.execute(
            "SELECT id, rank, verdict, seconds, outcome, done_at FROM trials"
        ).fetchall():
            data = rows.unpack(outcome)
            data["measurement"]["detail"] = data["kernel_id"] = ESCAPE
            data["measurement"]["conditions"] = {ESCAPE: ESCAPE, "contaminated": ESCAPE}
            data["facts"] = {ESCAPE: 1}
            values = ("wrong" if number else verdict, None if number else seconds, rows.pack(data), at)
            seal = rows.seal("done", number, rank, *values)
            db.execute(
                "UPDATE trials SET verdict = ?, seconds = ?, outcome = ?, seal = ? WHERE id = ?",
                (*values[:3], seal, number),
            )
        definition = rows.unpack(db.execute("SELECT value FROM meta WHERE key = 'study'").fetchone()[0])
        definition["facts"]["description"] = definition["deepgen"] = ESCAPE
        rows.keep(db, "study", definition)
        tally = rows.unpack(db.execute("SELECT value FROM meta WHERE key = 'tally'").fetchone()[0])
        counts = {"correct": 1, "wrong": sum(tally["verdicts"].values()) - 1}
        rows.keep(db, "tally", {**tally, "verdicts": counts})
        db.commit()
    said = StringIO()
    for words in ("status", "top", "show", "show --trial 0", "show --trial 1", "report --markdown", "analyze", "stop"):
        command, *others = words.split()
        with redirect_stdout(said), redirect_stderr(said):
            main([command, str(forged), *others])
    assert "\\x1b]0;title" in said.getvalue(), "it is shown, and harmless"
    assert "\x1b" not in said.getvalue() and "\x07" not in said.getvalue()
    assert "bug in deepgen" not in said.getvalue(), said.getvalue()


@pytest.mark.parametrize("write", [False, True])
def test_a_device_in_place_of_a_journal_is_not_read(tmp_path: Path, write: bool) -> None:
    (tmp_path / FILE).symlink_to("/dev/zero")
    with pytest.raises(DeepgenError, match="is not a study"):
        Journal(tmp_path, write=write)
