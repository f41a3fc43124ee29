"""Everything that a report shows, as plain JSON data.

`facts_of` only reads a study's journal: it writes nothing and imports no user code, so it may be called for a running
study and for an untrusted study. Any text in the facts may be hostile and must be escaped where it is shown.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deepgen import __version__
from deepgen.report import trials as columns
from deepgen.report.analysis import Report, analyze, rows_of
from deepgen.report.analysis import summary as summary_of
from deepgen.report.analysis.numbers import Row, usable, words_for
from deepgen.report.reproduce import tune_command
from deepgen.report.words import compared, conditions_of, gained
from deepgen.run.measure.base import arithmetic
from deepgen.run.measure.race import median_interval
from deepgen.tuning import Study
from deepgen.tuning.progress import PARTS, phases_text
from deepgen.tuning.study.finals import Finals
from deepgen.tuning.study.reading import Reading
from deepgen.tuning.study.recorded_study import RECORDED, is_recorded
from deepgen.tuning.study.text import KNOB, bound_text, bytes_text, knob_text, rate_text, seconds_text
from deepgen.tuning.study.winner import built_by
from deepgen.vocabulary import DeepgenError, Trial
from deepgen.vocabulary.measurement import geometric_mean

Facts = dict[str, Any]
DEFAULT = "the default"
EXAMPLES = 3  # messages of each verdict
_MESSAGE_LETTERS = 600
_MOST_CLOUDS = 6  # charts of the time over a counted event
# What a target's parts are called in reports, if not by their names.
_DEVICE = {
    "isa": "instruction sets",
    "l1d_bytes": "L1 data cache",
    "l2_bytes": "L2 cache",
    "l3_bytes": "L3 cache",
    "line_bytes": "cache line",
}
_BEST_SHARE, _FEWEST_BEST, _MOST_BEST = 0.1, 10, 300  # trials in the parallel coordinates
# Two events whose sum is the bytes that a kernel actually moved.
_MOVED = ("event.dram__bytes_read.sum", "event.dram__bytes_write.sum")


def facts_of(study: Study) -> Facts:
    """Everything known about a study in its current state."""
    reading = study.read()
    rows = rows_of(reading)
    try:
        return facts_from(reading, rows, analyze(rows))
    except DeepgenError as error:  # too few trials to analyze
        return facts_from(reading, rows, None, str(error))


def facts_from(reading: Reading, rows: Sequence[Row], report: Report | None, why_not: str = "") -> Facts:
    """Like `facts_of`, for a study that was already read and analyzed; `why_not` says why there is no analysis."""
    study = reading.study
    rows = _timed_once(rows, reading.finals)
    summary: Facts = reading.summary()
    finalists = _finalists(reading.finals)
    return {
        **_short(reading, summary),
        "kind": "study",
        "title": f"{study.describe()} on {study.target.shown}",
        "made_at": time.time(),
        "deepgen": __version__,
        "default": next((row["trial"] for row in finalists if row["default"]), None),
        "shapes": summary.get("shapes", []),
        "finalists": finalists,
        "dropped": reading.finals.dropped_reasons() if reading.finals is not None else [],
        **_trial_facts(reading, rows, report),
        "roofline": _roofline(reading, rows),
        "time": _time(summary["time"]),
        "conditions": conditions_of(reading.trials, reading.finals),
        "versions": _versions(study, reading.budget),
        "notes": [{"at": at, "text": text} for at, text in reading.notes],
        "analysis": {"why_not": why_not} if report is None else _analyzed(report),
        "code": None,
    }


def _timed_once(rows: Sequence[Row], finals: Finals | None) -> list[Row]:
    """One time for each config throughout the report: that of the finals if it took part, else that of the search."""
    raced = finals.seconds() if finals is not None else {}
    return [
        {
            **row,
            "seconds": raced.get(row["trial"], row["seconds"]),
            "timed_in": "finals" if row["trial"] in raced else "search",
        }
        for row in rows
    ]


def facts_of_several(folders: Sequence[Path], title: str, run: Mapping[str, Any] | None = None) -> Facts:
    """The results of several studies. `run` describes a cluster run: its state, a note, and a row per group."""
    studies, unreadable = [], []
    for folder in folders:
        try:
            reading = Study.open(folder).read()
        except DeepgenError as error:  # one broken study must not hide the others
            unreadable.append(str(error))
            continue
        studies.append(_short(reading, reading.summary()))
    studies.sort(key=lambda one: [_natural(one[key]) for key in ("operator", "target", "family")])
    return {
        "kind": "studies",
        "title": title,
        "made_at": time.time(),
        "deepgen": __version__,
        "run": None if run is None else dict(run),
        "studies": studies,
        "unreadable": unreadable,
        "ratios": [
            {**ratio, "group": ratio["name"], "name": f"{one['operator']}, {one['target']}, {one['family']}"}
            for one in studies
            for ratio in one["ratios"]
        ],
    }


def _natural(text: str) -> list[tuple[int, str]]:
    """Sort key that puts 64x64 before 128x128."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,18})", text)]


