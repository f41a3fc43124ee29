"""The return values of Kernel Tuner's calls: a dictionary for each config, and one about the run. Times are
milliseconds.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from deepgen.extend import BadInput, Study, Target, Trial, Verdict, __version__, parse
from deepgen_formats import t4

_TIMINGS = ("framework", "strategy", "compile", "verification", "benchmark")
_HIGHER = ("gflop/s", "gflops", "tflop/s", "tflops", "gb/s", "tb/s", "gflops/w", "gflop/s/w")


class ErrorConfig(str):
    """Why a config has no time, as text."""

    __slots__ = ()


class InvalidConfig(ErrorConfig):
    """The config was not run."""


class CompilationFailedConfig(ErrorConfig):
    """The config could not be built."""


class RuntimeFailedConfig(ErrorConfig):
    """The config did not finish, or its result was wrong."""


_FAILURES = {
    Verdict.BUILD_FAILED: CompilationFailedConfig,
    Verdict.BUILD_TIMEOUT: CompilationFailedConfig,
    Verdict.NOT_RUN: InvalidConfig,
}
Metrics = Mapping[str, "Callable[[dict[str, Any]], Any] | str"]


def result_of(trial: Trial, names: Sequence[str], metrics: Metrics, strategy_time: float) -> dict[str, Any]:
    """A trial as a row of `results`."""
    measured, facts = trial.measurement, trial.build_facts
    timed = bool(measured.samples) and measured.verdict in (Verdict.CORRECT, Verdict.UNSTABLE)
    row: dict[str, Any] = {name: trial.config[name] for name in names}
    if timed:
        row["time"] = sum(measured.samples) / len(measured.samples) * 1e3
        row["times"] = [seconds * 1e3 for seconds in measured.samples]
    else:
        kind = _FAILURES.get(measured.verdict, RuntimeFailedConfig)
        row["__error__"] = kind(f"{measured.verdict}: {measured.detail}".rstrip(": "))
    row["compile_time"] = _milliseconds(facts.get("build_seconds"))
    row["verification_time"] = _milliseconds(measured.conditions.get("verify_seconds"))
    row["benchmark_time"] = sum(measured.samples) * 1e3
    if timed:
        _measure(metrics, row)
    row["timestamp"] = str(datetime.now(timezone.utc))
    row["strategy_time"] = strategy_time
    row["framework_time"] = 0.0
    return row


def check(metrics: Metrics, objective: str | None, config: Mapping[str, Any]) -> None:
    """Raises BadInput for a metric that cannot be computed or an unknown objective, before anything is run."""
    if objective not in (None, "time", *metrics):
        raise BadInput(f"objective is {objective!r}", allowed="one of " + ", ".join(["time", *metrics]))
    row = {**config, "time": 1.0, "times": [1.0], **dict.fromkeys((f"{part}_time" for part in _TIMINGS), 1.0)}
    try:
        _measure(metrics, row)
    except BadInput:
        raise
    except Exception as error:  # any error of the user's function
        raise BadInput(f"a metric raised {type(error).__name__}: {error}", allowed="functions of a result") from error


def _measure(metrics: Metrics, row: dict[str, Any]) -> None:
    for name, metric in metrics.items():
        row[name] = metric(row) if callable(metric) else _evaluated(metric, row)


def _milliseconds(seconds: Any) -> float:
    return float(seconds) * 1e3 if isinstance(seconds, (int, float)) else 0.0


def _evaluated(text: str, row: Mapping[str, Any]) -> Any:
    """The value of an expression over parameters, times and earlier metrics."""
    expression = parse(text)
    strange = sorted(expression.knobs() - set(row))
    if strange:
        raise BadInput(f"metric {text!r} names {strange[0]!r}", allowed="one of " + ", ".join(row))
    return expression.evaluate({name: row[name] for name in expression.knobs()})


def best_of(results: Sequence[Mapping[str, Any]], objective: str, higher: bool | None) -> Mapping[str, Any]:
    """The row with the best objective."""
    rows = [row for row in results if "__error__" not in row]
    if not rows:
        return {}
    upwards = objective.lower() in _HIGHER if higher is None else higher
    return (max if upwards else min)(rows, key=lambda row: row[objective])


def environment(
    results: Sequence[Mapping[str, Any]], best: Mapping[str, Any], target: Target, iterations: int, options: Any
) -> dict[str, Any]:
    """Information about the run in addition to the results."""
    about: dict[str, Any] = {"device_name": target.name} if target.runner == "gpu" else {}
    about |= {"iterations": iterations, "compiler_options": options}
    about["best_config"] = dict(best)
    for part in _TIMINGS:
        about[f"total_{part}_time"] = sum(float(row[f"{part}_time"]) for row in results)
    return about


def write_cache(path: Path, study: Study, rows: Sequence[Mapping[str, Any]], about: Mapping[str, Any]) -> None:
    """A cache file as Kernel Tuner writes and reads them."""
    names = list(about["tune_params"])
    cached = {",".join(str(row[name]) for name in names): _cached(row) for row in rows}
    data = {"device_name": study.target.name, **about, "tune_params_keys": names, "cache": cached}
    _write(path, data)


def _cached(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a cache: a failed config has the kind of failure instead of its time."""
    kept = {name: value for name, value in row.items() if name not in ("strategy_time", "framework_time", "__error__")}
    return kept if "__error__" not in row else {**kept, "time": type(row["__error__"]).__name__}


def store_output_file(
    output_filename: str | Path,
    results: Sequence[Mapping[str, Any]],
    tune_params: Mapping[str, Any],
    objective: str = "time",
) -> None:
    """Write results as a T4 file."""
    rows = [t4.from_row(row, list(tune_params), objective) for row in results]
    _write(with_suffix(output_filename), t4.document(rows))


def store_metadata_file(metadata_filename: str | Path) -> None:
    """Write the environment of this machine's results."""
    about = {
        "operating_system": platform.system(),
        "hardware": {"hardware_description": [platform.machine()]},
        "environment": {"device_query": {}, "requirements": [f"deepgen=={__version__}"]},
    }
    _write(with_suffix(metadata_filename), {"metadata": about, "schema_version": t4.VERSION})


def with_suffix(name: str | Path) -> Path:
    """The path of a JSON file; the suffix may be omitted."""
    path = Path(name)
    return path if path.suffix == ".json" else path.with_name(path.name + ".json")


def _write(path: Path, data: Mapping[str, Any]) -> None:
    """Write atomically, so that a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(data, indent=1, default=lambda value: value.item() if hasattr(value, "item") else str(value))
    handle, fresh = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text + "\n")
    Path(fresh).replace(path)
