"""The journal's tables, and the steps that bring older journals up to date."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from deepgen.tuning.study.arrivals import is_complete
from deepgen.tuning.study.rows import (
    COLUMNS,
    Row,
    Tally,
    done_values,
    final_of,
    outcome_of_1,
    pack,
    seal,
    sealed,
    trial_of,
    unpack,
)
from deepgen.vocabulary import DeepgenError

FORMAT = 2
TALLY, FORMAT_KEY = "tally", "format"

_TABLES = """
CREATE TABLE meta(seq INTEGER PRIMARY KEY, key TEXT NOT NULL, value BLOB NOT NULL, seal BLOB NOT NULL);
CREATE TABLE asks(
    seq INTEGER PRIMARY KEY, told INTEGER NOT NULL, wanted INTEGER NOT NULL,
    first INTEGER NOT NULL, given INTEGER NOT NULL, seal BLOB NOT NULL
);
CREATE TABLE trials(
    id INTEGER PRIMARY KEY, rank TEXT NOT NULL, config BLOB NOT NULL, asked_at REAL NOT NULL,
    asked_seal BLOB NOT NULL, verdict TEXT, seconds REAL, outcome BLOB, done_at REAL, seal BLOB
);
CREATE TABLE finals(seq INTEGER PRIMARY KEY, at REAL NOT NULL, result BLOB NOT NULL, seal BLOB NOT NULL);
CREATE TABLE notes(seq INTEGER PRIMARY KEY, at REAL NOT NULL, text TEXT NOT NULL, seal BLOB NOT NULL);
"""

# From format n to n + 1. Every format from 2 on keeps its number in a sealed row of `meta` too.
STEPS: Mapping[int, str] = {
    # Rows are sealed and packed; a tally says what there is. The index could be damaged apart from its table.
    1: f"""
ALTER TABLE meta RENAME TO meta_1; ALTER TABLE asks RENAME TO asks_1; ALTER TABLE trials RENAME TO trials_1;
ALTER TABLE finals RENAME TO finals_1; ALTER TABLE notes RENAME TO notes_1;
DROP INDEX IF EXISTS trials_by_time;
{_TABLES}
INSERT INTO meta SELECT seq, key, value, seal('meta', seq, key, value)
    FROM (SELECT rowid AS seq, key, packed_1(key, value) AS value FROM meta_1);
INSERT INTO asks SELECT seq, told, wanted, first, given, seal('asks', seq, told, wanted, first, given) FROM asks_1;
INSERT INTO trials SELECT id, rank, config, asked_at, seal('asked', id, rank, config, asked_at),
        verdict, seconds, outcome, done_at,
        CASE WHEN outcome IS NOT NULL THEN seal('done', id, rank, verdict, seconds, outcome, done_at) END
    FROM (SELECT id, rank, packed_1('config', config) AS config, asked_at, verdict, seconds, done_at,
        outcome_1(id, rank, config, kernel_id, verdict, seconds, measurement, build_facts) AS outcome FROM trials_1);
INSERT INTO finals SELECT seq, at, result, seal('finals', seq, at, result)
    FROM (SELECT seq, at, packed_1('finals', result) AS result FROM finals_1);
INSERT INTO notes SELECT seq, at, text, seal('notes', seq, at, text) FROM notes_1;
DROP TABLE meta_1; DROP TABLE asks_1; DROP TABLE trials_1; DROP TABLE finals_1; DROP TABLE notes_1;
"""
}


def version(db: sqlite3.Connection) -> int:
    """The format of a journal; 0 while its tables are not there yet."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def is_new(db: sqlite3.Connection) -> bool:
    """Whether there is nothing in it yet."""
    return version(db) == 0 and db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0] == 0


def create(db: sqlite3.Connection, rows: Mapping[str, Iterable[Row]] | None = None) -> None:
    """Create the tables and insert these rows, in one transaction."""
    with db:
        db.execute("BEGIN")
        for statement in filter(str.strip, _TABLES.split(";")):
            db.execute(statement)
        for table, known in (rows or {}).items():
            marks = ", ".join("?" * (len(COLUMNS[table]) + 1))
            db.executemany(f"INSERT INTO {table} VALUES ({marks})", known)
        _settle(db, FORMAT)


def migrate(db: sqlite3.Connection, folder: Path) -> None:
    """Bring an older journal to today's format, one step at a time, each in one transaction."""
    found = version(db)
    if found > FORMAT:
        raise DeepgenError(f"{folder}: written by a newer deepgen (journal format {found}, this one knows {FORMAT})")
    if found < 1:
        raise DeepgenError(f"{folder}: its journal has format {found}, which no deepgen writes: it is not a study's")
    for name, function in (("packed_1", _packed_1), ("outcome_1", _outcome_1), ("seal", seal)):
        db.create_function(name, -1, function, deterministic=True)
    while found < FORMAT:
        try:
            db.executescript(f"BEGIN; {STEPS[found]};")
            _settle(db, found + 1)
            db.commit()
        except BaseException:
            db.rollback()
            raise
        found += 1


def readable(db: sqlite3.Connection, folder: Path) -> sqlite3.Connection:
    """An older journal for a reader: a copy in memory, brought up to date."""
    copy = sqlite3.connect(":memory:", check_same_thread=False)
    with closing(db):
        db.backup(copy)
    migrate(copy, folder)
    return copy


def keep(db: sqlite3.Connection, key: str, value: object) -> None:
    """Set a key in `meta`, under a higher number than all rows before: of two rows, the newer counts."""
    [last] = db.execute("SELECT COALESCE(MAX(seq), 0) FROM meta").fetchone()
    db.execute("DELETE FROM meta WHERE key = ?", (key,))
    db.execute("INSERT INTO meta VALUES (?, ?, ?, ?)", sealed("meta", last + 1, key, pack(value)))


def _settle(db: sqlite3.Connection, number: int) -> None:
    """Count all rows, and record the format."""
    keep(db, FORMAT_KEY, number)
    counts = {t: db.execute(f"SELECT COUNT(*) FROM {t}").fetchone()[0] for t in ("asks", "trials", "finals", "notes")}
    keys = sorted(key for [key] in db.execute("SELECT key FROM meta") if key != TALLY)
    tally = Tally(tuple(keys), **counts)
    columns = ", ".join([*COLUMNS["trials"], "seal"])
    counted: dict[str, int] = {}
    for verdict, count in db.execute("SELECT verdict, COUNT(*) FROM trials WHERE verdict IS NOT NULL GROUP BY verdict"):
        counted[verdict] = count
    fastest = f"SELECT {columns} FROM trials WHERE verdict = 'correct' ORDER BY seconds, length(rank), rank LIMIT 1"
    best = [Tally().with_trial(trial_of(row)).best for row in db.execute(fastest)]
    told = [unpack(packed) for [packed] in db.execute("SELECT result FROM finals ORDER BY seq DESC")]
    final = next((final_of(finals) for finals in told if is_complete(finals)), None)
    keep(db, TALLY, replace(tally, verdicts=counted, best=best[0] if best else None, final=final).to_json())
    db.execute(f"PRAGMA user_version = {number}")


def _packed_1(key: str, value: str) -> bytes:
    # Two keys of format 1 were plain text.
    return pack(value if key in ("digest", "signature") else json.loads(value))


def _outcome_1(*values: object) -> bytes | None:
    if values[4] is None:
        return None
    done: bytes = done_values(outcome_of_1(*values), 0.0)[2]  # type: ignore[arg-type]
    return done
