"""The journal: the only truth of a study. SQLite in WAL mode, durable before anyone hears of it, one writer."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from deepgen.space import Space
from deepgen.tuning import lock
from deepgen.tuning.migrations import SCHEMA, migrate, readable, version
from deepgen.vocabulary import DeepgenError, JsonObject, Measurement, Trial

FILE = "journal.sqlite"
LOCK = "lock"
_DAMAGED = "it cannot be read as a journal: bring back a copy of the study's folder, or move it away and begin anew"


class JournalError(DeepgenError):
    """The journal cannot be read or written; nothing that it holds was lost."""


@dataclass(frozen=True)
class Ask:
    """One call of a strategy's ask: after `told` trials it was asked for `wanted` configs and gave ids first..."""

    told: int
    wanted: int
    first: int
    given: int


@dataclass(frozen=True)
class Proposal:
    """A config that was asked for, before it has a measurement."""

    id: int
    rank: int
    config: dict[str, Any]


class Journal:
    """Reads for anyone, writes for the holder of the lock."""

    def __init__(self, folder: Path, *, write: bool = False) -> None:
        self.folder = folder
        self._lock: IO[str] | None = None
        path = folder / FILE
        if write:
            self._lock = _take_lock(folder)
        elif not path.exists():
            raise JournalError(f"{folder} holds no study: there is no {FILE} in it")
        try:
            self._db = _connect(path, write)
            with self._spoken():
                if write:
                    migrate(self._db, folder)
                else:
                    self._db = readable(self._db, folder)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if hasattr(self, "_db"):
            self._db.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # What the study is

    def define(self, definition: JsonObject) -> None:
        """Write down what is tuned, once; whoever goes on with it must mean the same space."""
        with self._transaction():
            self._db.execute("INSERT OR IGNORE INTO meta VALUES ('study', ?)", (json.dumps(definition),))
        told = self.definition()
        if told.get("space") != definition.get("space"):
            raise JournalError(
                f"{self.folder} was begun with deepgen {told.get('deepgen')}, and the space of {told['generator']} has "
                "changed since: it can be read but not gone on with; tune again, which makes a study of its own"
            )

    @property
    def empty(self) -> bool:
        """Whether nothing was said of the study yet."""
        return self._meta("study") is None

    def keep_space(self, space: Space) -> None:
        """The space itself, for whoever reads the study without its generator."""
        if self._meta("space") is None:
            self._keep("space", json.dumps(space.to_json()))

    def space(self) -> Space | None:
        found = self._meta("space")
        return None if found is None else Space.from_json(json.loads(found))

    def keep_digest(self, digest: str) -> None:
        """Of the text that the generator's kernels come from; the newest that is known to give the same kernels."""
        self._keep("digest", digest)

    def digest(self) -> str | None:
        return self._meta("digest")

    def keep_signature(self, signature: str) -> None:
        """Of the reference to the study's code."""
        self._keep("signature", signature)

    def signature(self) -> str | None:
        return self._meta("signature")

    def _keep(self, key: str, value: str) -> None:
        if self._meta(key) != value:
            with self._transaction():
                self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def definition(self) -> dict[str, Any]:
        found = self._meta("study")
        if found is None:
            raise JournalError(f"{self.folder}: the journal was begun but says nothing of its study; delete the folder")
        return dict(json.loads(found))

    def begin_run(self, budget: JsonObject) -> None:
        """The budget of the newest run, so that others know how far it means to go."""
        self._keep("run", json.dumps(budget))

    def run(self) -> dict[str, Any]:
        return dict(json.loads(self._meta("run") or "{}"))

    def keep_history(self, studies: Sequence[JsonObject]) -> None:
        """What earlier studies taught this one at its beginning."""
        with self._transaction():
            self._db.execute("INSERT OR IGNORE INTO meta VALUES ('history', ?)", (json.dumps(studies),))

    def history(self) -> list[dict[str, Any]] | None:
        """What `keep_history` wrote; None when it was not called yet."""
        found = self._meta("history")
        return None if found is None else list(json.loads(found))

    def _meta(self, key: str) -> str | None:
        with self._spoken():
            row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    # Trials

    def ask(self, told: int, wanted: int, proposals: Sequence[Proposal]) -> None:
        """Record what a strategy gave, before any of it is tried."""
        now = time.time()
        first = proposals[0].id if proposals else -1
        with self._transaction():
            self._db.execute(
                "INSERT INTO asks(told, wanted, first, given) VALUES (?, ?, ?, ?)",
                (told, wanted, first, len(proposals)),
            )
            self._db.executemany(
                "INSERT INTO trials(id, rank, config, asked_at) VALUES (?, ?, ?, ?)",
                [(p.id, str(p.rank), json.dumps(p.config), now) for p in proposals],
            )

    def finish(self, trials: Sequence[Trial]) -> None:
        """Record how trials ended. Telling the same trial twice changes nothing."""
        now = time.time()
        rows = [
            (
                t.kernel_id,
                t.measurement.verdict.value,
                t.seconds,
                json.dumps(t.measurement.to_json()),
                json.dumps(dict(t.build_facts)),
                now,
                t.id,
            )
            for t in trials
        ]
        with self._transaction():
            self._db.executemany(
                "UPDATE trials SET kernel_id = ?, verdict = ?, seconds = ?, measurement = ?, build_facts = ?,"
                " done_at = ? WHERE id = ? AND verdict IS NULL",
                rows,
            )

    def asks(self) -> list[Ask]:
        with self._spoken():
            rows = self._db.execute("SELECT told, wanted, first, given FROM asks ORDER BY seq").fetchall()
        return [Ask(*row) for row in rows]

    def proposals(self, *, open_only: bool = False) -> list[Proposal]:
        """All configs asked for, or only those that have no measurement yet."""
        where = "WHERE verdict IS NULL" if open_only else ""
        with self._spoken():
            rows = self._db.execute(f"SELECT id, rank, config FROM trials {where} ORDER BY id").fetchall()
        return [Proposal(i, int(rank), json.loads(config)) for i, rank, config in rows]

    def trials(self, *, since: int = 0) -> list[Trial]:
        """The ended trials, by id."""
        return self._select("WHERE verdict IS NOT NULL AND id >= ? ORDER BY id", (since,))

    def trial(self, number: int) -> Trial | None:
        found = self._select("WHERE verdict IS NOT NULL AND id = ?", (number,))
        return found[0] if found else None

    def best(self, count: int) -> list[Trial]:
        """The fastest right ones; equal times in the order of rank, so that the choice is always the same."""
        return self._select("WHERE verdict = 'correct' ORDER BY seconds, length(rank), rank LIMIT ?", (count,))

    def right(self, rank: int | None) -> Trial | None:
        """The trial of this config, if there is one and it was right."""
        found = [] if rank is None else self._select("WHERE verdict = 'correct' AND rank = ?", (str(rank),))
        return found[0] if found else None

    def verdicts(self) -> dict[str, int]:
        with self._spoken():
            rows = self._db.execute(
                "SELECT verdict, COUNT(*) FROM trials WHERE verdict IS NOT NULL GROUP BY verdict ORDER BY 2 DESC"
            ).fetchall()
        return {str(verdict): int(count) for verdict, count in rows}

    def _select(self, clause: str, values: tuple[Any, ...]) -> list[Trial]:
        columns = "id, rank, config, kernel_id, measurement, build_facts"
        with self._spoken():
            rows = self._db.execute(f"SELECT {columns} FROM trials {clause}", values).fetchall()
        return [
            Trial(i, int(rank), json.loads(config), kernel, Measurement.from_json(json.loads(m)), json.loads(facts))
            for i, rank, config, kernel, m, facts in rows
        ]

    # Finals and notes

    def add_finals(self, finals: JsonObject) -> None:
        with self._transaction():
            self._db.execute("INSERT INTO finals(at, result) VALUES (?, ?)", (time.time(), json.dumps(finals)))

    def finals(self) -> dict[str, Any] | None:
        """The newest finals."""
        with self._spoken():
            row = self._db.execute("SELECT result FROM finals ORDER BY seq DESC LIMIT 1").fetchone()
        return None if row is None else dict(json.loads(row[0]))

    def note(self, text: str) -> None:
        """Something that happened and that a reader of the results should know."""
        with self._transaction():
            self._db.execute("INSERT INTO notes(at, text) VALUES (?, ?)", (time.time(), text))

    def notes(self) -> list[tuple[float, str]]:
        with self._spoken():
            return [(float(at), str(text)) for at, text in self._db.execute("SELECT at, text FROM notes ORDER BY seq")]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._spoken(), self._db:
            yield

    @contextmanager
    def _spoken(self) -> Iterator[None]:
        """SQLite's errors as sentences."""
        try:
            yield
        except sqlite3.Error as error:
            reason = str(error)
            hint = {
                "database or disk is full": "free some space and run the same command again: what was recorded is safe",
                "attempt to write a readonly database": "make the folder writable, or choose another with --out",
                "database disk image is malformed": _DAMAGED,
                "no such table: meta": _DAMAGED,
            }.get(reason, "what was recorded before is safe")
            raise JournalError(f"{self.folder / FILE}: {reason}; {hint}") from error


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
            f"{folder} is being written by process {holder(folder) or 'unknown'}; follow it with `deepgen status`, "
            f"or end it with `deepgen stop {folder}`"
        )
    return file


def _connect(path: Path, write: bool) -> sqlite3.Connection:
    try:
        if write:
            db = sqlite3.connect(path, timeout=30.0, check_same_thread=False)
            db.execute("PRAGMA journal_mode = WAL")
            # FULL: a commit has reached the disk when it returns, also when the machine loses power.
            db.execute("PRAGMA synchronous = FULL")
            if version(db) == 0:
                db.executescript(SCHEMA)
            return db
        return _connect_reader(path)
    except sqlite3.Error as error:
        raise JournalError(f"{path}: {error}; {_DAMAGED}") from error


def _connect_reader(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=30.0, check_same_thread=False)
    try:
        db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        # WAL needs a shared-memory file beside the journal, which a read-only folder refuses; a journal that
        # nobody can write may be read as it lies.
        db.close()
        db = sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True, check_same_thread=False)
        db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
    return db
