"""Reads and writes legacy result files. Their format is in `_FORM`; acc is torchMs over kcgMs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from deepgen import Gemm
from deepgen.extend import (
    BadInput,
    Config,
    Json,
    JsonObject,
    MeasuredConfig,
    Operator,
    Study,
    value_from_json,
    value_to_json,
)
from deepgen_formats.older.files import DTYPE_CODES

_FORM = '{"results": [{"correct": true, "acc": 1.1, "torchMs": 1.1, "kcgMs": 1.0, "config": {"KEY": value}}]}'
_TORCH = ("torch", "torch-gpu")


def read_results(data: Any, name: str) -> list[MeasuredConfig]:
    """The results of a file, the largest speedup over torch first."""
    if not isinstance(data, dict) or not isinstance(data.get("results"), list):
        raise BadInput("key 'results' is not a list", where=name, allowed=_FORM)
    if not data["results"]:
        raise BadInput("key 'results' is empty", where=name, allowed="at least one result")
    results = [_result(entry, f"{name}: results[{i}]") for i, entry in enumerate(data["results"])]
    return sorted(results, key=lambda r: (not r.correct, -(r.speedup or 0.0), r.ms or math.inf))


def of_study(study: Study, count: int) -> JsonObject:
    """The best of a study in that format; times of the finals are preferred."""
    finals = study.finals()
    raced = finals.seconds() if finals is not None else {}
    torch = next((row.seconds for row in (finals.baselines if finals is not None else ()) if row.name in _TORCH), None)
    best = study.top(count)
    if not best:
        raise BadInput(f"{study.folder} has no correct kernel yet")
    times = [(dict(trial.config), raced.get(trial.id) or trial.seconds or 0.0) for trial in best]
    return to_json(study.operator, times, torch)


def to_json(operator: Operator, times: Sequence[tuple[Config, float]], torch: float | None) -> JsonObject:
    """Correct configs and their seconds in the format of a result file; torchMs is null if torch was not measured."""
    problem = _problem(operator)
    return {
        "results": [
            {
                "correct": True,
                "acc": torch / seconds if torch else None,
                "torchMs": 1e3 * torch if torch else None,
                "kcgMs": 1e3 * seconds,
                "config": {**problem, **{knob: value_to_json(value) for knob, value in config.items()}},
            }
            for config, seconds in times
        ]
    }


def _problem(operator: Operator) -> dict[str, Json]:
    """The keys that describe the problem. The legacy tool's only layout option was whether A is transposed."""
    if not isinstance(operator, Gemm):
        return {}
    problem: dict[str, Json] = {"M_SIZE": operator.m, "N_SIZE": operator.n, "K_SIZE": operator.k}
    problem |= {"BATCH_SIZE": operator.batch, "IS_ATRANS": int(operator.layout[0] == "t")}
    if operator.layout[1] == "t":
        problem["IS_BTRANS"] = 1
    codes = {name: code for code, name in DTYPE_CODES.items()}
    for key, name in (("DATATYPE_A", operator.a), ("DATATYPE_B", operator.b), ("DATATYPE_C", operator.c)):
        if name in codes:
            problem[key] = codes[name]
    return problem


def _result(entry: Any, where: str) -> MeasuredConfig:
    if not isinstance(entry, Mapping):
        raise BadInput(f"{entry!r} is not a result", where=where, allowed=_FORM)
    config = entry.get("config")
    if not isinstance(config, Mapping) or not config:
        raise BadInput(f"key 'config' is {_shown(config)}", where=where, allowed="the config, KEY: value")
    correct = entry.get("correct")
    if not isinstance(correct, bool):
        raise BadInput(f"key 'correct' is {_shown(correct)}", where=where, allowed="true or false")
    values = {str(key): _value(key, value, where) for key, value in config.items()}
    ms = _milliseconds("kcgMs", entry.get("kcgMs"), where, needed=True) if correct else None
    torch_ms = _milliseconds("torchMs", entry.get("torchMs"), where, needed=False)
    return MeasuredConfig(values, correct, ms, torch_ms, _gflops(values, ms))


def _gflops(config: Config, ms: float | None) -> float | None:
    sizes = [config.get(f"{axis}_SIZE") for axis in "MNK"] + [config.get("BATCH_SIZE", 1)]
    if ms is None or not all(type(size) is int and size > 0 for size in sizes):
        return None
    return 2.0 * math.prod(size for size in sizes if isinstance(size, int)) / ms / 1e6


def _milliseconds(key: str, value: Any, where: str, *, needed: bool) -> float | None:
    if value is None and not needed:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise BadInput(f"key {key!r} is {_shown(value)}", where=where, allowed="a positive number of milliseconds")
    return float(value)


def _value(key: str, value: Any, where: str) -> Any:
    try:
        return value_from_json(value)
    except (BadInput, TypeError) as error:
        raise BadInput(f"config key {key!r} is {_shown(value)}", where=where, allowed="a number or a string") from error


def _shown(value: Any) -> str:
    return "missing" if value is None else repr(value)[:60]
