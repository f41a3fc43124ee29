"""The file of a journal: a SQLite file of sealed rows, opened, checked, and salvaged if damaged.

Every row is sealed (`rows.py`), and a tally says how many there are. Everything read is checked against both. If
something is damaged, the intact rows are salvaged (`salvage.py`): for a reader into memory, for a writer into a new
file, and the damaged file is kept beside it.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import IO, Any, TypeVar

from deepgen.tuning.study import lock, pages, rows
from deepgen.tuning.study.rows import COLUMNS, FORMAT, TALLY, Damaged, Row, Tally, Unpacker, is_sound
from deepgen.vocabulary import DeepgenError

FILE = "journal.sqlite"
LOCK = "lock"
_DAMAGED = "it is not a readable journal: restore a copy of the study's folder, or move it away and start again"
_ROW_BYTES, _SLACK = 12, 1 << 20  # least bytes of a row besides its texts; bytes that all rows may have beyond the file
EMPTY = "the journal is empty; delete the folder"
_HINTS = {
    "database or disk is full": "free some space and run the same command again: what was recorded is safe",
    "attempt to write a readonly database": "make the folder writable, or choose another with --out",
}
_BROKEN = (
    "malformed",
    "not a database",
    "unsupported file format",
    "no such column",
    "user-defined function raised",
    *(f"no such table: {table}" for table in COLUMNS),
)

T = TypeVar("T")
F = TypeVar("F", bound="JournalFile")


class JournalError(DeepgenError):
    """The journal cannot be read or written; nothing that it holds was lost."""


class JournalFile:
    """Anyone may read; only the holder of the lock may write."""

    def __init__(self, folder: Path, *, write: bool = False) -> None:
        self.folder = folder
        self.damage: tuple[str, ...] = ()  # the damage found so far, one sentence each
        self._write = write
        self._path = folder / FILE
        self._lock: IO[str] | None = None
        self._unpack = Unpacker(str(folder))
        self._still = False  # whether it is read on the assumption that there is no writer
        self.writer: int | None = None  # the other process that was writing it when it was opened
        regular = os.path.isfile(self._path)  # noqa: PTH113  a thousand studies are looked at
        if not regular and (not write or self._path.exists()):  # a device or a pipe would never end
            raise JournalError(f"{folder} is not a study: it contains no {FILE}")
        if write and self._path.is_symlink():  # it may lead to any of the user's files
            raise JournalError(f"{self._path} is a link: such a study is only read; use another folder with --out")
        if write:
            self._lock = _take_lock(folder)
        else:
            self.writer = holder(folder)
            self._still = self.writer is None and not self._logged()
        self._hold = pages.Hold(self._path)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        if self._write:
            from deepgen.tuning.study import salvage

            salvage.finish_repair(self._path)
        try:
            with self._explained():
                begun = (not self._write or self._path.exists()) and self._connect_reader()
                if begun:
                    self._check_log()
                if self._write:
                    # Check before writing anything: even closing a file after writing changes it.
                    for table in COLUMNS if begun else ():
                        self._read(table)
                    self._connect_writer()
        except Damaged:
            self._look_again()

    def _connect_reader(self) -> bool:
        """Open it for reading. Returns whether it has content."""
        head = self._hold.read(pages.HEAD)
        if not pages.is_sqlite(head):
            raise Damaged("head")
        self._db = pages.connect_to_read(self._path, self._still)
        version = pages.user_version(head) if self._still else rows.version(self._db)
        if version == 0 and rows.is_new(self._db):
            if not self._write:
                raise JournalError(f"{self.folder}: {EMPTY}")
            return False
        if version != FORMAT:
            self._refuse(version)
        if not rows.is_ours(self._db):
            raise Damaged("tables")
        return True

    def _connect_writer(self) -> None:
        if hasattr(self, "_db"):
            self._db.close()
        self._db = pages.connect_to_write(self._path)
        if rows.version(self._db) == 0:
            rows.create(self._db)

    def _refuse(self, version: int) -> None:
        """Report an unexpected format: damage if the rows have the current one, otherwise another version's file."""
        from deepgen.tuning.study import salvage

        if salvage.format_of(salvage.JournalBytes.of(self._path, self._hold)) == FORMAT:
            raise Damaged("format")
        raise JournalError(
            f"{self.folder} was made by another version of deepgen, or by another program: its journal has format "
            f"{version}, but this deepgen reads {FORMAT}; run the study again in a new folder"
        )

    def _logged(self) -> bool:
        """Whether the write-ahead log has content; readers may leave an empty one behind."""
        return self._log_bytes() > 0

    def _log_bytes(self) -> int:
        try:
            return os.stat(f"{self._path}-wal").st_size  # noqa: PTH116  a thousand studies are looked at
        except FileNotFoundError:
            return 0

    def _check_log(self) -> None:
        if self._lock is None and (self._still or holder(self.folder) is not None):
            return  # there is no log, or it belongs to an active writer
        if self._logged():
            from deepgen.tuning.study import salvage

            [newest] = self._db.execute("SELECT COALESCE(MAX(seq), 0) FROM meta").fetchone()
            if salvage.log_is_cut(salvage.JournalBytes.of(self._path, self._hold), newest):
                raise Damaged("log")

    def _salvage(self) -> None:
        """Continue with the intact rows."""
        from deepgen.tuning.study import salvage

        if hasattr(self, "_db"):
            self._db.close()
        try:
            content = salvage.JournalBytes.of(self._path, self._hold)
            left = salvage.salvage(content, str(self.folder))
        except (Damaged, OSError) as error:
            raise JournalError(f"{self._path}: {_DAMAGED}") from error
        self.damage = left.losses
        if not self._write:
            self._db = left.in_memory()
            return
        try:
            salvage.repair(self._path, content, left)
        except OSError as error:
            raise JournalError(f"{self._path} is damaged and cannot be repaired: {error.strerror}") from error
        with self._explained():
            self._connect_writer()

    def check(self) -> None:
        """Read every row. A reader continues past damaged rows, which `damage` reports."""
        for table in COLUMNS:
            self._table(table)

    def remove(self) -> None:
        """Remove the study's folder and everything in it."""
        self._db.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        if hasattr(self, "_db"):
            self._db.close()
        self._hold.release()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self: F) -> F:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def damage_text(self) -> str:
        """What is damaged, in one sentence; empty if no damage was found so far."""
        return f"{self._path} is damaged: {'; '.join(self.damage)}" if self.damage else ""

    # Rows

    def tally(self) -> Tally:
        """The number of rows, without reading them."""
        return self._reading(self._read_tally)

    def _meta(self, key: str) -> Any:
        return self._reading(lambda: self._read_meta(key))[0]

    def _keep(self, key: str, value: object) -> None:
        if self._meta(key) != value:
            with self._transaction() as tally:
                rows.keep(self._db, key, value)
                self._settle(tally.with_key(key))

    def _table(self, table: str) -> list[Row]:
        """All rows of a table in order; raises if one is damaged or missing."""
        return self._reading(lambda: self._read(table))

    def _read(self, table: str) -> list[Row]:
        listed = sorted({row[0]: row for row in self._rows(table)}.values())
        if not all(is_sound(table, row) for row in listed):
            raise Damaged(table)
        tally = self._read_tally()
        if table == "meta":
            complete = sorted(row[1] for row in listed) == sorted([*tally.keys, TALLY])
        else:
            complete = len(listed) == getattr(tally, table)
        if table == "trials":
            complete &= sum(row[5] is not None for row in listed) == tally.ended
        if not complete:
            raise Damaged(f"rows of {table} are missing")
        return listed

    def _read_tally(self) -> Tally:
        [data] = self._read_meta(TALLY)
        return Tally.from_json(data)

    def _read_meta(self, *keys: str) -> list[Any]:
        """The values of keys in `meta`; None for a key that was never set."""
        # Not IN: SQLite would first build a table of the keys, which takes as long as the rest of the query.
        wanted = " OR ".join(["key = ?"] * len(keys))
        newest = {row[1]: row for row in self._rows("meta", f" WHERE {wanted} ORDER BY seq", keys)}
        return [self._value(key, newest.get(key)) for key in keys]

    def _value(self, key: str, row: Row | None) -> Any:
        if row is None and key != TALLY and key not in self._read_tally().keys:
            return None
        if row is None or not is_sound("meta", row):
            raise Damaged(key)
        return self._unpack(row[2])

    def _rows(self, table: str, where: str = "", values: Sequence[str | int] = ()) -> list[Row]:
        room = self._room()
        listed = []
        for row in self._db.execute(f"SELECT {', '.join(COLUMNS[table])}, seal FROM {table}{where}", values):
            listed.append(row)
            room -= _ROW_BYTES + sum(len(value) for value in row if isinstance(value, (bytes, str)))
            if room < 0:  # pages that contain themselves, or are part of many rows
                raise Damaged("more rows than it has bytes")
        return listed

    def _room(self) -> float:
        """Bytes that all rows may have together; rows in memory were counted when they were salvaged."""
        return inf if self.damage else self._path.stat().st_size + self._log_bytes() + _SLACK

    def _reading(self, read: Callable[[], T]) -> T:
        """The result of `read` on one snapshot of the journal, or on the salvaged rows if something is damaged."""
        while True:
            try:
                with self._explained(), self._moment():
                    return read()
            except Damaged:
                if self._write or self.damage:
                    raise JournalError(f"{self._path}: {_DAMAGED}") from None
                self._look_again()

    def _look_again(self) -> None:
        """Read again after apparent damage, which may come from a writer that has started unexpectedly."""
        if not self._still:
            self._salvage()
            return
        if hasattr(self, "_db"):
            self._db.close()
        self._still = False
        self._open()

    @contextmanager
    def _moment(self) -> Iterator[None]:
        """Several reads of one snapshot, while a writer may continue."""
        if self._write or self._still or self._db.in_transaction:
            yield
            return
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.rollback()

    def _insert(self, table: str, row: Row) -> None:
        self._db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)

    def _settle(self, tally: Tally) -> None:
        rows.keep(self._db, TALLY, tally.to_json())

    @contextmanager
    def _transaction(self) -> Iterator[Tally]:
        before = self.tally()
        with self._explained(), self._db:
            yield before

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Report SQLite's errors as sentences, and those caused by damaged files as Damaged."""
        try:
            yield
        except sqlite3.Error as error:
            reason = str(error)
            if any(word in reason for word in _BROKEN):
                raise Damaged(reason) from error
            hint = _HINTS.get(reason, "what was recorded before is safe")
            raise JournalError(f"{self._path}: {reason}; {hint}") from error


def holder(folder: Path) -> int | None:
    """The process that is writing this study's journal, if any."""
    return lock.holder(folder / LOCK) or None


def writer(folder: Path) -> lock.Holder | None:
    """The process that is writing it, with its host."""
    return lock.who(folder / LOCK)


def _take_lock(folder: Path) -> IO[str]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = lock.take(folder / LOCK)
    except OSError as error:
        reason = error.strerror
        raise JournalError(f"cannot write in {folder}: {reason}; choose another folder with --out") from error
    if file is None:
        raise JournalError(
            f"{folder} is being written by {writer(folder) or 'another process'}; watch it with `deepgen status`, "
            f"or stop it with `deepgen stop {folder}`"
        )
    return file
