"""Results that come into a study from elsewhere: checked completely before anything is written.

A result must have every field that readers of a study rely on, belong to a trial of the study, and contain only times
that the device can reach.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from deepgen.vocabulary.measurement import Measurement, Trial, Verdict

_VERDICTS = frozenset(verdict.value for verdict in Verdict)
_MOST_SECONDS = 1e9


class Flawed(Exception):
    """What is wrong with a result, in words."""


def check_measurement(trial: int, measured: Measurement) -> None:
    """Every field of a measurement has its type; a correct one has times."""
    error = measured.error
    _need(isinstance(measured.detail, str), f"the detail of trial {trial} is not a text")
    _need(all(map(_is_time, measured.samples)), f"the samples of trial {trial} are not all times")
    _need(bool(measured.samples) or not measured.ok, f"trial {trial} is right but was not timed")
    _need(error is None or type(error) in (int, float), f"the error of trial {trial} is not a number")
    for name in ("counters", "conditions"):
        _need(isinstance(getattr(measured, name), dict), f"the {name} of trial {trial} are not a table")
    _need(all(map(_is_number, measured.counters.values())), f"the counters of trial {trial} are not all numbers")


def check_finals(finals: Mapping[str, Any], *, samples: bool = True) -> None:
    """Every field that readers of finals rely on is there."""
    rows = _rows(finals, "finalists", required=True)
    for row in rows:
        _finalist(row, samples)
    trials = [row["trial"] for row in rows]
    _need(len(set(trials)) == len(trials), "a finalist stands there twice")
    winner = finals.get("winner")
    _need("winner" in finals and (winner in trials if trials else winner is None), "the winner is not a finalist")
    ties = finals.get("ties", [])
    _need(isinstance(ties, list) and all(tie in trials for tie in ties), "ties are not among the finalists")
    _need(finals.get("tie_broken_by") in (None, "default", "resources"), "tie_broken_by is unknown")
    for row in _rows(finals, "baselines"):
        _need(isinstance(row.get("name"), str), "a baseline has no name")
        _need(_is_time(row.get("seconds")), f"baseline {row.get('name')} has no time")
        ratio, interval = row.get("ratio"), row.get("interval")
        _need("ratio" in row and (ratio is None or _is_ratio(ratio)), f"baseline {row['name']} has no ratio")
        given = isinstance(interval, list) and len(interval) == 2 and all(map(_is_ratio, interval))
        _need("interval" in row and (interval is None or given), f"baseline {row['name']} has no interval")
    for part, names in (("dropped", "trial"), ("baselines_lost", "name")):
        for row in _rows(finals, part):
            _need(names in row and row.get("verdict") in _VERDICTS, f"{part} has a row without {names} or verdict")
            _need(isinstance(row.get("detail"), str), f"{part} has a row without detail")
    _serves(finals.get("serves"))
    for row in _rows(finals, "shapes"):
        _need(isinstance(row.get("operator"), str), "a shape has no name")
        _need(isinstance(row.get("baselines"), dict), "a shape has no baselines")
        _need(row.get("seconds") is None or _is_time(row["seconds"]), "a shape has no time")
    for name in ("peak_gflops", "bandwidth"):
        _need(finals.get(name) is None or _is_rate(finals[name]), f"{name} is not a rate")


def is_complete(finals: Mapping[str, Any]) -> bool:
    """Whether finals have every field that readers rely on."""
    try:
        check_finals(finals, samples=False)
    except Flawed:
        return False
    return True


def check_finalists(finals: Mapping[str, Any], ended: Mapping[int, Trial]) -> None:
    """The finalists are correct trials of the study, each with its own rank, config and kernel."""
    for row in finals["finalists"]:
        trial = ended.get(row["trial"])
        _need(trial is not None and trial.ok, f"trial {row['trial']} is a finalist, but no right trial of the study")
        if trial is not None:
            same = (row["rank"], row["config"], row["kernel_id"]) == (trial.rank, trial.config, trial.kernel_id)
            _need(same, f"finalist {trial.id} is of another config than the study's trial {trial.id}")


def check_times(trials: Iterable[Trial], finals: Mapping[str, Any] | None, least: float) -> None:
    """No time is shorter than the device can make it."""
    times = [(f"trial {t.id}", t.measurement.seconds) for t in trials if t.measurement.seconds is not None]
    times += [(f"finalist {row['trial']}", row["seconds"]) for row in (finals or {}).get("finalists", [])]
    for name, seconds in times:
        what = f"{name} would have taken {seconds:.3g} s a run, and this device cannot do it in less than {least:.3g} s"
        _need(seconds >= least, what)


def _finalist(row: Mapping[str, Any], with_samples: bool) -> None:
    name = f"finalist {row.get('trial')}"
    _need(type(row.get("trial")) is int and type(row.get("rank")) is int, f"{name} has no trial or rank")
    _need(isinstance(row.get("config"), dict), f"{name} has no config")
    _need(isinstance(row.get("kernel_id"), str), f"{name} has no kernel")
    _need(_is_time(row.get("seconds")), f"{name} has no time")
    if with_samples:
        samples = row.get("samples")
        if not isinstance(samples, list) or not samples or not all(map(_is_time, samples)):
            raise Flawed(f"{name} has no samples")
        _need(math.isclose(median(samples), row["seconds"], rel_tol=1e-9), f"the time of {name} is not its samples'")
    slower = row.get("slower_than_leader")
    ratios = [slower.get(key) for key in ("estimate", "low", "high")] if isinstance(slower, dict) else [None]
    _need(all(map(_is_ratio, ratios)), f"{name} has no ratio to the leader")


def _serves(serves: object) -> None:
    """Which shapes the winner serves, if not all."""
    if serves is None:
        return
    if not isinstance(serves, dict):
        raise Flawed("serves is not a table")
    only = serves.get("only")
    shapes = isinstance(only, list) and all(isinstance(sizes, dict) for sizes in only)
    _need(only is None or shapes, "serves names no shapes")
    _need(not only or isinstance(serves.get("why"), str), "serves does not say why")
    _need(isinstance(serves.get("dense", ""), str), "serves does not say why arrays must be dense")


def _rows(finals: Mapping[str, Any], part: str, *, required: bool = False) -> list[Mapping[str, Any]]:
    rows = finals.get(part, None if required else [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise Flawed(f"{part} are missing" if rows is None else f"{part} are not a list of rows")
    return rows


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and 0.0 < value < _MOST_SECONDS  # type: ignore[operator]


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def _is_ratio(value: object) -> bool:
    return type(value) in (int, float) and value > 0  # type: ignore[operator]  # infinite where nothing bounds it


def _is_rate(value: object) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf  # type: ignore[operator]


def _need(condition: bool, what: str) -> None:
    if not condition:
        raise Flawed(what)
