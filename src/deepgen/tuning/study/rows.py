"""The tables and rows of a journal: how rows are packed, and the seal that reveals a damaged one.

A seal is a checksum over the table's name and all values of a row, so that a row is accepted only exactly as it was
written: not with a flipped bit, and not under another number. It guards against damage, not against forgery.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from typing import Any

from deepgen.vocabulary.errors import BadInput
from deepgen.vocabulary.json import JsonObject
from deepgen.vocabulary.measurement import Measurement, Trial

Row = tuple[Any, ...]
FORMAT = 2  # of a journal; stored in the file's header and in a sealed row of `meta`
# Keys of `meta`.
TALLY, FORMAT_KEY, RESTART, CHECKPOINT, FINALS_LOST = "tally", "format", "restart", "checkpoint", "finals_lost"
_OF_BEST = ("rank", "config", "seconds")

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
# The columns of each table, except the seal, which comes last. The first one is the row's number.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "meta": ("seq", "key", "value"),
    "asks": ("seq", "told", "wanted", "first", "given"),
    "trials": ("id", "rank", "config", "asked_at", "asked_seal", "verdict", "seconds", "outcome", "done_at"),
    "finals": ("seq", "at", "result"),
    "notes": ("seq", "at", "text"),
}
FLOATS = frozenset({"asked_at", "seconds", "done_at", "at"})  # SQLite may return an integer from such a column
# Limits on what a journal's values may unpack to: a fixed amount plus an amount per packed byte. Ours unpack to six
# times their size. The weight of a value estimates its memory in Python: an object more than a list or a number.
_MOST_BYTES, _MOST_WEIGHT = 8 << 20, 300_000
_BYTES_EACH, _WEIGHT_EACH = 64, 4
_WEIGHTS = ((b",", 1), (b"[", 1), (b"{", 4))
_RANK_DIGITS = 1000

# A preset dictionary for zlib: text that most outcomes contain. It is part of the format, so never change it.
_USUAL = (
    b'"cpu_seconds": , "stack_bytes": , "shared_bytes": , "registers": , "spill_bytes": "contaminated": "other '
    b'processes took % of the processor\'s time", "simulated": true, "device": "bundle": "confirmed": true, "retaken": '
    b'"reference": {"kernel_id": "", "facts": {"code_bytes": , "build_seconds": 0.}, "measurement": {"verdict": '
    b'"correct", "detail": "", "error": 0.0, "counters": {}, "conditions": {"cold": true, "flush": "lines", '
    b'"runs_checked": , "reproducible": true, "restless_threads": false, "call_seconds": e-06, "load": , "builds": 0, '
    b'"stolen_share": 0.0, "others_share": 0.0}, "samples": [0.0010, 0.0020000000000000000e-05, 1.e-06, '
)


class Damaged(Exception):
    """Part of a journal is not as it was written. Never shown to users: the journal salvages the intact rows."""


def pack(value: object) -> bytes:
    """A JSON value in compressed form."""
    packer = zlib.compressobj(zdict=_USUAL)
    return packer.compress(json.dumps(value).encode()) + packer.flush()


class Unpacker:
    """Unpacks the values of one journal, with limits that follow from its size."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._bytes, self._weight = _MOST_BYTES, _MOST_WEIGHT  # what remains of the limits

    def __call__(self, packed: bytes) -> Any:
        """The unpacked value. Raises Damaged if it was not packed here, and BadInput if it exceeds the limits."""
        unpacker = zlib.decompressobj(zdict=_USUAL)
        self._bytes += _BYTES_EACH * len(packed)
        self._weight += _WEIGHT_EACH * len(packed)
        try:
            text = unpacker.decompress(packed, self._bytes + 1)
            self._bytes -= len(text)
            self._weight -= sum(weight * text.count(mark) for mark, weight in _WEIGHTS)
            if self._bytes < 0 or self._weight < 0:
                what = "unpacks to more than a journal of its size can contain"
                raise BadInput(what, where=self._where, allowed="a study of deepgen's")
            if not unpacker.eof:
                raise ValueError("cut off")
            return json.loads(text.decode())
        except (zlib.error, ValueError, TypeError, RecursionError) as error:
            raise Damaged(str(error)) from error


def unpack(packed: bytes) -> Any:
    """Unpack a single value."""
    return Unpacker("a journal")(packed)