def _short(reading: Reading, summary: Mapping[str, Any]) -> Facts:
    """The facts that a report of several studies also shows."""
    study, best = reading.study, summary["winner"]
    state, words = _state(reading)
    return {
        "name": study.folder.name,
        "folder": str(study.folder),
        "operator": study.describe(),
        "target": study.target.shown,
        "device": study.target.describe(),
        "family": str(study.definition["generator"]),
        "strategy": str(study.definition["strategy"]),
        "seed": study.definition["seed"],
        "state": state,
        "state_words": words,
        "pid": reading.writer,
        "damage": reading.damage,
        "ended": len(reading.trials),
        "budget": reading.budget.get("trials"),
        "best": None if best is None else f"{rate_text(best)}, {seconds_text(best['seconds'])}{bound_text(best)}",
        "winner": _winner(reading, best),
        "ratios": _ratios(summary, reading.finals),
        "verdicts": _verdicts(reading),
        "doubts": summary["doubts"],
        "reproduce": {"command": tune_command(study, reading.budget)},
    }


def _state(reading: Reading) -> tuple[str, str]:
    """The state, and a readable description of it."""
    if reading.writer is not None:
        return "running", f"running as process {reading.writer}"
    if not reading.trials:
        return "empty", "no trials yet"
    if is_recorded(reading.study):
        return RECORDED, "recorded elsewhere"
    if not any(trial.ok for trial in reading.trials) or (reading.finals and reading.finals.winner is None):
        return "failed", "failed: no correct kernel"
    return ("stopped", "stopped before the finals") if reading.finals is None else ("finished", "finished")


def _winner(reading: Reading, best: Mapping[str, Any] | None) -> Facts | None:
    if best is None:
        return None
    samples = _samples(reading, best["trial"])
    low, high = median_interval(samples) if len(samples) > 1 else (None, None)
    return {
        "trial": best["trial"],
        "rank": str(best["rank"]),
        "seconds": best["seconds"],
        "low": low,
        "high": high,
        "runs": len(samples),
        "rate": rate_text(best),
        "bound": bound_text(best).removeprefix(", "),
        "gflops": best["gflops"],
        "verdict": best["verdict"],
        "config": {name: knob_text(value) for name, value in best["config"].items()},
        "ties": best["ties"],
        "gained": gained(best) if best["over_default"] else None,
        "trial_seconds": best["trial_seconds"],
        "in_finals": reading.finals is not None,
    }


def _samples(reading: Reading, number: int) -> Sequence[float]:
    """The samples of the finals, or of the trial if there were no finals."""
    raced = reading.finals.finalist(number) if reading.finals is not None else None
    if raced is not None:
        return raced.samples
    return next((trial.measurement.samples for trial in reading.trials if trial.id == number), ())


