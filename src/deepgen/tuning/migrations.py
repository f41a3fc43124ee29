"""The journal's tables, and the steps that bring older journals up to date."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

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


def migrate(db: sqlite3.Connection) -> None:
    """Bring an older journal to today's format, one step at a time, each step whole or not at all."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version > FORMAT:
        raise DeepgenError(f"the journal is of format {version} and this deepgen writes {FORMAT}: use a newer deepgen")
    while version < FORMAT:
        db.executescript(f"BEGIN; {STEPS[version]}; PRAGMA user_version = {version + 1}; COMMIT;")
        version += 1
