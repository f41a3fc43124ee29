"""A snapshot of a folder: each study, cluster run and bundle result as JSON for the page.

Only what changed since the last snapshot is read. A study that runs, or that a viewer has open, is followed: each
snapshot reads only the trials that ended since the last one.
"""

from __future__ import annotations

import json
import math
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from deepgen.report.serve import places
from deepgen.report.serve.places import Mark, Places
from deepgen.tuning.bundles.results import MOST_BYTES
from deepgen.tuning.study.definition import STRANGE, check_trial
from deepgen.tuning.study.glance import glance, known_shapes
from deepgen.tuning.study.journal import Journal
from deepgen.tuning.study.text import bound_text, knob_text, rate_text, seconds_text
from deepgen.vocabulary import DeepgenError, JsonObject, Trial, foreign

_MOST_DETAIL = 300  # characters of a compiler message
_HEAD_BYTES = 1 << 16  # maximum length of the first line of results
_FINALS = b'{"finals"'
_RUNNING = ("running", "starting")


@dataclass(frozen=True)
class SeenDevice:
    """A device that measured trials of a study, and its last trial."""

    host: str
    device: str
    trials: int
    last: int
    at: float


@dataclass(frozen=True)
class Trials:
    """The ended trials of a study in the order in which they were seen, each as JSON text.

    `epoch` is a new random value whenever they are read from the beginning: an index in the list is valid within one
    epoch only.
    """

    epoch: str = field(default_factory=lambda: secrets.token_hex(4))
    texts: tuple[str, ...] = ()
    first: int = 0  # the lowest id that has not ended
    beyond: frozenset[int] = frozenset()  # ended ids above it
    devices: Mapping[tuple[str, str], SeenDevice] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """A study at the last look."""

    id: str  # A study in the last snapshot.
    name: str  # for people
    folder: Path
    mark: Mark | None = field(default=None, compare=False)
    row: str = "{}"  # JSON
    running: bool = False
    checked: bool = field(default=False, compare=False)  # whether every row was read
    followed: bool = False
    trials: Trials | None = None  # of a followed study that is readable


def look(before: Seen, mark: Mark | None, *, whole: bool, follow: bool) -> Seen:
    """The current state of a study. `whole` reads every row and so finds all damage; `follow` reads its new trials."""
    status = _status(before.folder, whole=whole)
    running = status["state"] in _RUNNING
    followed = follow or running or before.followed
    trials = None
    if followed and "why" not in status:
        done = sum(status["trials"].values())
        try:
            trials = _followed(before.folder, before.trials or Trials(), done, anew=bool(status.get("damage")))
        except (DeepgenError, OSError) as error:
            status = {"state": "unreadable", "why": str(error)}
    row = _text({"id": before.id, "name": before.name, **_row(status, trials)})
    return replace(
        before, mark=mark, row=row, running=running, checked=whole and not running, followed=followed, trials=trials
    )


def _status(folder: Path, *, whole: bool) -> dict[str, Any]:
    try:
        return glance(folder, whole=whole)
    except OSError as error:
        return {"state": "unreadable", "why": error.strerror or str(error)}


def _row(status: Mapping[str, Any], trials: Trials | None) -> JsonObject:
    """A line of the list of studies, worded like `deepgen status`."""
    if "why" in status:
        return {"state": status["state"], "why": status["why"]}
    best, pid = status["best"], status["pid"]
    devices = () if trials is None else sorted(trials.devices.values(), key=lambda one: (one.host, one.device))
    return {
        "state": "damaged" if status.get("damage") and pid is None else status["state"],
        "why": status.get("damage"),
        "pid": pid,
        "what": status["operator"],
        "target": status["target"] + (f" ({status['proxy']})" if "proxy" in status else ""),
        "done": sum(status["trials"].values()),
        "budget": status["budget"],
        "verdicts": status["trials"],
        "best": best and f"{rate_text(best)}, {seconds_text(best['seconds'])}{bound_text(best)}",
        "devices": [vars(one) for one in devices] if pid is not None else [],
    }


def _followed(folder: Path, before: Trials, done: int, *, anew: bool) -> Trials:
    """The trials with those that ended since; read from the beginning if the journal is not the one followed before."""
    with foreign.shaped(str(folder), STRANGE), Journal(folder) as journal:
        words = known_shapes(journal.definition(), glance=True)[0]
        anew = anew or len(before.texts) > done
        after = before if anew else _with(before, journal.ended_from(before.first), words)
        if anew or len(after.texts) < done:
            after = _with(Trials(), journal.ended_from(0), words)
    return after


def _with(before: Trials, ended: list[tuple[Trial, float]], words: Any) -> Trials:
    fresh = [(check_trial(trial), at) for trial, at in ended if trial.id not in before.beyond]
    if not fresh:
        return before
    devices = dict(before.devices)
    for trial, at in fresh:
        where = _device(trial)
        count = devices[where].trials if where in devices else 0
        devices[where] = SeenDevice(*where, count + 1, trial.id, at)
    beyond = set(before.beyond) | {trial.id for trial, _ in fresh}
    first = before.first
    while first in beyond:
        beyond.remove(first)
        first += 1
    texts = (*before.texts, *(_trial_text(trial, at, words) for trial, at in fresh))
    return replace(before, texts=texts, first=first, beyond=frozenset(beyond), devices=devices)


