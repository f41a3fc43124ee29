"""The bytes of journals: connections to them, reads that bypass SQLite, and rows in pages of a damaged file.

SQLite refuses a table as soon as one page on the way is damaged. Here every page of the file, and of the write-ahead
log beside it, is read on its own. No row can be trusted until the caller has checked its seal. See
https://www.sqlite.org/fileformat2.html for pages, cells and records.

A process that closes a file loses all its locks on it, including SQLite's. So a journal file opened without SQLite is
closed only when nothing in this process has the journal open any more.
"""

from __future__ import annotations

import os
import re
import sqlite3
import struct
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

PAGE = 4096  # bytes; the page size of journals
HEAD = 100  # bytes of the file before the first page's own content
_HEAD = b"SQLite format 3\0"  # at the start of the file, in its first page
_LEAF = 13  # the kind of page that holds a table's rows
_LOCAL = PAGE - 35  # bytes of a row that fit into its own page
_LEAST_LOCAL = (PAGE - 12) * 32 // 255 - 23
_LOG_HEAD, _FRAME_HEAD = 32, 24
_MOST_BYTES = 1 << 28  # of one row
_RECORD = re.compile(rb"[\x03-\x28](?=\x00)")  # the length of a record's header, then an omitted row number
_NUMBERS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}  # bytes of each integer type

Values = tuple[Any, ...]
Accept = Callable[[int, Values], bool]  # takes a row's number and columns


def is_sqlite(head: bytes) -> bool:
    """Whether a file begins as our databases do, or is empty: SQLite takes some damage there for settings.

    `head`: its first HEAD bytes.
    """
    if not head:
        return True
    modes = head[18:20] in (b"\1\1", b"\2\2")
    return head[:18] == _HEAD + PAGE.to_bytes(2, "big") and modes and head[20:24] == b"\0\x40\x20\x20"


def user_version(head: bytes) -> int:
    """The result of `PRAGMA user_version` for a file without a log, from its first HEAD bytes."""
    return int.from_bytes(head[60:64], "big", signed=True)


@dataclass(frozen=True)
class _File:
    """All pages. When a row continues in another page, pages in the log replace those in the file."""

    pages: list[bytes]
    logged: dict[int, bytes]
    all_logged: list[bytes]
    commits: list[bool]  # whether each logged page ends a commit

    def page(self, number: int) -> bytes | None:
        if number in self.logged:
            return self.logged[number]
        return self.pages[number - 1] if 0 < number <= len(self.pages) else None


def scan(data: bytes, log: bytes, accept: Accept) -> None:
    """Pass every row that can be decoded to `accept`, which returns whether it belongs to the journal.

    `data` is the file, `log` the write-ahead log beside it.

    A page that contains anything else is also searched for byte patterns that could start a row with its number as
    first column, so that a damaged cell list hides no row. The log is read last, in the order in which it was written.
    """
    file = _read(data, log)
    for page in [*file.pages, *file.all_logged]:
        start = HEAD if page.startswith(_HEAD) else 0
        count = int.from_bytes(page[start + 3 : start + 5], "big")
        accepted = [accept(*row) if (row := _row(file, page, place)) else False for place in _places(page, start)]
        if (any(accepted) or page[start] == _LEAF) and (len(accepted) < count or not all(accepted)):
            for place in _possible(page):
                if (row := _row(file, page, place)) is not None:
                    accept(*row)


def committed(data: bytes, log: bytes) -> Iterator[list[tuple[int, Values]]]:
    """The rows of each page in the write-ahead log, up to the last page that ends a commit."""
    file = _read(data, log)
    ends = [i for i, commit in enumerate(file.commits) if commit]
    for page in file.all_logged[: ends[-1] + 1 if ends else 0]:
        yield [row for place in _places(page, 0) if (row := _row(file, page, place)) is not None]


