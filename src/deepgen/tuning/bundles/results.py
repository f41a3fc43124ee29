"""Results of a bundle: a file of JSON lines, one per trial, each on disk before the next kernel runs.

They are checked before merging: they must belong to the study's trials and have plausible times.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deepgen.tuning.bundles.archive import FORMAT
from deepgen.tuning.study.finals import MOST_SECONDS, Finals
from deepgen.vocabulary import BadInput, Json, JsonObject, Measurement, Trial, foreign
from deepgen.vocabulary.codec import Serializable

MOST_BYTES = 256 << 20  # thousands of trials with all their samples
_HEAD = ("format", "bundle", "study", "device")


@dataclass(frozen=True)
class TrialResult(Serializable):
    """The result of one trial of the bundle."""

    trial: int
    kernel_id: str
    measurement: Measurement
    facts: Mapping[str, Json]  # build statistics from the toolchain

    def __post_init__(self) -> None:
        measured = self.measurement
        timed = all(isinstance(s, float) and 0.0 < s < MOST_SECONDS for s in measured.samples)
        if not timed or (measured.ok and not measured.samples):
            raise ValueError("samples")


@dataclass(frozen=True)
class Results:
    """The content of a file so far. `head` names the bundle, the study and the device."""

    head: Mapping[str, Any]
    trials: Mapping[int, TrialResult] = field(default_factory=dict)
    finals: Finals | None = None
    length: int = 0  # bytes up to the end of the last complete line


def read(path: Path) -> Results:
    """The complete lines of a file. A truncated last line is ignored."""
    where = str(path)
    try:
        if path.stat().st_size > MOST_BYTES:
            raise BadInput("is too large for a result file", where=where)
        text = path.read_bytes()
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=where) from error
    text = text[: text.rfind(b"\n") + 1]
    number = 1
    try:
        head, *rest = foreign.parse_lines(text, where)
        if head["format"] != FORMAT or not all(isinstance(head[key], str) for key in _HEAD[1:]):
            raise ValueError("another format")
        trials: dict[int, TrialResult] = {}
        finals = None
        for line in rest:
            number += 1
            if "finals" in line:
                finals = dict(line["finals"])
            else:
                result = TrialResult.from_json(line)
                trials.setdefault(result.trial, result)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"line {number} is not a result of a bundle", where=where) from error
    raced = None if finals is None else Finals.from_json(finals, f"{where}: finals")
    return Results(head, trials, raced, len(text))


class Writer:
    """Appends to a file of results: a new one begins with its head, an existing one is continued."""

    def __init__(self, path: Path, head: JsonObject) -> None:
        try:
            self.so_far = read(path) if path.exists() and path.stat().st_size else Results(head)
            for key in _HEAD:
                if self.so_far.head[key] != head[key]:
                    what = f"holds results of another {key}: {self.so_far.head[key]}"
                    raise BadInput(what, where=str(path), allowed=f"{head[key]}; name another file with -o")
            self._file = path.open("ab")
            self._file.truncate(self.so_far.length)
        except OSError as error:
            raise BadInput(f"cannot be written: {error.strerror}", where=str(path)) from error
        if not self.so_far.length:
            self.append(head)

    def append(self, line: JsonObject) -> None:
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class Flawed(Exception):
    """A description of what is wrong with a result."""


def check_measurement(trial: int, measured: Measurement) -> None:
    """Check that every field of a measurement has its type, and that a correct one has times."""
    error = measured.error
    _need(isinstance(measured.detail, str), f"the detail of trial {trial} is not a string")
    _need(all(map(_is_time, measured.samples)), f"the samples of trial {trial} are not all times")
    _need(bool(measured.samples) or not measured.ok, f"trial {trial} is correct but was not timed")
    _need(error is None or type(error) in (int, float), f"the error of trial {trial} is not a number")
    for name in ("counters", "conditions"):
        _need(isinstance(getattr(measured, name), dict), f"the {name} of trial {trial} are not a table")
    _need(all(map(_is_number, measured.counters.values())), f"the counters of trial {trial} are not all numbers")


def check_finalists(finals: Finals, ended: Mapping[int, Trial]) -> None:
    """Check that the finalists are correct trials of the study, each with its own rank, config and kernel."""
    for row in finals.finalists:
        trial = ended.get(row.trial)
        _need(trial is not None and trial.ok, f"trial {row.trial} is a finalist, but not a correct trial of the study")
        if trial is not None:
            same = (row.rank, row.config, row.kernel_id) == (trial.rank, trial.config, trial.kernel_id)
            _need(same, f"finalist {trial.id} has a different config than the study's trial {trial.id}")


def check_times(trials: Iterable[Trial], finals: Finals | None, least: float) -> None:
    """Check that no time is shorter than the device's lower bound."""
    times = [(f"trial {t.id}", t.measurement.seconds) for t in trials if t.measurement.seconds is not None]
    times += [(f"finalist {row.trial}", row.seconds) for row in (finals.finalists if finals is not None else ())]
    for name, seconds in times:
        what = f"{name} took {seconds:.3g} s a run, and this device cannot do it in less than {least:.3g} s"
        _need(seconds >= least, what)


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and 0.0 < value < MOST_SECONDS  # type: ignore[operator]


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def _need(condition: bool, what: str) -> None:
    if not condition:
        raise Flawed(what)
