"""Recovers a damaged journal: every intact row, and the effect of the lost ones on the study."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from math import inf
from pathlib import Path
from typing import Any

from deepgen.space import Space
from deepgen.tuning.study import pages
from deepgen.tuning.study.definition import STRANGE
from deepgen.tuning.study.pages import Hold
from deepgen.tuning.study.rows import (
    CHECKPOINT,
    COLUMNS,
    FINALS_LOST,
    FLOATS,
    FORMAT_KEY,
    RESTART,
    TALLY,
    Damaged,
    Proposal,
    Row,
    Tally,
    Unpacker,
    asked_row,
    create,
    is_sound,
    pack,
    sealed,
    verified,
)
from deepgen.vocabulary import BadInput, foreign

_REPAIRED, _UNFINISHED = "journal.repaired.sqlite", "journal.repaired.tmp"
_NAMED = 8  # numbers listed in a sentence
_MOST_BYTES, _MOST_TRIALS, _TIMES_MET = 1 << 30, 10_000_000, 8


@dataclass(frozen=True)
class Salvaged:
    """The intact rows of each table, and sentences about what is lost."""

    rows: Mapping[str, Sequence[Row]]
    losses: tuple[str, ...]

    def in_memory(self) -> sqlite3.Connection:
        """A database in memory, for a reader."""
        db = sqlite3.connect(":memory:", check_same_thread=False)
        create(db, self.rows)
        return db


@dataclass
class _Scanned:
    """Rows that belong to the journal, collected while scanning."""

    meta: dict[str, tuple[int, Any]] = field(default_factory=dict)  # the newest value of each key, with its row number
    asks: dict[int, Row] = field(default_factory=dict)
    asked: dict[int, Row] = field(default_factory=dict)  # first half of a trial's row: id, rank, config, asked_at, seal
    done: dict[int, Row] = field(default_factory=dict)  # the second half, preceded by id and rank
    finals: dict[int, Row] = field(default_factory=dict)
    notes: dict[int, Row] = field(default_factory=dict)
    broken: set[int] = field(default_factory=set)  # trials with an intact first half and a damaged second half
    unpack: Unpacker = field(default_factory=lambda: Unpacker("a journal"))
    room: float = inf  # bytes that further rows may have: damaged pages can appear in many rows

    @property
    def any(self) -> bool:
        return bool(self.meta or self.asks or self.asked or self.done)

    def accept(self, number: int, values: pages.Values) -> bool:
        """Accept a row of a journal, recognised by its seal."""
        self.room -= sum(len(value) for value in values if isinstance(value, (bytes, str)))
        if self.room < 0:
            raise Damaged("more rows than it has bytes")
        for table, columns in COLUMNS.items():
            if len(values) == len(columns) + 1:
                row = (number, *map(_as_column, [*columns[1:], "seal"], values[1:]))
                if table == "trials":
                    return self._accept_trial(row)
                if is_sound(table, row):
                    return self._keep(table, row)
        return False

    def _accept_trial(self, row: Row) -> bool:
        asked, done = verified(row)
        if asked:
            self.asked[row[0]] = row[:5]
        if done:
            self.done[row[0]] = (*row[:2], *row[5:])
        elif asked and not is_sound("trials", row):
            self.broken.add(row[0])
        return is_sound("trials", row)

    def _keep(self, table: str, row: Row) -> bool:
        try:
            if table == "meta" and row[0] >= self.meta.get(row[1], (-1, None))[0]:
                self.meta[row[1]] = row[0], self.unpack(row[2])
            elif table != "meta":
                getattr(self, table)[row[0]] = row
        except Damaged:
            return False
        return True

    def value(self, key: str) -> Any:
        return self.meta.get(key, (0, None))[1]


@dataclass(frozen=True)
class JournalBytes:
    """The bytes of a journal: of its file and of the write-ahead log beside it."""

    data: bytes
    log: bytes

    @staticmethod
    def of(path: Path, hold: Hold) -> JournalBytes:
        log = _log(path)  # SQLite does not lock this file, so opening and closing it is safe
        if any(file.stat().st_size > _MOST_BYTES for file in (path, log) if file.is_file()):
            raise Damaged("it is too large to search")
        return JournalBytes(hold.read(), log.read_bytes() if log.is_file() else b"")


def salvage(content: JournalBytes, where: str = "a journal") -> Salvaged:
    """Everything that can still be read; raises Damaged if nothing can."""
    # A row may occur several times: in unused pages, and in the log.
    room = _TIMES_MET * (len(content.data) + len(content.log))
    scanned = _Scanned(unpack=Unpacker(where), room=room)
    pages.scan(content.data, content.log, scanned.accept)
    if not scanned.any:
        raise Damaged("holds no row of a journal")
    with foreign.shaped(where, STRANGE):
        return _sorted_out(scanned)


def format_of(content: JournalBytes) -> int | None:
    """The format recorded in the rows, regardless of the file's header; None if no such row is left."""
    scanned = _Scanned()
    pages.scan(content.data, content.log, scanned.accept)
    number = scanned.value(FORMAT_KEY)
    return number if isinstance(number, int) else None