def _read(data: bytes, log: bytes) -> _File:
    pages = [data[at : at + PAGE].ljust(PAGE, b"\0") for at in range(0, len(data), PAGE)]
    frames = log[_LOG_HEAD:]
    logged: dict[int, bytes] = {}
    all_logged, commits = [], []
    for at in range(0, len(frames) - _FRAME_HEAD, _FRAME_HEAD + PAGE):
        page = frames[at + _FRAME_HEAD : at + _FRAME_HEAD + PAGE].ljust(PAGE, b"\0")
        logged[int.from_bytes(frames[at : at + 4], "big")] = page
        all_logged.append(page)
        whole = at + _FRAME_HEAD + PAGE <= len(frames)  # a full disk may have truncated uncommitted pages
        commits.append(whole and any(frames[at + 4 : at + 8]))
    return _File(pages, logged, all_logged, commits)


def _places(page: bytes, start: int) -> Iterator[int]:
    """The offsets of rows according to the page's cell list; its row count is not trusted."""
    for at in range(start + 8, PAGE - 1, 2):
        place = int.from_bytes(page[at : at + 2], "big")
        if not at + 2 <= place < PAGE - 4:
            return
        yield place


def _possible(page: bytes) -> Iterator[int]:
    """Possible offsets of rows: the row's length and number precede the record's header."""
    for match in _RECORD.finditer(page):
        for place in range(max(0, match.start() - 12), match.start() - 1):
            try:
                if _varint(page, _varint(page, place)[1])[1] == match.start():
                    yield place
            except IndexError:
                continue


def _row(file: _File, page: bytes, place: int) -> tuple[int, Values] | None:
    try:
        length, at = _varint(page, place)
        number, at = _varint(page, at)
        if not 2 <= length < _MOST_BYTES:
            return None
        payload = page[at : at + length] if length <= _LOCAL else _spread(file, page, at, length)
        if payload is None or len(payload) < length:
            return None
        values = _record(payload)
        return None if values is None else (number, values)
    except (IndexError, struct.error, UnicodeDecodeError):
        return None


def _spread(file: _File, page: bytes, at: int, length: int) -> bytes | None:
    """The payload of a row that continues in overflow pages, each of which points to the next."""
    local = _LEAST_LOCAL + (length - _LEAST_LOCAL) % (PAGE - 4)
    local = local if local <= _LOCAL else _LEAST_LOCAL
    parts = [page[at : at + local]]
    following = int.from_bytes(page[at + local : at + local + 4], "big")
    left = length - local
    while left > 0:
        more = file.page(following)
        if more is None:
            return None
        parts.append(more[4 : 4 + left])
        left -= PAGE - 4
        following = int.from_bytes(more[:4], "big")
    return b"".join(parts)


def _record(payload: bytes) -> Values | None:
    """The columns of a row; None if the bytes are not a valid record."""
    end, at = _varint(payload, 0)
    if not at <= end <= len(payload):
        return None
    kinds = []
    while at < end:
        kind, at = _varint(payload, at)
        kinds.append(kind)
    if at != end or sum(map(_size, kinds)) != len(payload) - end:
        return None
    values = []
    for kind in kinds:
        values.append(_value(kind, payload[at : at + _size(kind)]))
        at += _size(kind)
    return tuple(values)


def _size(kind: int) -> int:
    return (kind - 12) // 2 if kind >= 12 else 8 if kind == 7 else _NUMBERS.get(kind, 0)


def _value(kind: int, data: bytes) -> Any:
    if kind in (8, 9):
        return kind - 8
    if kind in _NUMBERS:
        return int.from_bytes(data, "big", signed=True)
    if kind == 7:
        return struct.unpack(">d", data)[0]
    if kind >= 12:
        return data if kind % 2 == 0 else data.decode()
    return None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for i in range(8):
        byte = data[at + i]
        value = value << 7 | byte & 127
        if byte < 128:
            return value, at + i + 1
    return value << 8 | data[at + 8], at + 9


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
