"""The benchmark hub's T4 format: the measurements of each config, in milliseconds, and how long every step took.

Counts that replace times are written as counts, with their unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deepgen.extend import Json, JsonObject, Study, Target, Trial, Verdict

VERSION = "1.0.0"
_INVALIDITY = {
    Verdict.CORRECT: "correct",
    Verdict.UNSTABLE: "correct",
    Verdict.WRONG: "correctness",
    Verdict.BUILD_FAILED: "compile",
    Verdict.BUILD_TIMEOUT: "timeout",
    Verdict.TIMED_OUT: "timeout",
    Verdict.NOT_RUN: "constraints",
}
_TIMES = {
    "compilation": "compile_time",
    "benchmark": "benchmark_time",
    "framework": "framework_time",
    "search_algorithm": "strategy_time",
    "validation": "verification_time",
}


def of_study(study: Study, count: int = 0) -> JsonObject:
    """All ended trials of a study in order, regardless of `count`."""
    return document([_of_trial(trial, study.target) for trial in study.trials()])


def document(rows: Sequence[JsonObject]) -> JsonObject:
    """A whole file."""
    return {"results": list(rows), "schema_version": VERSION, "metadata": {"timeunit": "milliseconds"}}


def _of_trial(trial: Trial, target: Target) -> JsonObject:
    measured = trial.measurement
    samples: list[Json] = [] if target.proxy else [seconds * 1e3 for seconds in measured.samples]
    build = trial.build_facts.get("build_seconds")
    times: JsonObject = {
        "compilation": build * 1e3 if isinstance(build, (int, float)) else 0.0,
        "benchmark": 0.0 if target.proxy else sum(measured.samples) * 1e3,
        "framework": 0.0,
        "search_algorithm": 0.0,
        "validation": 0.0,
        "runtimes": samples,
    }
    row: JsonObject = {
        "configuration": {name: list(v) if isinstance(v, tuple) else v for name, v in trial.config.items()},
        "times": times,
        "invalidity": _INVALIDITY.get(measured.verdict, "runtime"),
        "correctness": int(measured.verdict is not Verdict.WRONG),
        "measurements": [],
        "objectives": ["time"],
    }
    if trial.seconds is not None:
        scale, unit = (target.counts_a_second, target.proxy) if target.proxy else (1e3, "ms")
        row["measurements"] = [{"name": "time", "value": trial.seconds * scale, "unit": unit}]
    return row


def from_row(result: Mapping[str, Any], knobs: Sequence[str], objective: str) -> JsonObject:
    """A row of Kernel Tuner's `results`: everything except parameters and the tuner's own times is a measurement."""
    aside = {*knobs, *_TIMES.values(), "timestamp", "times", "__error__"}
    error = type(result["__error__"]).__name__ if "__error__" in result else ""
    kinds = {"": "correct", "CompilationFailedConfig": "compile", "InvalidConfig": "constraints"}
    return {
        "timestamp": str(result.get("timestamp", "")),
        "configuration": {name: result[name] for name in knobs},
        "times": {
            **{name: float(result.get(key, 0.0)) for name, key in _TIMES.items()},
            "runtimes": list(result.get("times", [])),
        },
        "invalidity": kinds.get(error, "runtime"),
        "correctness": 1,
        "measurements": [
            {"name": name, "value": value, "unit": "ms" if name.startswith("time") else ""}
            for name, value in result.items()
            if name not in aside
        ],
        "objectives": [objective],
    }
