"""Recorded spaces: every config of a real kernel with its measurement, to test strategies without hardware.

A replay runs a strategy against such a space, and scores how near it came to the best config.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from deepgen.space import Space
from deepgen.tuning import search
from deepgen.tuning.search.base import Past, Setting
from deepgen.vocabulary import BadInput, Measurement, Trial, Verdict, foreign

# T4's words for invalid configs.
_INVALID = {
    "compile": Verdict.BUILD_FAILED,
    "runtime": Verdict.CRASHED,
    "correctness": Verdict.WRONG,
    "timeout": Verdict.TIMED_OUT,
}
# The hub's words for configs without a time. Older files write a very long time instead.
_FAILURES = {"CompilationFailedConfig": Verdict.BUILD_FAILED, "RuntimeFailedConfig": Verdict.CRASHED}
_NEVER = 1e20
_MILLISECOND = 1e-3


@dataclass(frozen=True)
class RecordedSpace:
    """A space given as a list of points, with the measurement of each."""

    name: str
    space: Space
    measurements: Mapping[tuple[Any, ...], Measurement]  # by the values of the knobs, in the space's order

    def measure(self, config: Mapping[str, Any]) -> Measurement:
        return self.measurements[tuple(config.get(knob.name) for knob in self.space.knobs)]

    @cached_property
    def best(self) -> float:
        """The shortest time in the space, in seconds."""
        times = [m.seconds for m in self.measurements.values() if m.ok and m.seconds is not None]
        if not times:
            raise BadInput(f"{self.name} contains no timed config", allowed="at least one")
        return min(times)

    @cached_property
    def past(self) -> Past:
        """The whole recording as an earlier study, for transfer."""
        names = [knob.name for knob in self.space.knobs]
        trials = []
        for number, (values, measurement) in enumerate(self.measurements.items()):
            config = {n: v for n, v in zip(names, values, strict=True) if v is not None}
            trials.append(Trial(number, number, config, "", measurement))
        return Past(self.name, self.space, trials)


def read(path: str | Path) -> RecordedSpace:
    """Read a recording, compressed or not: a cache file of Kernel Tuner, as in the benchmark hub, or a T4 file."""
    file = Path(path)
    data = document(file)
    pairs: list[tuple[dict[str, Any], Measurement]] = []
    try:
        if isinstance(data, dict) and isinstance(data.get("cache"), dict):
            names = list(data.get("tune_params_keys") or data["tune_params"])
            pairs = [(config_of(names, r), measurement_of(r)) for r in data["cache"].values()]
        elif isinstance(data, dict) and isinstance(data.get("results"), list):
            pairs = [(config_of(list(r["configuration"]), r["configuration"]), _t4(r)) for r in data["results"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"a config of the recording lacks {error}", where=str(file)) from error
    if not pairs:
        allowed = "an object with configs under `cache`, or under `results` as T4 files have them"
        raise BadInput("this is not a recorded space", where=str(file), allowed=allowed)
    with foreign.shaped(str(file), "a config of the recording cannot be used"):
        return _from_pairs(file.name.removesuffix(".gz").removesuffix(".json"), pairs)


def document(file: Path) -> Any:
    """The JSON of a recording, compressed or not."""
    raw = foreign.read_bytes(file)
    return foreign.parse(foreign.unpacked(raw, str(file)) if raw[:2] == b"\x1f\x8b" else raw, str(file))


def from_trials(name: str, trials: Sequence[Trial]) -> RecordedSpace:
    """The trials of a study as a recording: its space is the configs that were tried."""
    if not trials:
        raise BadInput(f"{name} has no finished trials to replay", allowed="a study with trials")
    return _from_pairs(name, ((trial.config, trial.measurement) for trial in trials))


def _from_pairs(name: str, pairs: Iterable[tuple[Mapping[str, Any], Measurement]]) -> RecordedSpace:
    listed = list(pairs)
    space = Space.from_points(name, [config for config, _ in listed])
    names = [knob.name for knob in space.knobs]
    return RecordedSpace(name, space, {tuple(c.get(n) for n in names): m for c, m in listed})


def config_of(names: Sequence[str], record: Mapping[str, Any]) -> dict[str, Any]:
    """The knobs of a config. A knob that another one makes meaningless is recorded as null and left out."""
    values = {name: record[name] for name in names}
    return {n: tuple(v) if isinstance(v, list) else v for n, v in values.items() if v is not None}


def measurement_of(record: Mapping[str, Any]) -> Measurement:
    """The measurement of a config in a cache file."""
    time = record["__error__"] if "__error__" in record else record["time"]
    if isinstance(time, str):
        return Measurement(_FAILURES.get(time, Verdict.REFUSED), time)
    if not math.isfinite(time) or not 0.0 < time < _NEVER:
        return Measurement(Verdict.REFUSED, f"the recorded time is {time}")
    # A single sample: the score is defined on the recorded time, not on a median of runs.
    return Measurement(Verdict.CORRECT, samples=(float(time) * _MILLISECOND,))


def _t4(record: Mapping[str, Any]) -> Measurement:
    """The measurement of a config in a T4 file: its objective's first measurement, in milliseconds."""
    invalid = record.get("invalidity", "correct")
    if invalid != "correct":
        return Measurement(_INVALID.get(invalid, Verdict.REFUSED), str(invalid))
    values = {one["name"]: one["value"] for one in record.get("measurements") or ()}
    objective = next(iter(record.get("objectives") or ("time",)))
    if objective != "time" or "time" not in values:
        raise KeyError("a measurement named 'time'")
    return measurement_of(values)