def seal(table: str, *values: Any) -> bytes:
    return blake2b(repr((table, *values)).encode(errors="backslashreplace"), digest_size=8).digest()


def sealed(table: str, *values: Any) -> Row:
    """A row of any table but `trials`, ready to be written."""
    return (*values, seal(table, *values))


_REAL = (float, int)
# The second half of a trial's row: nothing yet, or how it ended.
_HALVES: list[tuple[type, ...]] = [
    (type(None),) * 5,
    *((str, time, bytes, at, bytes) for time in (*_REAL, type(None)) for at in _REAL),
]
# The types that rows may hold: SQLite does not enforce those of its columns.
_TYPES: Mapping[str, frozenset[tuple[type, ...]]] = {
    "meta": frozenset({(int, str, bytes, bytes)}),
    "asks": frozenset({(int, int, int, int, int, bytes)}),
    "finals": frozenset((int, real, bytes, bytes) for real in _REAL),
    "notes": frozenset((int, real, str, bytes) for real in _REAL),
    "trials": frozenset((int, str, bytes, asked, bytes, *done) for asked in _REAL for done in _HALVES),
}


def is_sound(table: str, row: Row) -> bool:
    """Whether a row is exactly as it was written."""
    if tuple(map(type, row)) not in _TYPES[table]:
        return False
    if table == "trials" and not (row[1].isdecimal() and len(row[1]) <= _RANK_DIGITS):
        return False
    if table == "trials":
        return _asked_sound(row) and (_is_open(row) or _done_sound(row))
    return bool(row[-1] == seal(table, *row[:-1]))


# Trials: a row is written when its config is asked for, and completed when it ends. Each half has its own seal.


@dataclass(frozen=True)
class Ask:
    """One call of a strategy's ask: the number of tells before it, the configs wanted, and the ids returned."""

    after: int
    wanted: int
    first: int
    count: int


@dataclass(frozen=True)
class Proposal:
    """A config that was asked for and has no measurement yet."""

    id: int
    rank: int
    config: dict[str, Any]


def asked_row(proposal: Proposal, at: float) -> Row:
    # A rank may exceed 64 bits, so it is text.
    values = (proposal.id, str(proposal.rank), pack(proposal.config), at)
    return (*values, seal("asked", *values), None, None, None, None, None)


def done_values(trial: Trial, at: float) -> Row:
    """The second half of a trial's row, with its seal last."""
    outcome = {
        "kernel_id": trial.kernel_id,
        "facts": dict(trial.build_facts),
        "measurement": trial.measurement.to_json(),
    }
    values = (trial.measurement.verdict.value, trial.seconds, pack(outcome), at)
    return (*values, seal("done", trial.id, str(trial.rank), *values))


def _is_open(row: Row) -> bool:
    return all(value is None for value in row[5:])


def _asked_sound(row: Row) -> bool:
    return bool(row[4] == seal("asked", *row[:4]))


def _done_sound(row: Row) -> bool:
    return bool(row[9] == seal("done", *row[:2], *row[5:9]))


def verified(row: Row) -> tuple[bool, bool]:
    """Which halves of a trial's row are exactly as they were written."""
    return _asked_sound(row), not _is_open(row) and _done_sound(row)


def proposal_of(row: Row, unpack: Callable[[bytes], Any] = unpack) -> Proposal:
    return Proposal(row[0], int(row[1]), unpack(row[2]))


def trial_of(row: Row, unpack: Callable[[bytes], Any] = unpack) -> Trial:
    outcome = unpack(row[7])
    try:
        measured = Measurement.from_json(outcome["measurement"])
        return Trial(row[0], int(row[1]), unpack(row[2]), outcome["kernel_id"], measured, outcome["facts"])
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"trial {row[0]}: {error}") from error


# The contents of a journal in one row: it reveals missing rows, and is enough for a summary.


