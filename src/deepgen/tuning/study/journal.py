"""The journal: the only record of a study. SQLite in WAL mode with one writer; results are durable before use."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from deepgen.targets import host
from deepgen.tuning.study.definition import STRANGE
from deepgen.tuning.study.finals import Finals
from deepgen.tuning.study.journal_file import EMPTY, FILE, LOCK, JournalError, JournalFile, holder, writer
from deepgen.tuning.study.rows import (
    CHECKPOINT,
    FINALS_LOST,
    RESTART,
    TALLY,
    Ask,
    Damaged,
    Proposal,
    Row,
    Tally,
    asked_row,
    done_values,
    final_of,
    is_sound,
    keep,
    pack,
    proposal_of,
    sealed,
    trial_of,
)
from deepgen.vocabulary import JsonObject, Trial

if TYPE_CHECKING:
    from deepgen.space import Space

_NUMBERS = ("trials", "time_budget", "keep_top", "target_speedup", "patience", "started_at")  # in a run's budget
_LARGEST = 1e12  # limit of any number that a run records, including timestamps in seconds


@dataclass(frozen=True)
class Restart:
    """Where damage interrupted a search: ids below `asked` are earlier trials, except the `lost` ones."""

    asked: int = 0
    lost: frozenset[int] = frozenset()


class Journal(JournalFile):
    """A journal file with methods in the terms of studies."""

    # What the study is

    def define(self, definition: JsonObject) -> None:
        """Record what is tuned, once; a run that resumes the study must have the same space."""
        if self._meta("study") is None:
            self._keep("study", definition)
        recorded = self.definition()
        if recorded.get("space") != definition.get("space"):
            raise JournalError(
                f"{self.folder} was created by deepgen {recorded.get('deepgen')}, and the space of "
                f"{recorded['generator']} has changed since. The study can be read but not resumed; "
                "tune again to start a new one"
            )

    @property
    def empty(self) -> bool:
        """Whether nothing has been recorded."""
        return self._meta("study") is None and not self.tally().trials

    @property
    def defined(self) -> bool:
        """Whether the study's definition is recorded."""
        return self._meta("study") is not None

    def keep_space(self, space: Space) -> None:
        """Store the space, for readers of the study that lack its generator."""
        if self._meta("space") is None:
            self._keep("space", space.to_json())
        if self._meta("orders") is None:
            self._keep("orders", space.orders())

    def space(self) -> Space | None:
        from deepgen.space import Space

        data = self._meta("space")
        if data is None:
            return None
        space = Space.from_json(data)
        space.arrange(self.orders())
        return space

    def orders(self) -> list[list[str]]:
        """The orders of knobs in which the space was compiled, which take long to search."""
        data = self._meta("orders")
        listed = isinstance(data, list) and all(isinstance(order, list) for order in data)
        return data if listed and all(isinstance(name, str) for order in data for name in order) else []

    def keep_digest(self, digest: str) -> None:
        """Store the digest of the generator's source text: the newest known to emit the same kernels."""
        self._keep("digest", digest)

    def digest(self) -> str | None:
        value: str | None = self._meta("digest")
        return value

    def keep_signature(self, signature: str) -> None:
        """Store the signature of the reference to the study's code."""
        self._keep("signature", signature)

    def signature(self) -> str | None:
        value: str | None = self._meta("signature")
        return value

    def definition(self) -> dict[str, Any]:
        return self._defined(self._meta("study"))

    def glance(self) -> tuple[dict[str, Any], Tally, dict[str, Any]]:
        """The definition, the tally and the newest run's budget, in a single read."""

        def read() -> tuple[Any, Tally, Any]:
            study, tally, run = self._read_meta("study", TALLY, "run")
            return study, Tally.from_json(tally), run

        study, tally, run = self._reading(read)
        return self._defined(study), tally, dict(run or {})

    def _defined(self, data: JsonObject | None) -> dict[str, Any]:
        if data is not None:
            return dict(data)
        if self.damage:
            raise JournalError(self.damage_text())
        raise JournalError(f"{self.folder}: {EMPTY}")

    def begin_run(self, budget: JsonObject) -> None:
        """Record the newest run's budget, for readers to show, and the versions it ran with."""
        self._keep("run", {**budget, "versions": _versions()})

    def run(self) -> dict[str, Any]:
        budget = dict(self._meta("run") or {})
        if not all(map(_is_number, map(budget.get, _NUMBERS))) or not isinstance(budget.get("counters", []), list):
            raise JournalError(f"{self.folder}: {STRANGE}: the budget of its newest run")
        return budget

    def add_time(self, seconds: JsonObject) -> None:
        """Record where the time of a run went."""
        self._keep("time", [*self.times(), seconds])

    def times(self) -> list[dict[str, Any]]:
        """Where the time went, for each run so far."""
        runs = self._meta("time") or []
        if not isinstance(runs, list) or not all(map(_is_time, runs)):
            raise JournalError(f"{self.folder}: {STRANGE}: where the time of its runs went")
        return runs

    def keep_history(self, studies: Sequence[JsonObject]) -> None:
        """Record what the search takes from earlier studies at the start."""
        if self._meta("history") is None:
            self._keep("history", studies)

    def history(self) -> list[dict[str, Any]] | None:
        """What `keep_history` wrote; None if it was not called yet."""
        studies: list[dict[str, Any]] | None = self._meta("history")
        return studies

    def restart(self) -> Restart:
        """Where the search restarted with the trials left after damage; at 0 in any other study."""
        data = self._meta(RESTART)
        return Restart() if data is None else Restart(data["asked"], frozenset(data["lost"]))

    # Trials

    def ask(
        self,
        after_tells: int,
        wanted: int,
        proposals: Sequence[Proposal],
        checkpoint: JsonObject | None = None,
        at: float | None = None,
    ) -> None:
        """Record a strategy's proposals before any is tried, and the strategy's state after them."""
        now = time.time() if at is None else at
        first = proposals[0].id if proposals else -1
        with self._transaction() as tally:
            after = replace(tally, asks=tally.asks + 1, trials=tally.trials + len(proposals))
            self._insert("asks", sealed("asks", after.asks, after_tells, wanted, first, len(proposals)))
            for proposal in proposals:
                self._insert("trials", asked_row(proposal, now))
            if checkpoint is not None:
                keep(self._db, CHECKPOINT, {"asks": after.asks, **checkpoint})
                after = after.with_key(CHECKPOINT)
            self._settle(after)

    def finish(self, trials: Sequence[Trial], ended_at: Mapping[int, float] | None = None) -> None:
        """Record how trials ended, now or at the given Unix times. Recording the same trial twice changes nothing."""
        now, moments = time.time(), ended_at or {}
        update = (
            "UPDATE trials SET verdict = ?, seconds = ?, outcome = ?, done_at = ?, seal = ? "
            "WHERE id = ? AND rank = ? AND verdict IS NULL"
        )
        with self._transaction() as before:
            after = before
            for trial in trials:
                if self._db.execute(
                    update, (*done_values(trial, moments.get(trial.id, now)), trial.id, str(trial.rank))
                ).rowcount:
                    after = after.with_trial(trial)
            if after != before:
                self._settle(after)

    def recount(self, trials: Sequence[Trial]) -> None:
        """Record counters of trials that have ended. Nothing else about them may have changed."""
        update = "UPDATE trials SET outcome = ?, seal = ? WHERE id = ? AND rank = ? AND verdict = ? AND done_at = ?"
        ended = {row[0]: row[8] for row in self._table("trials") if row[5]}
        with self._transaction():
            for trial in trials:
                verdict, _, outcome, at, seal = done_values(trial, ended[trial.id])
                self._db.execute(update, (outcome, seal, trial.id, str(trial.rank), verdict, at))

    def asks(self) -> list[Ask]:
        return [Ask(*row[1:-1]) for row in self._table("asks")]

    def checkpoint(self) -> dict[str, Any] | None:
        """The strategy's state after the newest ask, if it was recorded."""
        state = self._meta(CHECKPOINT)
        return state if isinstance(state, dict) and state.get("asks") == self.tally().asks else None

    def proposals(self, *, open_only: bool = False) -> list[Proposal]:
        """All configs asked for, or only those that have no measurement yet."""
        return [proposal_of(row, self._unpack) for row in self._table("trials") if not (open_only and row[5])]

    def trials(self) -> list[Trial]:
        """The ended trials, by id."""
        return [self._trial(row) for row in self._table("trials") if row[5]]

    def ended(self) -> list[tuple[Trial, float, float]]:
        """The same, each with the Unix times at which it was asked for and at which it ended."""
        return [(self._trial(row), row[3], row[8]) for row in self._table("trials") if row[5]]

    def ended_from(self, first: int) -> list[tuple[Trial, float]]:
        """The ended trials with ids from `first` on, and when they ended: for readers that follow a journal."""
        where = " WHERE id >= ? AND verdict IS NOT NULL ORDER BY done_at, id"

        def read() -> list[tuple[Trial, float]]:
            rows = self._rows("trials", where, (first,))
            if not all(is_sound("trials", row) for row in rows):
                raise Damaged("trials")
            return [(self._trial(row), row[8]) for row in rows]

        return self._reading(read)

    def _trial(self, row: Row) -> Trial:
        try:
            return trial_of(row, self._unpack)
        except Damaged as error:  # the seal is correct, so deepgen did not write this
            raise JournalError(f"{self.folder}: {STRANGE}: {error}") from error

    def trial(self, number: int) -> Trial | None:
        return next((self._trial(row) for row in self._table("trials") if row[0] == number and row[5]), None)

    def best(self, count: int) -> list[Trial]:
        """The fastest correct trials; equal times are ordered by rank, so that the order is always the same."""
        right = [row for row in self._table("trials") if row[5] == "correct"]
        return [self._trial(row) for row in sorted(right, key=lambda row: (row[6], int(row[1])))[:count]]

    def right(self, rank: int | None) -> Trial | None:
        """The trial of this config, if it was correct, even if its time did not settle."""
        of_config = (self._trial(row) for row in self._table("trials") if row[1] == str(rank) and row[5])
        return next((trial for trial in of_config if trial.measurement.right), None)

    # Finals and notes

    def add_finals(self, finals: Finals) -> None:
        data, lost = finals.to_json(), self.finals_lost
        with self._transaction() as tally:
            after = replace(tally, finals=tally.finals + 1, final=final_of(data))
            self._insert("finals", sealed("finals", after.finals, time.time(), pack(data)))
            if lost:
                keep(self._db, FINALS_LOST, False)
            self._settle(after)

    @property
    def finals_lost(self) -> bool:
        """Whether damage took the newest finals and none were run since: the kernels they rejected are unknown."""
        return bool(self._meta(FINALS_LOST))

    def finals(self) -> Finals | None:
        """The newest finals. Raises BadInput if deepgen did not write them."""
        rows = self._table("finals")
        return Finals.from_json(self._unpack(rows[-1][2]), f"{self.folder}: its finals") if rows else None

    def note(self, text: str) -> None:
        """Record a note for readers of the results."""
        with self._transaction() as tally:
            after = replace(tally, notes=tally.notes + 1)
            self._insert("notes", sealed("notes", after.notes, time.time(), text))
            self._settle(after)

    def notes(self) -> list[tuple[float, str]]:
        return [(at, text) for _, at, text, _ in self._table("notes")]


def _versions() -> JsonObject:
    """The versions that affect results and comparisons, besides the compiler; no package is imported for this."""
    kept: JsonObject = {"python": platform.python_version(), "system": host.system()}
    for package in ("numpy", "torch"):
        with suppress(PackageNotFoundError):
            kept[package] = version(package)
    return kept


def _is_time(run: object) -> bool:
    """Whether it is the time of a run: seconds by name, with their sum as `total`."""
    if not isinstance(run, dict) or "total" not in run:
        return False
    return all(_is_number(value) and (value is not None or name == "started_at") for name, value in run.items())


def _is_number(value: object) -> bool:
    """Whether it is a number that a run may record, or None."""
    return value is None or (type(value) in (int, float) and -_LARGEST < value < _LARGEST)  # type: ignore[operator]


__all__ = ["FILE", "LOCK", "Journal", "JournalError", "Proposal", "Restart", "holder", "writer"]
