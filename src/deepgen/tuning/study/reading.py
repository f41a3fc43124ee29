"""A study's journal, read once: its trials, finals, times and notes, and the rows and the summary made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deepgen.tuning.clock import summed
from deepgen.tuning.doubts import all_doubts, over_default
from deepgen.tuning.study.definition import check_finals, check_trial
from deepgen.tuning.study.glance import sorted_verdicts, winner
from deepgen.tuning.study.journal import Journal
from deepgen.tuning.study.rows import Tally
from deepgen.tuning.study.table import Row, trial_row
from deepgen.vocabulary import Json, JsonObject, Trial

if TYPE_CHECKING:
    from deepgen.tuning.study.study import Study


@dataclass(frozen=True)
class Reading:
    """A study at one moment."""

    study: Study
    tally: Tally
    trials: tuple[Trial, ...]  # the ended ones, by id
    began_at: float | None  # in Unix time: when the first of them was asked for
    ended_at: Mapping[int, float]
    finals: Mapping[str, Any] | None
    times: tuple[Mapping[str, Any], ...]  # where the time of each run went
    notes: tuple[tuple[float, str], ...]
    budget: Mapping[str, Any]
    writer: int | None  # the process that tunes it now
    damage: str

    def rows(self) -> list[Row]:
        """One flat row per trial."""
        raced = self.study.finals_seconds(self.finals or {})
        return [trial_row(trial, self.ended_at.get(trial.id), raced.get(trial.id)) for trial in self.trials]

    def summary(self) -> JsonObject:
        """What `deepgen tune --json` prints."""
        study = self.study
        known = self.finals or {}
        best = winner(study.shapes, study.target, self.tally)
        if best is not None:
            best["over_default"] = over_default(known)
            found = next((trial for trial in self.trials if trial.id == best["trial"]), None)
            best["trial_seconds"] = found.seconds if found is not None else None
        cold = study.definition["policy"]["cold"]
        doubts: list[Json] = [*all_doubts(self.finals, self.trials, best, cold=cold)]
        return {
            "study": str(study.folder),
            "operator": study.definition["operator"],
            **({"also": study.definition["also"]} if "also" in study.definition else {}),
            "target": study.target.name,
            **study.target.proxy_row(),
            "trials": sorted_verdicts(study.about, self.tally),
            "winner": best,
            "baselines": [
                {"name": row["name"], "seconds": row["seconds"], "ratio": row["ratio"], "interval": row["interval"]}
                for row in known.get("baselines", [])
            ],
            "baselines_lost": known.get("baselines_lost", []),
            **({"shapes": known["shapes"]} if best is not None and "shapes" in known else {}),
            "waited": known.get("waited"),
            "doubts": doubts,
            "time": summed(self.times),
        }


def read(study: Study, journal: Journal) -> Reading:
    """Read everything. Raises JournalError, and ValueError for content that deepgen did not write."""
    ended = journal.ended()
    finals = journal.finals()
    return Reading(
        study,
        journal.tally(),
        tuple(check_trial(trial) for trial, _, _ in ended),
        min((asked for _, asked, _ in ended), default=None),
        {trial.id: at for trial, _, at in ended},
        None if finals is None else check_finals(finals),
        tuple(journal.times()),
        tuple(journal.notes()),
        journal.run(),
        journal.writer,
        journal.damage_text(),
    )