def log_is_cut(content: JournalBytes, newest: int) -> bool:
    """Whether the write-ahead log holds commits that SQLite skips because something before them is damaged.

    `newest` is the highest number in `meta` that SQLite shows. Uncommitted pages do not count.
    """
    scanned = _Scanned()
    for page in pages.committed(content.data, content.log):
        for number, values in page:
            if len(values) == len(COLUMNS["meta"]) + 1:
                scanned.accept(number, values)
    return any(number > newest for number, _ in scanned.meta.values())


def _sorted_out(scanned: _Scanned) -> Salvaged:
    """The journal's rows as implied by the intact ones."""
    losses: list[str] = []
    tally = _tally(scanned)
    before = scanned.value(RESTART) or {"asked": 0, "lost": []}
    _regain_configs(scanned)
    for i in [i for i, row in scanned.done.items() if i in scanned.asked and row[1] != scanned.asked[i][1]]:
        del scanned.done[i]  # two rows with the same number: neither can be trusted
    ended = scanned.asked.keys() & scanned.done.keys()
    asks = _in_order(scanned.asks)
    reaches = [before["asked"], *(row[3] + row[4] for row in asks), *(i + 1 for i in scanned.asked)]
    asked = max(*reaches, tally.trials + len(before["lost"]) if tally else 0, 0)
    if asked > _MOST_TRIALS:
        raise ValueError(f"{asked} trials")
    lost = [i for i in range(asked) if i not in scanned.asked]
    fresh_lost = [i for i in lost if i not in before["lost"]]
    reported = max((row[1] for row in asks), default=0)
    reopened = _reopened(scanned, tally, ended)
    whole = asked == before["asked"] + sum(row[4] for row in asks) and (not tally or len(asks) == tally.asks)
    if reopened:
        losses.append(f"the measurements of {_trials(reopened)} cannot be read and are repeated")
    if fresh_lost:
        losses.append(f"{_trials(fresh_lost)} cannot be read at all; others are tried in their place")
    without_past = tally is not None and "history" in tally.keys and "history" not in scanned.meta
    repeats = whole and not fresh_lost and not without_past and all(i >= reported for i in reopened)
    if not repeats:
        losses.append(
            "the search cannot be repeated exactly: it continues from the remaining trials, and may choose other "
            "configs than it would have chosen"
        )
        scanned.meta[RESTART] = (0, {"asked": asked, "lost": lost})
        scanned.meta.pop(CHECKPOINT, None)
        asks = []
    finals = _finals(scanned, tally, ended, losses)
    notes = _in_order(scanned.notes)
    if tally and len(notes) < tally.notes:
        losses.append(f"{tally.notes - len(notes)} of {tally.notes} notes cannot be read")
    losses += _missing_keys(scanned, tally)
    trials = [_trial_row(scanned, i) for i in sorted(scanned.asked)]
    kept = {key: value for key, (_, value) in scanned.meta.items() if key not in (TALLY, FORMAT_KEY)}
    rows: dict[str, Sequence[Row]] = {
        "meta": [sealed("meta", n, key, pack(value)) for n, (key, value) in enumerate(kept.items(), 1)],
        "asks": asks,
        "trials": trials,
        "finals": _numbered("finals", finals),
        "notes": _numbered("notes", notes),
    }
    return Salvaged(rows, tuple(losses) or ("its pages are damaged, but every row can be read",))


def _tally(scanned: _Scanned) -> Tally | None:
    data = scanned.value(TALLY)
    try:
        return None if data is None else Tally.from_json(data)
    except Damaged:
        return None


def _regain_configs(scanned: _Scanned) -> None:
    """Recover configs of trials whose first half is damaged: the second half has the rank, the space the config."""
    without = scanned.done.keys() - scanned.asked.keys()
    if not without or scanned.value("space") is None:
        return
    try:
        space = Space.from_json(scanned.value("space"))
        for i in without:
            config = json.loads(json.dumps(space.at(int(scanned.done[i][1]))))
            scanned.asked[i] = asked_row(Proposal(i, int(scanned.done[i][1]), config), 0.0)[:5]
    except (BadInput, KeyError, TypeError, ValueError):
        return