@dataclass(frozen=True)
class Tally:
    """How many rows each table has, how the trials ended, and the fastest correct one."""

    keys: tuple[str, ...] = ()  # in the table `meta`
    asks: int = 0
    trials: int = 0
    finals: int = 0
    notes: int = 0
    verdicts: Mapping[str, int] = field(default_factory=dict)
    best: JsonObject | None = None
    final: JsonObject | None = None  # the summary of the newest finals

    @property
    def ended(self) -> int:
        return sum(self.verdicts.values())

    def with_key(self, key: str) -> Tally:
        """The tally with this key added."""
        return replace(self, keys=tuple(sorted({*self.keys, key})))

    def with_trial(self, trial: Trial) -> Tally:
        """The tally with this ended trial added."""
        verdict = trial.measurement.verdict.value
        verdicts = {**self.verdicts, verdict: self.verdicts.get(verdict, 0) + 1}
        return replace(self, verdicts=verdicts, best=self._better(trial))

    def _better(self, trial: Trial) -> JsonObject | None:
        mine = self.best
        if trial.seconds is None or (mine and (mine["seconds"], mine["rank"]) <= (trial.seconds, trial.rank)):
            return mine
        return {"trial": trial.id, **{key: getattr(trial, key) for key in _OF_BEST}}

    def to_json(self) -> JsonObject:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Tally:
        try:
            return Tally(**{**data, "keys": tuple(data["keys"])})
        except (KeyError, TypeError) as error:
            raise Damaged(f"tally: {error}") from error


def final_of(finals: Mapping[str, Any]) -> JsonObject:
    """A summary of finals, without their samples and losers."""
    chosen = [row for row in finals["finalists"] if row["trial"] == finals["winner"]]
    summary: JsonObject = {
        key: finals.get(key) for key in ("peak_gflops", "bandwidth", "ties", "tie_broken_by", "serves", "properties")
    }
    return {**summary, "winner": {key: chosen[0][key] for key in ("trial", *_OF_BEST)} if chosen else None}


# The file: its tables, including the format and the tally.


def version(db: sqlite3.Connection) -> int:
    """The format of a journal; 0 before its tables exist."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def is_new(db: sqlite3.Connection) -> bool:
    """Whether it has no tables yet."""
    return version(db) == 0 and db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0] == 0


def is_ours(db: sqlite3.Connection) -> bool:
    """Whether its tables are exactly a journal's: a view or a computed column could run someone else's SQL."""
    listed = db.execute("SELECT sql FROM sqlite_master").fetchmany(2 * len(COLUMNS))
    return sorted(" ".join(str(sql).split()) for [sql] in listed) == _STATEMENTS


_STATEMENTS = sorted(" ".join(statement.split()) for statement in _TABLES.split(";") if statement.strip())


def create(db: sqlite3.Connection, rows: Mapping[str, Sequence[Row]] | None = None) -> None:
    """Create the tables and insert these rows, in one transaction."""
    listed = {table: (rows or {}).get(table, ()) for table in COLUMNS}
    with db:
        db.execute("BEGIN")
        for statement in filter(str.strip, _TABLES.split(";")):
            db.execute(statement)
        for table, columns in COLUMNS.items():
            marks = ", ".join("?" * (len(columns) + 1))
            db.executemany(f"INSERT INTO {table} VALUES ({marks})", listed[table])
        keep(db, FORMAT_KEY, FORMAT)
        keep(db, TALLY, _counted(listed).to_json())
        db.execute(f"PRAGMA user_version = {FORMAT}")


def keep(db: sqlite3.Connection, key: str, value: object) -> None:
    """Set a key in `meta`, with a higher number than all earlier rows: of two rows the newer one counts."""
    [last] = db.execute("SELECT COALESCE(MAX(seq), 0) FROM meta").fetchone()
    db.execute("DELETE FROM meta WHERE key = ?", (key,))
    db.execute("INSERT INTO meta VALUES (?, ?, ?, ?)", sealed("meta", last + 1, key, pack(value)))


def _counted(rows: Mapping[str, Sequence[Row]]) -> Tally:
    keys = sorted({FORMAT_KEY, *(row[1] for row in rows["meta"])})
    counts = {table: len(rows[table]) for table in ("asks", "trials", "finals", "notes")}
    right = [row for row in rows["trials"] if row[5] == "correct"]
    fastest = sorted(right, key=lambda row: (row[6], int(row[1])))[:1]
    best = [Tally().with_trial(trial_of(row)).best for row in fastest]
    return Tally(
        tuple(keys),
        **counts,
        verdicts=dict(Counter(row[5] for row in rows["trials"] if row[5])),
        best=best[0] if best else None,
        final=final_of(unpack(rows["finals"][-1][2])) if rows["finals"] else None,
    )
