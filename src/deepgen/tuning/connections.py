"""Connections to journals, and which of them this process has open.

A process that closes a file loses all locks that it has on it, SQLite's too. So a journal is opened beside SQLite only
while nothing here holds it.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from pathlib import Path

from deepgen.tuning.pages import PAGE, is_sqlite

_HELD: Counter[str] = Counter()  # journals by their paths: how often this process has them open
_HOLDING = threading.Lock()


def hold(path: Path) -> None:
    """From now on this process has the journal open once more."""
    with _HOLDING:
        _HELD[str(path.resolve())] += 1


def hold_if_sound(path: Path) -> bool:
    """Whether the file begins as a journal does; it is held either way. One that is held was looked at before."""
    key = str(path.resolve())
    with _HOLDING:
        good = _HELD[key] > 0 or is_sqlite(path)
        _HELD[key] += 1
    return good


def release(path: Path, times: int) -> None:
    with _HOLDING:
        _HELD[str(path.resolve())] -= times


def _decoded(text: bytes) -> str:
    return text.decode(errors="backslashreplace")  # a damaged text is known by its row's seal


def connect_to_write(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=30.0, check_same_thread=False)
    db.text_factory = _decoded
    db.execute(f"PRAGMA page_size = {PAGE}")
    db.execute("PRAGMA journal_mode = WAL")
    # FULL: a commit has reached the disk when it returns, also when the machine loses power.
    db.execute("PRAGMA synchronous = FULL")
    return db


def connect_to_read(path: Path, still: bool) -> sqlite3.Connection:
    """`still`: nobody writes it, so that it needs no locks and no files beside it, which take most of a short look."""
    where = path.absolute().as_uri()
    if not still:
        db = sqlite3.connect(f"{where}?mode=ro", uri=True, timeout=30.0, check_same_thread=False)
        db.text_factory = _decoded
        try:
            db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
            return db
        except sqlite3.OperationalError:
            # WAL needs a shared-memory file beside the journal, which a read-only folder refuses; a journal that
            # nobody can write may be read as it lies.
            db.close()
    db = sqlite3.connect(f"{where}?immutable=1", uri=True, check_same_thread=False)
    db.text_factory = _decoded
    return db
