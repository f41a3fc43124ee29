"""Its result files, read and written. Their form is in `_FORM`; acc is torchMs over kcgMs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepgen.operators import Gemm, Operator
from deepgen.space import Space
from deepgen.space.definition import value_from_json, value_to_json
from deepgen.space.expr import Config
from deepgen.vocabulary import BadInput, Json, JsonObject, foreign
from deepgen_formats.older.files import DTYPE_CODES

_FORM = '{"results": [{"correct": true, "acc": 1.1, "torchMs": 1.1, "kcgMs": 1.0, "config": {"KEY": value}}]}'


@dataclass(frozen=True)
class Result:
    """One config as the older tool measured it. A wrong one has no time."""

    config: Config
    correct: bool
    ms: float | None
    torch_ms: float | None

    @property
    def speedup(self) -> float | None:
        """Over torch."""
        return self.torch_ms / self.ms if self.ms and self.torch_ms else None

    @property
    def gflops(self) -> float | None:
        """None where the config does not tell the problem's sizes."""
        sizes = [self.config.get(f"{axis}_SIZE") for axis in "MNK"] + [self.config.get("BATCH_SIZE", 1)]
        if self.ms is None or not all(type(size) is int and size > 0 for size in sizes):
            return None
        return 2.0 * math.prod(size for size in sizes if isinstance(size, int)) / self.ms / 1e6

    def to_json(self) -> JsonObject:
        return {
            "config": {key: value_to_json(value) for key, value in self.config.items()},
            "correct": self.correct,
            "ms": self.ms,
            "torch_ms": self.torch_ms,
            "speedup": self.speedup,
            "gflops": self.gflops,
        }


def read_results(text: bytes | str, name: str) -> list[Result]:
    """The results of a file, the fastest against torch first."""
    data: Any = foreign.parse(text, name)
    if not isinstance(data, dict) or not isinstance(data.get("results"), list):
        raise BadInput("key 'results' holds no list", where=name, allowed=_FORM)
    if not data["results"]:
        raise BadInput("key 'results' is empty", where=name, allowed="at least one result")
    found = [_result(entry, f"{name}: results[{i}]") for i, entry in enumerate(data["results"])]
    return sorted(found, key=lambda r: (not r.correct, -(r.speedup or 0.0), r.ms or math.inf))


def results_space(results: Sequence[Result], name: str) -> Space:
    """A space of exactly the configs that were right."""
    right = [r.config for r in results if r.correct]
    if not right:
        raise BadInput("no result is correct, so there is no space of them", where=name)
    return Space.from_points(Path(name).stem, right)


def to_json(operator: Operator, times: Sequence[tuple[Config, float]], torch: float | None) -> JsonObject:
    """Right configs and their seconds as a result file holds them; torchMs is null where torch was not measured."""
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
    """The keys that tell the problem. Of layouts the older tool knew only whether A is transposed."""
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


def _result(entry: Any, where: str) -> Result:
    if not isinstance(entry, Mapping):
        raise BadInput(f"{entry!r} is not a result", where=where, allowed=_FORM)
    config = entry.get("config")
    if not isinstance(config, Mapping) or not config:
        raise BadInput(f"key 'config' is {_shown(config)}", where=where, allowed="the config, KEY: value")
    correct = entry.get("correct")
    if not isinstance(correct, bool):
        raise BadInput(f"key 'correct' is {_shown(correct)}", where=where, allowed="true or false")
    return Result(
        config={str(key): _value(key, value, where) for key, value in config.items()},
        correct=correct,
        ms=_milliseconds("kcgMs", entry.get("kcgMs"), where, needed=True) if correct else None,
        torch_ms=_milliseconds("torchMs", entry.get("torchMs"), where, needed=False),
    )


def _milliseconds(key: str, value: Any, where: str, *, needed: bool) -> float | None:
    if value is None and not needed:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise BadInput(f"key {key!r} is {_shown(value)}", where=where, allowed="milliseconds, more than 0")
    return float(value)


def _value(key: str, value: Any, where: str) -> Any:
    try:
        return value_from_json(value)
    except (BadInput, TypeError) as error:
        raise BadInput(f"config key {key!r} is {_shown(value)}", where=where, allowed="a number or a word") from error


def _shown(value: Any) -> str:
    return "missing" if value is None else repr(value)[:60]