def _ratios(summary: Mapping[str, Any], finals: Finals | None) -> list[Facts]:
    """The winner compared with the default and with each baseline."""
    best = summary["winner"]
    if best is None:
        return []
    over = best["over_default"]
    began = next((row.seconds for row in finals.finalists if row.default), None) if finals is not None else None
    default = [] if over is None else [{"name": DEFAULT, "seconds": began, "words": gained(best), **over}]
    rated = [row for row in summary["baselines"] if row["ratio"] is not None and not row["noisy"]]
    others = [{**row, "words": compared(row)} for row in rated]
    return [
        {
            "name": row["name"],
            "ratio": row["ratio"],
            "low": row["interval"][0],
            "high": row["interval"][1],
            "seconds": row["seconds"],
            "words": row["words"],
        }
        for row in (*default, *others)
    ]


def _finalists(finals: Finals | None) -> list[Facts]:
    """The configs timed in the finals, the fastest first; one may be the config that the search started with."""
    rows = []
    for row in finals.finalists if finals is not None else ():
        ratio = row.slower_than_leader
        rows.append(
            {
                "trial": row.trial,
                "default": row.default,
                "winner": finals is not None and row.trial == finals.winner,
                "seconds": row.seconds,
                "ratio": ratio.estimate,
                "low": ratio.low,
                "high": ratio.high,
                "config": ", ".join(f"{k}={knob_text(v)}" for k, v in row.config.items()),
            }
        )
    return sorted(rows, key=lambda row: row["seconds"])


def _trial_facts(reading: Reading, rows: Sequence[Row], report: Report | None) -> Facts:
    """The trials themselves, and the columns of their table."""
    timed = usable(rows)
    unit = columns.Unit.of(row["seconds"] for row in timed)
    ended = [row["ended_at"] for row in rows]
    at, breaks = columns.elapsed(ended, reading.began_at)
    knobs = columns.knob_columns(rows)
    names = [] if report is None else [one.name for one in report.findings if not one.name.startswith(KNOB)]
    events = columns.event_columns(names[:_MOST_CLOUDS])
    kept = columns.kept(rows)
    moments = {row["trial"]: moment for row, moment in zip(rows, at, strict=True)}
    times = sorted(row["seconds"] for row in timed)
    best = times[: max(_FEWEST_BEST, min(_MOST_BEST, math.ceil(_BEST_SHARE * len(times))))]
    return {
        "unit": asdict(unit),
        "trials": columns.packed(
            [
                {**one, "moved": _moved(row)}
                for one, row in zip(columns.table(kept, moments, unit, knobs, events), kept, strict=True)
            ]
        ),
        "kept": len(kept),
        "thinned": len(kept) > columns.SHOWN,
        "breaks": breaks,
        "knobs": [asdict(knob) for knob in knobs if len(knob.levels) > 1],
        "fixed": {knob.name: knob.levels[0] for knob in knobs if len(knob.levels) == 1},
        "events": [{**asdict(event), "words": words_for(event.name)} for event in events],
        "pair": _pair(report, knobs),
        "best_time": times[0] * unit.scale if times else None,
        "slowest_time": times[-1] * unit.scale if times else None,
        "best_cutoff": best[-1] * unit.scale * (1 + 1e-5) if best else None,
        "best_count": len(best),
    }


def _moved(row: Row) -> float | None:
    """The bytes that a kernel moved between the GPU and its memory, if they were counted."""
    counts = [row.get(name) for name in _MOVED]
    counted = all(isinstance(count, (int, float)) for count in counts)
    return sum(map(float, counts)) or None if counted else None  # type: ignore[arg-type]


def _pair(report: Report | None, knobs: Sequence[columns.TrialColumn]) -> list[str]:
    """The fields of the two knobs with the strongest interaction, otherwise of the two that explain most."""
    fields = {knob.name: knob.field for knob in knobs if len(knob.levels) > 1}
    if report is not None:
        together = [one for one in report.knobs if one.partner in fields and one.together > 0]
        strongest = max(together, key=lambda one: one.together, default=None)
        names = [strongest.knob, str(strongest.partner)] if strongest else [one.knob for one in report.knobs]
        chosen = [fields[name] for name in names if name in fields]
        if len(chosen) >= 2:
            return chosen[:2]
    return list(fields.values())[:2] if len(fields) >= 2 else []


