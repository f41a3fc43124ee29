"""An independent reader that follows a study's journal while it is written, and reports anything lost or changed.

It reads the tables directly: its findings do not depend on the code that it watches.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

JOURNAL = "journal.sqlite"
# On a busy machine, a time may remain unstable: the kernel is still correct.
RIGHT = ("correct", "unstable", "not_run")


@dataclass(frozen=True)
class Ended:
    """A trial as recorded in the journal when it ended."""

    rank: str
    verdict: str
    row: tuple[Any, ...]

    @property
    def kind(self) -> str:
        return "right" if self.verdict in RIGHT else self.verdict


@dataclass
class Watch:
    """What was seen of one study, and what was wrong with it."""

    out: Path  # the folder that contains the study's folder
    ended: dict[int, Ended] = field(default_factory=dict)
    asked: dict[int, str] = field(default_factory=dict)  # ranks
    asks: list[tuple[Any, ...]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path | None:
        results = [path.parent for path in self.out.glob(f"*/{JOURNAL}")]
        if len(results) > 1:
            self._tell(f"there are {len(results)} studies where one was begun")
        return results[0] if results else None

    def look(self) -> None:
        """Compare the journal with its earlier content. One that cannot be opened right now is skipped."""
        folder = self.folder
        if folder is None:
            if self.asked:
                self._tell("the journal is gone")
            return
        try:
            with closing(sqlite3.connect(f"file:{folder / JOURNAL}?mode=ro", uri=True, timeout=1.0)) as db:
                db.execute("BEGIN")  # a consistent snapshot of everything that is read
                trials = _rows(db, "trials")
                asks = [(r["told"], r["wanted"], r["first"], r["given"]) for r in _rows(db, "asks")]
        except sqlite3.OperationalError:
            return  # locked, not started, or the disk is full right now
        except sqlite3.DatabaseError as error:
            self._tell(f"the journal cannot be read: {error}")
            return
        self._compare({int(row["id"]): row for row in trials}, asks)

    def _compare(self, trials: dict[int, dict[str, Any]], asks: list[tuple[Any, ...]]) -> None:
        for number, rank in self.asked.items():
            if number not in trials or str(trials[number]["rank"]) != rank:
                self._tell(f"trial {number} was asked for and is lost")
        for number, before in self.ended.items():
            now = tuple(trials[number].values()) if number in trials else ()
            if now != before.row:
                self._tell(f"trial {number} had ended and has changed: {before.row} became {now}")
        if asks[: len(self.asks)] != self.asks:
            self._tell("an ask was lost or changed")
        ranks = [str(row["rank"]) for row in trials.values()]
        for twice in {rank for rank in ranks if ranks.count(rank) > 1}:
            self._tell(f"the config of rank {twice} is there twice")
        options = [number for _, _, first, count in asks for number in range(first, first + count)]
        if options != sorted(trials):
            self._tell(f"trials {sorted(trials)} do not follow from the asks, which gave {options}")
        self.asks = asks
        for number, row in trials.items():
            self.asked[number] = str(row["rank"])
            if row["verdict"] is not None and number not in self.ended:
                self.ended[number] = Ended(str(row["rank"]), row["verdict"], tuple(row.values()))

    def compare_with(self, calm: Watch) -> None:
        """Compare the whole study with an undisturbed one of the same seed."""
        if sorted(self.ended) != sorted(self.asked):
            self._tell(f"trials {sorted(set(self.asked) - set(self.ended))} never ended")
        mine, theirs = ({number: (one.rank, one.kind) for number, one in watch.ended.items()} for watch in (self, calm))
        for number in sorted(set(mine) | set(theirs)):
            if mine.get(number) != theirs.get(number):
                self._tell(f"trial {number} is {mine.get(number)}; undisturbed it is {theirs.get(number)}")

    def _tell(self, what: str) -> None:
        if what not in self.wrong:
            self.wrong.append(what)


def _rows(db: sqlite3.Connection, table: str) -> list[dict[str, Any]]:
    results = db.execute(f"SELECT * FROM {table} ORDER BY 1")
    names = [column[0] for column in results.description]
    return [dict(zip(names, row, strict=True)) for row in results]


def strangers(folder: Path, earlier: Iterable[str]) -> list[str]:
    """Files in a study's folder that do not belong there."""
    return sorted(path.name for path in folder.iterdir() if path.name not in earlier)
