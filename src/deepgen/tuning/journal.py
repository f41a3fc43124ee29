"""The journal: the only record of a study. SQLite in WAL mode, durable before anyone is told, with one writer.

Every row is sealed (`rows.py`), and a tally says how many there are. Whatever is read is checked against both; where it
is not as it was written, what is left is salvaged (`salvage.py`): into memory for a reader, and for a writer into a new
file, with the damaged one kept beside it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from deepgen.tuning import connections, lock, migrations
from deepgen.tuning.arrivals import is_complete
from deepgen.tuning.rows import (
    COLUMNS,
    Ask,
    Damaged,
    Proposal,
    Row,
    Tally,
    asked_row,
    done_values,
    final_of,
    is_sound,
    pack,
    proposal_of,
    sealed,
    trial_of,
    unpack,
)
from deepgen.vocabulary import DeepgenError, JsonObject, Trial

if TYPE_CHECKING:
    from deepgen.space import Space

FILE = "journal.sqlite"
LOCK = "lock"
RESTART = "restart"
CHECKPOINT = "checkpoint"
_DAMAGED = "it is not a readable journal: restore a copy of the study's folder, or move it away and start again"
_EMPTY = "the journal is empty; delete the folder"
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


class JournalError(DeepgenError):
    """The journal cannot be read or written; nothing that it holds was lost."""


@dataclass(frozen=True)
class Restart:
    """Where damage cut a search off: the ids below `asked` are trials of before, but for the `lost`."""

    asked: int = 0
    lost: frozenset[int] = frozenset()


class Journal:
    """Reads for anyone, writes for the holder of the lock."""

    def __init__(self, folder: Path, *, write: bool = False) -> None:
        self.folder = folder
        self.damage: tuple[str, ...] = ()  # what was found to be damaged, a sentence each
        self._write = write
        self._path, self._log = folder / FILE, folder / f"{FILE}-wal"
        self._lock: IO[str] | None = None
        self._holds = 0  # of the file, as `connections` counts them
        self._still = False  # whether it is read as a file that nobody writes
        if write:
            self._lock = _take_lock(folder)
        elif not self._path.exists():
            raise JournalError(f"{folder} is not a study: it contains no {FILE}")
        else:
            self._still = not self._logged() and holder(folder) is None
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        if self._write:
            from deepgen.tuning import salvage

            salvage.finish_repair(self._path)
        try:
            with self._explained():
                begun = self._path.exists() and self._connect_reader()
                if begun:
                    self._check_log()
                if self._write:
                    # Looked through before anything is written: even closing a file after writing changes it.
                    for table in COLUMNS if begun else ():
                        self._read(table)
                    self._connect_writer()
        except Damaged:
            self._look_again()

    def _connect_reader(self) -> bool:
        """Open it for reading, and say whether there is something in it."""
        self._holds += 1
        if not connections.hold_if_sound(self._path):
            raise Damaged("head")
        self._db = connections.connect_to_read(self._path, self._still)
        found = migrations.version(self._db)
        if found == 0 and migrations.is_new(self._db):
            if not self._write:
                raise JournalError(f"{self.folder}: {_EMPTY}")
            return False
        if found not in (migrations.FORMAT, *migrations.STEPS):
            self._check_format()
        elif found != migrations.FORMAT:
            self._db = migrations.readable(self._db, self.folder)
        return True

    def _connect_writer(self) -> None:
        self._holds += 1
        connections.hold(self._path)
        if hasattr(self, "_db"):
            self._db.close()
        self._db = connections.connect_to_write(self._path)
        found = migrations.version(self._db)
        if found == 0:
            migrations.create(self._db)
        elif found != migrations.FORMAT:
            migrations.migrate(self._db, self.folder)
            self._db.execute("VACUUM")  # what was packed leaves room

    def _check_format(self) -> None:
        """A number that we do not know: of a newer deepgen, of another program, or a damaged one of ours."""
        from deepgen.tuning import salvage

        if salvage.format_of(self._path) == migrations.FORMAT:
            raise Damaged("format")
        migrations.migrate(self._db, self.folder)  # says what is wrong with it

    def _logged(self) -> bool:
        """Whether there is something in the write-ahead log; readers may leave an empty one behind."""
        try:
            return self._log.stat().st_size > 0
        except FileNotFoundError:
            return False

    def _check_log(self) -> None:
        if self._lock is None and (self._still or holder(self.folder) is not None):
            return  # there is no log, or it belongs to a living writer
        if self._logged():
            from deepgen.tuning import salvage

            [newest] = self._db.execute("SELECT COALESCE(MAX(seq), 0) FROM meta").fetchone()
            if salvage.log_is_cut(self._path, newest):
                raise Damaged("log")

    def _salvage(self) -> None:
        """Continue with what is left."""
        from deepgen.tuning import salvage

        if hasattr(self, "_db"):
            self._db.close()
        try:
            left = salvage.salvage(self._path)
        except Damaged as error:
            raise JournalError(f"{self._path}: {_DAMAGED}") from error
        self.damage = left.losses
        if not self._write:
            self._db = left.in_memory()
            return
        try:
            salvage.repair(self._path, left)
        except OSError as error:
            raise JournalError(f"{self._path} is damaged and cannot be mended: {error.strerror}") from error
        with self._explained():
            self._connect_writer()

    def check(self) -> None:
        """Read every row. A reader continues past damaged rows, and `damage` reports them."""
        for table in COLUMNS:
            self._table(table)

    def close(self) -> None:
        if hasattr(self, "_db"):
            self._db.close()
        connections.release(self._path, self._holds)
        self._holds = 0
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # What the study is

    def define(self, definition: JsonObject) -> None:
        """Record what is tuned, once; a run that resumes it must have the same space."""
        if self._meta("study") is None:
            self._keep("study", definition)
        told = self.definition()
        if told.get("space") != definition.get("space"):
            raise JournalError(
                f"{self.folder} was created by deepgen {told.get('deepgen')}, and the space of {told['generator']} has "
                "changed since. The study can be read but not resumed; tune again to start a new one"
            )

    @property
    def empty(self) -> bool:
        """Whether nothing was said of the study yet."""
        return self._meta("study") is None and not self.tally().trials

    def keep_space(self, space: Space) -> None:
        """The space itself, for readers of the study that lack its generator."""
        if self._meta("space") is None:
            self._keep("space", space.to_json())
        if self._meta("orders") is None:
            self._keep("orders", space.orders())

    def space(self) -> Space | None:
        from deepgen.space import Space

        found = self._meta("space")
        if found is None:
            return None
        space = Space.from_json(found)
        space.arrange(self.orders())
        return space

    def orders(self) -> list[list[str]]:
        """The orders of knobs in which the space was compiled, which take long to find."""
        found = self._meta("orders")
        listed = isinstance(found, list) and all(isinstance(order, list) for order in found)
        return found if listed and all(isinstance(name, str) for order in found for name in order) else []

    def keep_digest(self, digest: str) -> None:
        """Of the text that the generator's kernels come from; the newest that is known to give the same kernels."""
        self._keep("digest", digest)

    def digest(self) -> str | None:
        found: str | None = self._meta("digest")
        return found

    def keep_signature(self, signature: str) -> None:
        """Of the reference to the study's code."""
        self._keep("signature", signature)

    def signature(self) -> str | None:
        found: str | None = self._meta("signature")
        return found

    def definition(self) -> dict[str, Any]:
        found = self._meta("study")
        if found is not None:
            return dict(found)
        if self.damage:
            raise JournalError(self.damage_text())
        raise JournalError(f"{self.folder}: {_EMPTY}")

    def begin_run(self, budget: JsonObject) -> None:
        """The budget of the newest run, so that others know how far it means to go."""
        self._keep("run", budget)

    def run(self) -> dict[str, Any]:
        return dict(self._meta("run") or {})

    def add_time(self, seconds: JsonObject) -> None:
        """Where the time of a run went."""
        self._keep("time", [*self.times(), seconds])

    def times(self) -> list[dict[str, Any]]:
        """Of each run so far."""
        return list(self._meta("time") or [])

    def keep_history(self, studies: Sequence[JsonObject]) -> None:
        """What earlier studies taught this one at its beginning."""
        if self._meta("history") is None:
            self._keep("history", studies)

    def history(self) -> list[dict[str, Any]] | None:
        """What `keep_history` wrote; None when it was not called yet."""
        found: list[dict[str, Any]] | None = self._meta("history")
        return found

    def restart(self) -> Restart:
        """Where the search began again with the trials that damage had left; at nothing in any other study."""
        found = self._meta(RESTART)
        return Restart() if found is None else Restart(found["asked"], frozenset(found["lost"]))

    def damage_text(self) -> str:
        """What is damaged, in one sentence; empty where nothing is, as far as was read."""
        return f"{self._path} is damaged: {'; '.join(self.damage)}" if self.damage else ""

    # Trials

    def ask(self, told: int, wanted: int, proposals: Sequence[Proposal], checkpoint: JsonObject | None = None) -> None:
        """Record what a strategy gave, before any of it is tried, and where that left the strategy."""
        now = time.time()
        first = proposals[0].id if proposals else -1
        with self._transaction() as tally:
            after = replace(tally, asks=tally.asks + 1, trials=tally.trials + len(proposals))
            self._insert("asks", sealed("asks", after.asks, told, wanted, first, len(proposals)))
            for proposal in proposals:
                self._insert("trials", asked_row(proposal, now))
            if checkpoint is not None:
                migrations.keep(self._db, CHECKPOINT, {"asks": after.asks, **checkpoint})
                after = after.with_key(CHECKPOINT)
            self._settle(after)

    def finish(self, trials: Sequence[Trial]) -> None:
        """Record how trials ended. Telling the same trial twice changes nothing."""
        now = time.time()
        update = (
            "UPDATE trials SET verdict = ?, seconds = ?, outcome = ?, done_at = ?, seal = ? "
            "WHERE id = ? AND rank = ? AND verdict IS NULL"
        )
        with self._transaction() as before:
            after = before
            for trial in trials:
                if self._db.execute(update, (*done_values(trial, now), trial.id, str(trial.rank))).rowcount:
                    after = after.with_trial(trial)
            if after != before:
                self._settle(after)

    def recount(self, trials: Sequence[Trial]) -> None:
        """Record what was counted of trials that have ended. Nothing else of them may have changed."""
        update = "UPDATE trials SET outcome = ?, seal = ? WHERE id = ? AND rank = ? AND verdict = ? AND done_at = ?"
        ended = {row[0]: row[8] for row in self._table("trials") if row[5]}
        with self._transaction():
            for trial in trials:
                verdict, _, outcome, at, seal = done_values(trial, ended[trial.id])
                self._db.execute(update, (outcome, seal, trial.id, str(trial.rank), verdict, at))

    def asks(self) -> list[Ask]:
        return [Ask(*row[1:-1]) for row in self._table("asks")]

    def checkpoint(self) -> dict[str, Any] | None:
        """Where the newest ask left the strategy, if that was recorded."""
        found = self._meta(CHECKPOINT)
        return found if isinstance(found, dict) and found.get("asks") == self.tally().asks else None

    def proposals(self, *, open_only: bool = False) -> list[Proposal]:
        """All configs asked for, or only those that have no measurement yet."""
        return [proposal_of(row) for row in self._table("trials") if not (open_only and row[5])]

    def trials(self) -> list[Trial]:
        """The ended trials, by id."""
        return [trial_of(row) for row in self._table("trials") if row[5]]

    def ended_at(self) -> dict[int, float]:
        """When each ended trial ended, in Unix time."""
        return {row[0]: row[8] for row in self._table("trials") if row[5]}

    def trial(self, number: int) -> Trial | None:
        return next((trial_of(row) for row in self._table("trials") if row[0] == number and row[5]), None)

    def best(self, count: int) -> list[Trial]:
        """The fastest right ones; equal times in the order of rank, so that the choice is always the same."""
        right = [row for row in self._table("trials") if row[5] == "correct"]
        return [trial_of(row) for row in sorted(right, key=lambda row: (row[6], int(row[1])))[:count]]

    def right(self, rank: int | None) -> Trial | None:
        """The trial of this config, if there is one and it was right."""
        right = (row for row in self._table("trials") if row[5] == "correct" and row[1] == str(rank))
        return next(map(trial_of, right), None)

    def tally(self) -> Tally:
        """What there is, without looking at it."""
        return self._reading(self._read_tally)

    # Finals and notes

    def add_finals(self, finals: JsonObject) -> None:
        with self._transaction() as tally:
            after = replace(tally, finals=tally.finals + 1, final=final_of(finals))
            self._insert("finals", sealed("finals", after.finals, time.time(), pack(finals)))
            self._settle(after)

    def finals(self) -> dict[str, Any] | None:
        """The newest finals; older deepgens let some in that lack what readers count on."""
        told = [unpack(row[2]) for row in self._table("finals")]
        return next((dict(finals) for finals in reversed(told) if is_complete(finals)), None)

    def note(self, text: str) -> None:
        """Something that happened and that a reader of the results should know."""
        with self._transaction() as tally:
            after = replace(tally, notes=tally.notes + 1)
            self._insert("notes", sealed("notes", after.notes, time.time(), text))
            self._settle(after)

    def notes(self) -> list[tuple[float, str]]:
        return [(at, text) for _, at, text, _ in self._table("notes")]

    # Rows

    def _meta(self, key: str) -> Any:
        return self._reading(lambda: self._read_meta(key))

    def _keep(self, key: str, value: object) -> None:
        if self._meta(key) != value:
            with self._transaction() as tally:
                migrations.keep(self._db, key, value)
                self._settle(tally.with_key(key))

    def _table(self, table: str) -> list[Row]:
        """All rows of a table in order, each as it was written and none missing."""
        return self._reading(lambda: self._read(table))

    def _read(self, table: str) -> list[Row]:
        rows = sorted({row[0]: row for row in self._rows(table)}.values())
        if not all(is_sound(table, row) for row in rows):
            raise Damaged(table)
        tally = self._read_tally()
        if table == "meta":
            complete = sorted(row[1] for row in rows) == sorted([*tally.keys, migrations.TALLY])
        else:
            complete = len(rows) == getattr(tally, table)
        if table == "trials":
            complete &= sum(row[5] is not None for row in rows) == tally.ended
        if not complete:
            raise Damaged(f"rows of {table} are missing")
        return rows

    def _read_tally(self) -> Tally:
        [row] = self._rows("meta", migrations.TALLY) or [()]
        if not row or not is_sound("meta", row):
            raise Damaged("tally")
        return Tally.from_json(unpack(row[2]))

    def _read_meta(self, key: str) -> Any:
        [row] = self._rows("meta", key) or [()]
        if not row and key not in self._read_tally().keys:
            return None
        if not row or not is_sound("meta", row):
            raise Damaged(key)
        return unpack(row[2])

    def _rows(self, table: str, key: str | None = None) -> list[Row]:
        where, values = ("", ()) if key is None else (" WHERE key = ? ORDER BY seq DESC LIMIT 1", (key,))
        return self._db.execute(f"SELECT {', '.join(COLUMNS[table])}, seal FROM {table}{where}", values).fetchall()

    def _reading(self, read: Callable[[], T]) -> T:
        """What `read` gives at one moment of the journal; of what is left of it, where something is damaged."""
        while True:
            try:
                with self._explained(), self._moment():
                    return read()
            except Damaged:
                if self._write or self.damage:
                    raise JournalError(f"{self._path}: {_DAMAGED}") from None
                self._look_again()

    def _look_again(self) -> None:
        """Something looks damaged: it may be a writer that came meanwhile, where none was expected."""
        if not self._still:
            self._salvage()
            return
        if hasattr(self, "_db"):
            self._db.close()
        self._still = False
        self._open()

    @contextmanager
    def _moment(self) -> Iterator[None]:
        """Several reads of one state, while a writer goes on."""
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
        migrations.keep(self._db, migrations.TALLY, tally.to_json())

    @contextmanager
    def _transaction(self) -> Iterator[Tally]:
        before = self.tally()
        with self._explained(), self._db:
            yield before

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """SQLite's errors as sentences, but those of damaged files as Damaged."""
        try:
            yield
        except sqlite3.Error as error:
            reason = str(error)
            if any(word in reason for word in _BROKEN):
                raise Damaged(reason) from error
            hint = _HINTS.get(reason, "what was recorded before is safe")
            raise JournalError(f"{self._path}: {reason}; {hint}") from error


def holder(folder: Path) -> int | None:
    """The process that writes this study's journal now, if one does."""
    return lock.holder(folder / LOCK) or None


def _take_lock(folder: Path) -> IO[str]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = lock.take(folder / LOCK)
    except OSError as error:
        reason = error.strerror
        raise JournalError(f"cannot write in {folder}: {reason}; choose another folder with --out") from error
    if file is None:
        raise JournalError(
            f"{folder} is being written by process {holder(folder) or 'unknown'}; watch it with `deepgen status`, "
            f"or stop it with `deepgen stop {folder}`"
        )
    return file