def _analyzed(report: Report) -> Facts:
    return {
        "why_not": "",
        "summary": summary_of(report),
        "used": report.used,
        "explained": report.explained,
        "knobs": [asdict(one) for one in report.knobs],
        "important": [one.knob for one in report.important],
        "relations": [{**asdict(one), "words": words_for(one.name)} for one in report.findings],
        "counted": any(one.name.startswith("event.") for one in report.relations),
    }


def important_knobs(facts: Facts) -> list[Facts]:
    """The analysis of the knobs that predict the time, the one that explains most first."""
    analysis = facts["analysis"]
    return [one for one in analysis.get("knobs", []) if one["knob"] in analysis["important"]]


def _roofline(reading: Reading, rows: Sequence[Row]) -> Facts | None:
    """The device's rates and the operator's work; for several shapes, geometric means."""
    study, finals = reading.study, reading.finals or Finals(None)
    work = [shape.work() for shape in study.shapes]
    if any(one.flops <= 0 or one.bytes <= 0 for one in work):
        return None
    return {
        "flops": geometric_mean([one.flops for one in work]),
        "bytes": geometric_mean([one.bytes for one in work]),
        "peak_gflops": finals.peak_gflops or study.target.peak(arithmetic(study.about)),
        "bandwidth": finals.bandwidth or study.target.bandwidth,
        "counted": any(_moved(row) is not None for row in rows),
    }


def _verdicts(reading: Reading) -> list[Facts]:
    """Trials by verdict, the most frequent first, with example messages."""
    by_verdict: dict[str, list[Trial]] = {}
    for trial in reading.trials:
        by_verdict.setdefault(trial.measurement.verdict.value, []).append(trial)
    rows = []
    for verdict, trials in sorted(by_verdict.items(), key=lambda pair: -len(pair[1])):
        messages = {t.measurement.detail[:_MESSAGE_LETTERS]: t.id for t in reversed(trials) if t.measurement.detail}
        examples = [{"trial": number, "text": text} for text, number in reversed(messages.items())]
        rows.append(
            {
                "verdict": reading.study.about.verdict_text(verdict),
                "good": verdict == "correct",
                "count": len(trials),
                "messages": len(messages),
                "examples": examples[:EXAMPLES],
            }
        )
    return rows


def _time(spent: Mapping[str, Any]) -> Facts:
    """Seconds by part, and the remainder that no part accounts for."""
    parts = {part: spent[part] for part in PARTS}
    rest = max(0.0, spent["total"] - sum(parts.values()))
    parts = {**parts, "the rest": round(rest, 3)}
    return {"total": spent["total"], "parts": parts, "phases": phases_text(spent.get("phases") or {})}


def _versions(study: Study, budget: Mapping[str, Any]) -> dict[str, str]:
    """The versions of the software that built and timed kernels, then the device."""
    out = {"deepgen, when the study was begun": str(study.definition.get("deepgen", "unknown"))}
    if (compiler := built_by(study.folder)) is not None:
        out["compiler"] = compiler
    ran = budget.get("versions")
    out |= {str(k): str(v) for k, v in ran.items()} if isinstance(ran, dict) else {}
    device = {k: v for k, v in study.target.to_json().items() if k != "name" and v is not None}
    return {**out, **{_DEVICE.get(name, name.replace("_", " ")): _of_device(name, v) for name, v in device.items()}}


def _of_device(name: str, fact: Any) -> str:
    return bytes_text(fact) if name.endswith("_bytes") and isinstance(fact, int) else _in_words(fact)


def _in_words(fact: Any) -> str:
    if not isinstance(fact, (list, tuple)):
        return str(fact)
    return (", " if any(isinstance(one, (list, tuple)) for one in fact) else " ").join(map(_in_words, fact))