@dataclass(frozen=True)
class Contest:
    """What to replay: a strategy with its options, a number of evaluations, and earlier recordings to learn from."""

    strategy: str
    budget: int
    options: Mapping[str, Any] = field(default_factory=dict)
    history: Sequence[Past] = ()
    batch: int = 1


def replay(recorded: RecordedSpace, contest: Contest, seed: int) -> list[float]:
    """The score after each evaluation: best possible time / best time found so far; 0 until one is found.

    A failed config counts as an evaluation. If the space ends before the budget, the last score is repeated.
    """
    setting = Setting(recorded.space, seed, options=contest.options, history=contest.history)
    strategy = search.make(contest.strategy, setting)
    scores: list[float] = []
    score = 0.0
    while len(scores) < contest.budget:
        configs = strategy.ask(min(contest.batch, contest.budget - len(scores)))
        if not configs:
            return scores + [score] * (contest.budget - len(scores))
        for config in configs:
            measurement = recorded.measure(config)
            if measurement.ok and measurement.seconds is not None:
                score = max(score, recorded.best / measurement.seconds)
            trial = Trial(len(scores), recorded.space.rank(config), config, "", measurement)
            strategy.tell(trial)
            scores.append(score)
    return scores


def interval(scores: Sequence[float]) -> tuple[float, float]:
    """The 95% interval of the mean score over seeds, by Student's t, clipped to the range from 0 to 1."""
    n = len(scores)
    if n < 2:
        return scores[0], scores[0]
    half = _student(n - 1) * stdev(scores) / n**0.5
    return max(0.0, mean(scores) - half), min(1.0, mean(scores) + half)


def _student(freedom: int) -> float:
    """The 97.5% point of Student's t: exact for 1 and 2, else a Cornish-Fisher expansion from the normal one."""
    if freedom <= 2:
        return (12.706, 4.303)[freedom - 1]
    z = 1.959964
    first = (z**3 + z) / 4.0
    second = (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / 96.0
    third = (3.0 * z**7 + 19.0 * z**5 + 17.0 * z**3 - 15.0 * z) / 384.0
    return z + first / freedom + second / freedom**2 + third / freedom**3
