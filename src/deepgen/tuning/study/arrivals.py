"""Results that come into a study from elsewhere: checked completely before anything is written.

A result must have every field that readers of a study rely on, belong to a trial of the study, and contain only times
that the device can reach.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from deepgen.tuning.study.finals import MOST_SECONDS, Finals
from deepgen.vocabulary.measurement import Measurement, Trial


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


def check_finalists(finals: Finals, ended: Mapping[int, Trial]) -> None:
    """The finalists are correct trials of the study, each with its own rank, config and kernel."""
    for row in finals.finalists:
        trial = ended.get(row.trial)
        _need(trial is not None and trial.ok, f"trial {row.trial} is a finalist, but no right trial of the study")
        if trial is not None:
            same = (row.rank, row.config, row.kernel_id) == (trial.rank, trial.config, trial.kernel_id)
            _need(same, f"finalist {trial.id} is of another config than the study's trial {trial.id}")


def check_times(trials: Iterable[Trial], finals: Finals | None, least: float) -> None:
    """No time is shorter than the device can make it."""
    times = [(f"trial {t.id}", t.measurement.seconds) for t in trials if t.measurement.seconds is not None]
    times += [(f"finalist {row.trial}", row.seconds) for row in (finals.finalists if finals is not None else ())]
    for name, seconds in times:
        what = f"{name} would have taken {seconds:.3g} s a run, and this device cannot do it in less than {least:.3g} s"
        _need(seconds >= least, what)


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and 0.0 < value < MOST_SECONDS  # type: ignore[operator]


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def _need(condition: bool, what: str) -> None:
    if not condition:
        raise Flawed(what)
