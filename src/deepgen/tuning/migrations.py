"""The journal's tables, and the steps that bring older journals up to date."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from deepgen.vocabulary import DeepgenError

FORMAT = 1

SCHEMA = f"""
BEGIN;
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE asks(
    seq INTEGER PRIMARY KEY, told INTEGER NOT NULL, wanted INTEGER NOT NULL,
    first INTEGER NOT NULL, given INTEGER NOT NULL
);
-- A rank may exceed 64 bits, so it is text.
CREATE TABLE trials(
    id INTEGER PRIMARY KEY, rank TEXT NOT NULL, config TEXT NOT NULL, asked_at REAL NOT NULL,
    kernel_id TEXT, verdict TEXT, seconds REAL, measurement TEXT, build_facts TEXT, done_at REAL
);
CREATE INDEX trials_by_time ON trials(verdict, seconds);
CREATE TABLE finals(seq INTEGER PRIMARY KEY, at REAL NOT NULL, result TEXT NOT NULL);
CREATE TABLE notes(seq INTEGER PRIMARY KEY, at REAL NOT NULL, text TEXT NOT NULL);
PRAGMA user_version = {FORMAT};
COMMIT;
"""

# From format n to n + 1.
STEPS: Mapping[int, str] = {}


def version(db: sqlite3.Connection) -> int:
    """The format of a journal; 0 while its tables are not there yet."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def migrate(db: sqlite3.Connection, folder: Path) -> None:
    """Bring an older journal to today's format, one step at a time, each step whole or not at all."""
    found = version(db)
    if found > FORMAT:
        raise DeepgenError(f"{folder}: written by a newer deepgen (journal format {found}, this one knows {FORMAT})")
    while found < FORMAT:
        db.executescript(f"BEGIN; {STEPS[found]}; PRAGMA user_version = {found + 1}; COMMIT;")
        found += 1


def readable(db: sqlite3.Connection, folder: Path) -> sqlite3.Connection:
    """The journal for one who only reads: itself, or a copy in memory where it is of an older format."""
    if version(db) in (0, FORMAT):
        return db
    copy = sqlite3.connect(":memory:", check_same_thread=False)
    with closing(db):
        db.backup(copy)
    migrate(copy, folder)
    return copy