def _reopened(scanned: _Scanned, tally: Tally | None, ended: Collection[int]) -> list[int]:
    """Trials that are known to have ended and have no measurement any more."""
    broken = sorted(scanned.broken - set(ended))
    if tally is None or tally.ended - len(ended) <= len(broken):
        return broken
    return sorted(scanned.asked.keys() - ended)


def _finals(scanned: _Scanned, tally: Tally | None, ended: Collection[int], losses: list[str]) -> list[Row]:
    """All intact finals; none if the newest is lost or its winner has to be measured again."""
    finals = _in_order(scanned.finals)
    newest = finals[-1] if finals else None
    if (newest[0] if newest else 0) < (tally.finals if tally else 1 if ended else 0):
        # Without a tally it is unknown whether finals were run: their row may be among the lost ones.
        losses.append("the newest finals cannot be read and are rerun" if tally else "finals may be lost")
        scanned.meta[FINALS_LOST] = (0, True)
        return []
    winner = scanned.unpack(newest[2]).get("winner") if newest else None
    if winner is not None and winner not in ended:
        losses.append(f"the winner of the finals, trial {winner}, is among them: the finals are rerun")
        scanned.meta[FINALS_LOST] = (0, True)
        return []
    return finals


def _missing_keys(scanned: _Scanned, tally: Tally | None) -> list[str]:
    missing = [key for key in (tally.keys if tally else ()) if key not in scanned.meta]
    if "study" not in scanned.meta:
        return ["what is tuned cannot be read: rerun the `deepgen tune` command that started the study to restore it"]
    names = {
        "run": "the budget of the last run",
        "space": "the space",
        "signature": "the origin of the code",
        "orders": "the fastest way to compile the space",
        CHECKPOINT: "the state of the search, which is recovered by replaying it,",
    }
    return [f"{names[key]} cannot be read" for key in missing if key in names]


def _trial_row(scanned: _Scanned, number: int) -> Row:
    first = scanned.asked[number]
    if number not in scanned.done:
        return (*first, None, None, None, None, None)
    return (*first, *scanned.done[number][2:])


def _in_order(rows: Mapping[int, Row]) -> list[Row]:
    return [rows[number] for number in sorted(rows)]


def _numbered(table: str, rows: Sequence[Row]) -> list[Row]:
    return [sealed(table, number, *row[1:-1]) for number, row in enumerate(rows, 1)]


def _as_column(name: str, value: Any) -> Any:
    return float(value) if name in FLOATS and isinstance(value, int) else value


def _trials(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"trial {numbers[0]}"
    shown = ", ".join(map(str, numbers[:_NAMED])) + (", ..." if len(numbers) > _NAMED else "")
    return f"{len(numbers)} trials ({shown})"


# Files


def repair(path: Path, content: JournalBytes, salvaged: Salvaged) -> None:
    """Replace a damaged journal by a new one with the intact rows. The damaged file is kept beside it, and a note says
    so.

    Once the new file is renamed to _REPAIRED, any later writer completes an interrupted repair.
    """
    unfinished = path.with_name(_UNFINISHED)
    unfinished.unlink(missing_ok=True)
    names = (path.with_name(f"journal.damaged-{n}.sqlite") for n in count(1))
    kept = next(p for p in names if not any(os.path.lexists(taken) for taken in (p, _log(p))))
    text = f"the journal was damaged: {'; '.join(salvaged.losses)}; the damaged file is kept as {kept.name}"
    notes = [*salvaged.rows["notes"], sealed("notes", 0, time.time(), text)]
    with closing(sqlite3.connect(unfinished)) as db:
        create(db, {**salvaged.rows, "notes": _numbered("notes", notes)})
    _write_new(kept, content.data)
    if content.log:
        _write_new(_log(kept), content.log)
    _sync(unfinished)
    unfinished.replace(path.with_name(_REPAIRED))
    finish_repair(path)


def finish_repair(path: Path) -> None:
    """The last steps of a repair, which also complete an interrupted one."""
    repaired = path.with_name(_REPAIRED)
    if not repaired.exists():
        return
    for end in ("-wal", "-shm"):  # those of the damaged file must never be applied to the new one
        path.with_name(path.name + end).unlink(missing_ok=True)
    repaired.replace(path)


def _log(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _write_new(path: Path, data: bytes) -> None:
    """Write a file that must not exist, not even as a link: a stranger's bytes would go to any place that it names."""
    with path.open("xb") as file:
        file.write(data)


def _sync(path: Path) -> None:
    """Flush a closed file to disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
