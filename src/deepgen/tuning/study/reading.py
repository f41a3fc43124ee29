"""A study's journal, read once: its trials, finals, times and notes, and the rows and summary made from them.

A summary lists doubts: reasons not to take the result at face value, each a sentence for the user.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deepgen.run.measure.race import TIE, Ratio, paired_ratio
from deepgen.tuning.progress import summed
from deepgen.tuning.speed import MEMORY
from deepgen.tuning.study.definition import check_trial
from deepgen.tuning.study.finals import Finals, Serves
from deepgen.tuning.study.glance import sorted_verdicts, winner
from deepgen.tuning.study.journal import Journal
from deepgen.tuning.study.rows import Tally
from deepgen.tuning.study.text import Row, lost_baselines, trial_row
from deepgen.vocabulary import Json, JsonObject, Trial

if TYPE_CHECKING:
    from deepgen.tuning.study.study import Study


@dataclass(frozen=True)
class Reading:
    """The state of a study at one moment."""

    study: Study
    tally: Tally
    trials: tuple[Trial, ...]  # the ended trials, by id
    began_at: float | None  # Unix time at which the first of them was asked for
    ended_at: Mapping[int, float]
    finals: Finals | None
    times: tuple[Mapping[str, Any], ...]  # where the time of each run went
    notes: tuple[tuple[float, str], ...]
    budget: Mapping[str, Any]
    writer: int | None  # the process that is tuning it now
    damage: str

    def rows(self) -> list[Row]:
        """One flat row per trial."""
        raced = self.finals.seconds() if self.finals is not None else {}
        return [trial_row(trial, self.ended_at.get(trial.id), raced.get(trial.id)) for trial in self.trials]

    def summary(self) -> JsonObject:
        """What `deepgen tune --json` prints."""
        study = self.study
        finals = self.finals or Finals(None)
        best = winner(study.shapes, study.target, self.tally)
        if best is not None:
            best["over_default"] = over_default(finals)
            first = next((trial for trial in self.trials if trial.id == best["trial"]), None)
            best["trial_seconds"] = first.seconds if first is not None else None
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
            "baselines": [row.shown() for row in finals.baselines],
            "baselines_lost": [row.to_json() for row in finals.baselines_lost],
            "faster_baseline": self._faster_baseline(finals),
            **({"shapes": [row.to_json() for row in finals.shapes]} if best is not None and finals.shapes else {}),
            "waited": finals.waited.to_json() if finals.waited is not None else None,
            "doubts": doubts,
            "time": summed(self.times),
            "time_budget": self.budget.get("time_budget"),
            "default_measured_after": self.default_measured_after(),
            "improved": [[round(after, 3), seconds] for after, seconds in self.improved()],
            "left_out": [*finals.left_out],
        }

    def _faster_baseline(self, finals: Finals) -> JsonObject | None:
        """The fastest baseline that is significantly faster than the winner, if there is one, with suggestions.

        Less accurate baselines do not count.
        """
        able = (row for row in finals.baselines if row.error is None)
        rows = [(*beside, row.title) for row in able if (beside := row.compared()) is not None]
        surely = [(ratio, interval, name) for ratio, interval, name in rows if interval[1] < 1.0]
        if not surely:
            return None
        ratio, interval, name = min(surely)
        budget, ended, helps = self.budget.get("time_budget"), len(self.trials), []
        if budget is not None and ended < (self.budget.get("trials") or 0):
            helps.append(f"more time: --time-budget {3 * budget:g}")
        else:
            helps.append(f"more trials: --trials {max(200, 3 * ended)}")
        if any("finalist" in text for text in finals.left_out) or ended > 20 * (self.budget.get("keep_top") or 8):
            helps.append("more finalists: --keep-top 16")
        if not any("FAMILY" in row.config for row in finals.finalists):  # families have not competed
            helps.append("other families: --family all")
        helps.append(f"{name} itself")
        return {"name": name, "ratio": ratio, "interval": [*interval], "helps": [*helps]}

    def default_measured_after(self) -> float | None:
        """Seconds from the start until the trial that the search began with ended."""
        rank = self.budget.get("default")
        first = next((trial for trial in self.trials if str(trial.rank) == rank), None)
        return None if first is None else round(self._after(self.ended_at[first.id]), 3)

    def improved(self) -> list[tuple[float, float]]:
        """Each improvement of the best time: seconds since the start, over all runs, and the new best time."""
        right = [trial for trial in self.trials if trial.ok and trial.seconds is not None]
        best: list[tuple[float, float]] = []
        for trial in sorted(right, key=lambda trial: (self.ended_at[trial.id], trial.id)):
            if trial.seconds is not None and (not best or trial.seconds < best[-1][1]):
                best.append((self._after(self.ended_at[trial.id]), trial.seconds))
        return best

    def _after(self, at: float) -> float:
        """How long all runs together had lasted at a moment in Unix time."""
        lasted, after = 0.0, at - (self.began_at or at)  # older versions of deepgen did not record when runs began
        runs = {run.get("started_at"): run["total"] for run in self.times}
        runs.setdefault(self.budget.get("started_at"), 0.0)  # the newest run, which may not have ended
        for began, seconds in runs.items():
            if isinstance(began, (int, float)) and began <= at:
                after = lasted + at - began
            lasted += seconds
        return max(0.0, after)


def read(study: Study, journal: Journal) -> Reading:
    """Read everything. Raises JournalError, and ValueError for content that deepgen did not write."""
    ended = journal.ended()
    return Reading(
        study,
        journal.tally(),
        tuple(check_trial(trial) for trial, _, _ in ended),
        min((asked for _, asked, _ in ended), default=None),
        {trial.id: at for trial, _, at in ended},
        journal.finals(),
        tuple(journal.times()),
        tuple(journal.notes()),
        journal.run(),
        journal.writer,
        journal.damage_text(),
    )


WIDE = 0.10  # of a ratio: a wider confidence interval raises a doubt
FAR = 20.0  # a library this many times slower was probably slowed by whatever disturbed the machine
_MANY = 0.1  # share of trials: fewer disturbed ones hardly change which kernels reach the finals
RETEST = "run `deepgen retest` on a quiet machine"


def over_default(finals: Finals) -> JsonObject | None:
    """The winner's speedup over the default; None if one of them was not in the finals."""
    winner, default = finals.best, next((row for row in finals.finalists if row.default), None)
    if winner is None or default is None:
        return None
    if winner is default:
        return {"ratio": 1.0, "interval": [1.0, 1.0]}
    ratio = paired_ratio(default.samples, winner.samples)
    return {"ratio": ratio.estimate, "interval": [ratio.low, ratio.high]}


