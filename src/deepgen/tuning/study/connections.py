"""Connections to journals, and reads of their bytes that bypass SQLite.

A process that closes a file loses all its locks on it, including SQLite's. So a journal file opened without SQLite is
closed only when nothing in this process has the journal open any more.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import Counter, defaultdict
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from deepgen.tuning.study.pages import PAGE

SYNCHRONOUS = "FULL"  # a commit is on disk when it returns, even if the machine then loses power
_GUARD = threading.Lock()
Key = tuple[int, int]  # identifies a journal
_HELD: Counter[Key] = Counter()  # how often this process has each open
_BESIDE: defaultdict[Key, list[BinaryIO]] = defaultdict(list)  # the files opened without SQLite


def _key(path: Path) -> Key:
    """The inode of the folder that contains a journal: the same for every path, even after the file was replaced."""
    where = os.path.realpath(path) if os.path.islink(path) else path  # noqa: PTH114
    stat = os.stat(os.path.dirname(where))  # noqa: PTH116, PTH120  a thousand studies are looked at
    return stat.st_dev, stat.st_ino


class Hold:
    """Marks a journal as open in this process: from before the first connection to after the last one closes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._key = _key(path)
        self._held = True
        with _GUARD:
            _HELD[self._key] += 1

    def release(self) -> None:
        """May be called more than once."""
        with _GUARD:
            if self._held:
                self._held = False
                _HELD[self._key] -= 1
            if not _HELD[self._key]:
                del _HELD[self._key]
                for file in _BESIDE.pop(self._key, ()):
                    file.close()

    def read(self, most: int = -1) -> bytes:
        """The first bytes of the file, or all. It is opened once, and again if it has been replaced."""
        with _GUARD:
            files = _BESIDE[self._key]
            stat = self._path.stat()
            file = next((file for file in files if os.path.samestat(os.fstat(file.fileno()), stat)), None)
            if file is None:
                file = self._path.open("rb", buffering=0)
                files.append(file)
            file.seek(0)
            return file.read(most)


def _decoded(text: bytes) -> str:
    return text.decode(errors="backslashreplace")  # damaged text is detected by its row's seal


def connect_to_write(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=30.0, check_same_thread=False)
    db.text_factory = _decoded
    db.execute(f"PRAGMA page_size = {PAGE}")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
    return db


def connect_to_read(path: Path, still: bool) -> sqlite3.Connection:
    """`still`: there is no writer, so it is read without locks and without a log, which is several times as fast."""
    where = "file:" + quote(os.fsencode(os.path.abspath(path)))  # noqa: PTH100  a thousand studies are looked at
    if not still:
        db = sqlite3.connect(f"{where}?mode=ro", uri=True, timeout=30.0, check_same_thread=False)
        db.text_factory = _decoded
        try:
            db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
            return db
        except sqlite3.OperationalError:
            # WAL needs a shared-memory file beside the journal, which a read-only folder refuses; a journal that nobody
            # can write may be read as immutable.
            db.close()
    db = sqlite3.connect(f"{where}?immutable=1&mode=ro", uri=True, check_same_thread=False)
    db.text_factory = _decoded
    return db