def _trial_text(trial: Trial, at: float, words: Any) -> str:
    measured, seconds = trial.measurement, trial.seconds
    seconds = seconds if seconds is not None and math.isfinite(seconds) else None
    return json.dumps(
        {
            "trial": trial.id,
            "verdict": measured.verdict.value,
            "words": words.verdict_text(measured.verdict.value),
            "seconds": seconds,
            "time": seconds_text(seconds),
            "at": at if math.isfinite(at) else 0.0,
            "detail": measured.detail[:_MOST_DETAIL],
            "knobs": {name: knob_text(value) for name, value in trial.config.items()},
        }
    )


def _device(trial: Trial) -> tuple[str, str]:
    """The host and the device that measured a trial; on a cluster the conditions name them."""
    conditions = trial.measurement.conditions
    card, slot = conditions.get("card"), conditions.get("slot")
    device = f"card {card}" if card is not None else f"slot {slot}" if slot is not None else ""
    return str(conditions.get("host") or socket.gethostname())[:100], device[:100]


def bundle_row(path: Path, id: str) -> str | None:
    """Results of a bundle being measured: its header, and the number of trials so far; None for another file."""
    lines, finals = 0, False
    try:
        if path.stat().st_size > MOST_BYTES:
            return None
        with path.open("rb") as file:
            head = foreign.parse(file.readline(_HEAD_BYTES), str(path))
            for line in file:
                lines += line.endswith(b"\n")
                finals |= line.startswith(_FINALS)
        row: JsonObject = {key: str(head[key]) for key in ("study", "device", "bundle")}
    except (OSError, DeepgenError, KeyError, TypeError):
        return None
    return _text({"id": id, "name": path.name, **row, "done": lines - finals, "finals": finals})


def run_row(path: Path, id: str) -> str:
    """A run, as described by the plug-in that reads its folder."""
    try:
        return _text({"id": id, "name": path.name, **places.run_at(path).row(path)})
    except (DeepgenError, OSError) as error:
        unreadable: JsonObject = {"state": "unreadable", "pid": None, "note": str(error), "groups": []}
        return _text({"id": id, "name": path.name, **unreadable})


def _text(row: JsonObject) -> str:
    try:
        return json.dumps(row, allow_nan=False)
    except ValueError:
        why = "it contains non-finite numbers"
        return json.dumps({**{key: row[key] for key in ("id", "name")}, "state": "unreadable", "why": why})


@dataclass(frozen=True)
class FolderState:
    """Everything known at one moment. Rows are JSON texts, keyed by the ids used in addresses."""

    studies: Mapping[str, Seen] = field(default_factory=dict)
    runs: Mapping[str, str] = field(default_factory=dict)
    bundles: Mapping[str, str] = field(default_factory=dict)
    run_folders: Mapping[str, Path] = field(default_factory=dict)
    marks: Mapping[str, Mark] = field(default_factory=dict, compare=False)  # of runs and bundles, keyed by path


def look_around(root: Path, before: FolderState, followed: frozenset[str]) -> FolderState:
    """The current state; only what changed is read. If nothing did, one more study is checked completely."""
    there = places.find(root)
    studies = {
        id: _study(Seen(id, str(path.relative_to(there.top)), path), before, followed)
        for id, path in there.studies.items()
    }
    idle = all(before.studies.get(name) == seen for name, seen in studies.items())
    unchecked = [seen for seen in studies.values() if not (seen.checked or seen.running or places.is_fresh(seen.mark))]
    if idle and unchecked:
        seen = unchecked[0]
        studies[seen.id] = look(seen, seen.mark, whole=True, follow=seen.followed)
    marks = _marks(there)
    return FolderState(
        studies,
        _others(there.runs, before.runs, before.marks, marks, run_row),
        _others(there.bundles, before.bundles, before.marks, marks, bundle_row),
        there.runs,
        marks,
    )


def _study(new: Seen, before: FolderState, followed: frozenset[str]) -> Seen:
    last = before.studies.get(new.id, new)
    mark = places.study_mark(new.folder)  # taken before reading: anything written meanwhile is read next time
    follow = new.id in followed
    if (follow and not last.followed) or places.changed(last.mark, mark):
        # Known damage must not disappear for a moment; a running study was not checked.
        return look(last, mark, whole=last.checked, follow=follow)
    return last


def _marks(there: Places) -> dict[str, Mark]:
    return {
        **{str(path): places.run_mark(path) for path in there.runs.values()},
        **{str(path): places.file_mark(path) for path in there.bundles.values()},
    }


def _others(
    paths: Mapping[str, Path],
    rows: Mapping[str, str],
    before: Mapping[str, Mark],
    now: Mapping[str, Mark],
    read: Callable[[Path, str], str | None],
) -> dict[str, str]:
    out = {}
    for name, path in paths.items():
        same = name in rows and not places.changed(before.get(str(path)), now[str(path)])
        row = rows[name] if same else read(path, name)
        if row is not None:
            out[name] = row
    return out