def all_doubts(
    finals: Finals | None, trials: Iterable[Trial], winner: Mapping[str, Any] | None, *, cold: bool
) -> list[str]:
    """All doubts about a study with these newest finals; `winner` is the one in its summary."""
    doubts = [*_of_trials(trials)]
    if winner is None:
        return doubts
    if finals is None:
        return [*doubts, "no finals were run: the winner is the fastest single trial, which may be noise"]
    return [
        *doubts,
        *_of_conditions(finals),
        *_of_ratios(finals, winner),
        *_of_bound(winner, cold=cold),
        *_of_serves(finals),
        *_of_properties(finals),
        *lost_baselines(finals.to_json()),
    ]


def _of_trials(trials: Iterable[Trial]) -> list[str]:
    timed = [trial.measurement.conditions for trial in trials if trial.measurement.samples]
    disturbed = [str(row["contaminated"]) for row in timed if row.get("contaminated")]
    if len(disturbed) <= _MANY * len(timed):
        return []
    return [f"{len(disturbed)} of {len(timed)} trials were timed on a busy machine: {_together(disturbed)}"]


def _of_conditions(finals: Finals) -> list[str]:
    doubts = []
    if finals.left_out and not finals.rounds:
        doubts.append("the time budget ended before the finals: the winner's time is from a single trial")
    if finals.left_out:
        doubts.append(f"skipped for lack of time: {', '.join(finals.left_out)}; run the same command again to catch up")
    waited = finals.waited
    if waited is not None and waited.disturbed:
        still = f"the machine was still busy after the finals had waited {waited.seconds:.0f} s"
        doubts.append(f"{still}: {waited.disturbed}; {RETEST}")
    disturbed = _disturbed(finals)
    if disturbed:
        doubts.append(f"the finals were timed on a busy machine: {_together(disturbed)}; {RETEST}")
    late = dict.fromkeys(str(row["name"]) for row in finals.conditions if row.get("late_samples"))
    if late:
        doubts.append(
            f"the host was too slow to keep the GPU busy, which inflates the time of {', '.join(late)}; {RETEST}"
        )
    return doubts


def _of_ratios(finals: Finals, winner: Mapping[str, Any]) -> list[str]:
    doubts = []
    compared: list[tuple[str, Mapping[str, Any] | None]] = [("the default", winner.get("over_default"))]
    compared += [(row.title, row.shown()) for row in finals.baselines]
    for name, row in compared:
        if row is None or not row.get("interval"):
            continue
        if row.get("noisy"):
            doubts.append(f"the comparison with {name} is too noisy: {row['noisy']}; {RETEST}")
            continue
        ratio = Ratio(row["ratio"], *row["interval"])
        between = f"anywhere from {ratio.low:.3g} to {ratio.high:.3g} times as fast as {name}"
        if ratio.width <= WIDE:
            if ratio.estimate > FAR and _disturbed(finals):
                took = f"{name} took {ratio.estimate:.3g} times as long as the winner on a busy machine"
                doubts.append(f"{took}, which probably held it up; {RETEST}")
        elif ratio.low <= 1.0 <= ratio.high:
            doubts.append(f"the difference is within noise: the winner is {between}; {RETEST}")
        else:
            doubts.append(f"the winner is {between}, a wide confidence interval; {RETEST}")
    return doubts


def _of_bound(winner: Mapping[str, Any], *, cold: bool) -> list[str]:
    by_memory = winner.get("bound") == MEMORY
    share = winner.get("share_of_bound" if by_memory else "share_of_peak")
    # With warm caches, data that fits into them need not be read from memory.
    if share is None or share <= 1.0 + TIE or (by_memory and not cold):
        return []
    rate = "memory bandwidth" if by_memory else "peak"
    return [
        f"the winner runs at {share:.1%} of the {rate}: that rate was measured too low, or the winner's time is wrong"
    ]


def _of_serves(finals: Finals) -> list[str]:
    serves = finals.serves or Serves()
    doubts = [f"the winner supports its tuned shape only: it was {serves.why}"] if serves.only and serves.why else []
    if serves.untried:
        doubts.append(
            f"the winner supports its tuned shape only: time ran out before it was verified at {serves.untried} other "
            "shapes, which `deepgen retest` does"
        )
    if serves.dense:
        doubts.append(f"the winner supports dense arrays only: with padded rows it was {serves.dense}")
    return doubts


def _of_properties(finals: Finals) -> list[str]:
    lost = finals.properties.loses() if finals.properties else []
    return [f"the winner does not handle {' and '.join(lost)} as its reference does"] if lost else []


def _disturbed(finals: Finals) -> list[str]:
    return [str(row["contaminated"]) for row in finals.conditions if row.get("contaminated")]


def _together(sentences: Sequence[str]) -> str:
    """One sentence for many that differ only in a percentage; otherwise the most frequent sentence."""
    common = max(set(sentences), key=sentences.count)
    pattern = re.compile(r"\d+%")
    alike = [text for text in sentences if pattern.sub("%", text) == pattern.sub("%", common)]
    shares = sorted(int(match.group()[:-1]) for text in alike if (match := pattern.search(text)))
    if not shares or shares[0] == shares[-1]:
        return common
    return pattern.sub(f"{shares[0]}% to {shares[-1]}%", common, count=1)
