"""Heron's case files: operators, each with a list of numbers, and the settings for tuning them.

{"config": {"method": "CGA", "max_trials": 2000, "in_dtype": "float16", "cases": {"C1": ["c2d", [16, 56, ...], 3]}}}

What the numbers of a case mean is in `CASES`. After those of a convolution, a text says how its weight is packed. A
third item says how often a network has the layer. Weights of matrix products are N x K. Heron's `scan` multiplies by a
triangular matrix; here a case is the running sum of a tensor of that shape along its last dimension.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from deepgen import gemm
from deepgen.extend import (
    NAMED_FORMATS,
    OPERATORS,
    BadInput,
    Document,
    FileFormat,
    Operator,
    Scheduled,
    Study,
    TuningFile,
    member_of,
    our_name,
)

_FILTER = ("kd", "kh", "kw")
_IMAGE = ("N", "H", "W", "CI", "CO", "kh", "kw", "stride", "pad", "dilation")
CASES: Mapping[str, tuple[str, ...]] = {
    "gemm": ("M", "K", "N"),
    "bmm": ("B", "M", "K", "N"),
    "gemv": ("M", "K"),
    "scan": ("M", "N", "K"),
    "c1d": ("N", "L", "CI", "CO", "kw", "stride", "pad", "dilation"),
    "c2d": _IMAGE,
    "dil": _IMAGE,
    "c3d": ("N", "D", "H", "W", "CI", "CO", "kd", "kh", "kw", "stride", "pad", "dilation"),
    "t2d": (*_IMAGE, "out_pad"),
}
# deepgen's names of these operators; the others have the same names.
_OURS = {"c1d": "conv1d", "c2d": "conv2d", "dil": "dilated_conv2d", "c3d": "conv3d", "t2d": "conv_transpose2d"}
_METHODS = {"CGA": "constrained_ga", "RAND": "random"}
_NEEDED = ("cases", "in_dtype", "out_dtype")
_COUNTS = ("max_trials", "runner_number", "runner_repeat", "runner_timeout", "build_timeout")
_ACCEPTED = ("out_name", "method", *_COUNTS, *_NEEDED)


class HeronFormat(FileFormat):
    """Files that list operators and shapes under `config.cases`."""

    def claims(self, data: Mapping[str, Any]) -> bool:
        config = data.get("config")
        return isinstance(config, dict) and isinstance(config.get("cases"), dict)

    def tuning(self, document: Document, space_strategy: int) -> TuningFile:
        return read(document)


def read(document: Document) -> TuningFile:
    """The cases as operators, and the file's settings for tuning them."""
    data, where = document.data, document.name
    config = data["config"]
    for key in _NEEDED:
        if key not in config:
            raise BadInput(f"config.{key} is not given", where=where, allowed="Heron's case files all have it")
    for key in config:
        if key not in _ACCEPTED:
            raise BadInput(f"unknown key config.{key}", where=where, allowed="one of " + ", ".join(_ACCEPTED))
    for key in _NEEDED[1:]:
        if not isinstance(config[key], str):
            raise BadInput(f"config.{key} is {config[key]!r:.80}", where=where, allowed="a name such as float16")
    formats = our_name(config["in_dtype"]), our_name(config["out_dtype"])
    cases = [_case(name, case, formats, where) for name, case in config["cases"].items()]
    if not cases:
        raise BadInput("config.cases is empty", where=where, allowed="at least one case")
    method = config.get("method")
    if method is not None and not (isinstance(method, str) and method in _METHODS):
        raise BadInput(f"config.method is {method!r}", where=where, allowed="one of " + ", ".join(_METHODS))
    trials, number, repeat, run_seconds, build_seconds = (_count(config, key, where) for key in _COUNTS)
    # Heron times `repeat` batches of `number` runs; here each run is timed.
    runs = None if number is None and repeat is None else (number or 1) * (repeat or 1)
    return TuningFile(
        document.path,
        tuple(dict.fromkeys(operator for operator, _ in cases)),
        counts=_counted(cases),
        strategy=_METHODS.get(str(method)),
        trials=trials,
        runs=runs,
        run_seconds=run_seconds,
        build_seconds=build_seconds,
        after=write_case,
    )


def _counted(cases: Sequence[tuple[Operator, int | None]]) -> dict[Operator, int]:
    """How often a network has each layer, if the file says so."""
    if all(count is None for _, count in cases):
        return {}
    counts = dict.fromkeys((operator for operator, _ in cases), 0)
    for operator, count in cases:
        counts[operator] += 1 if count is None else count
    return counts


def _case(name: str, case: Any, formats: tuple[str, str], where: str) -> tuple[Operator, int | None]:
    where = f"{where}: config.cases.{name.strip()}"
    if not (isinstance(case, list) and [type(part) for part in case[:3]] in ([str, list], [str, list, int])):
        allowed = 'an operator, its sizes and its count: ["gemm", [64, 64, 64], 3]'
        raise BadInput(f"is {case!r:.80}", where=where, allowed=allowed)
    kind, numbers, count = case[0], case[1], case[2] if len(case) > 2 else None
    if len(case) > 3 or (count is not None and count < 1):
        raise BadInput(f"is {case!r:.80}", where=where, allowed="a count of at least 1, then nothing else")
    if kind not in CASES:
        raise BadInput(f"unknown operator {kind!r}", where=where, allowed="one of " + ", ".join(CASES))
    meaning = CASES[kind]
    packed = {}
    if "CO" in meaning and numbers and isinstance(numbers[-1], str):
        *numbers, text = numbers
        packed = {"weight_layout": text}
    if len(numbers) != len(meaning) or not all(type(number) is int for number in numbers):
        raise BadInput(f"{kind} with {numbers!r:.80}", where=where, allowed=f"whole numbers: {', '.join(meaning)}")
    try:
        return _operator(kind, dict(zip(meaning, numbers, strict=True)), packed, *formats), count
    except BadInput as error:
        raise BadInput(error.what, where=where, allowed=error.allowed) from error


def _operator(kind: str, sizes: dict[str, int], packed: Mapping[str, str], of: str, out: str) -> Operator:
    if kind in ("gemm", "bmm"):
        return gemm(sizes["M"], sizes["N"], sizes["K"], batch=sizes.get("B", 1), dtype=of, c=out, layout="nt")
    if of not in NAMED_FORMATS or NAMED_FORMATS[of][1] != out:
        served = ", ".join(f"{one} and {result}" for one, (_, result) in NAMED_FORMATS.items())
        raise BadInput(f"in_dtype and out_dtype are {of} and {out}", allowed=f"one of {served}")
    filters = tuple(sizes.pop(side) for side in _FILTER if side in sizes)
    if kind == "c2d" and sizes["dilation"] == 1:
        del sizes["dilation"]
    elif kind == "c2d":
        kind = "dil"
    filter_size = {"k": filters} if filters else {}
    return OPERATORS.get(_OURS.get(kind, kind)).make({**sizes, **filter_size, **packed, "dtype": of})


def _count(config: Mapping[str, Any], key: str, where: str) -> int | None:
    value = config.get(key)
    if value is not None and (type(value) is not int or value < 1):
        raise BadInput(f"config.{key} is {value!r}", where=where, allowed="an integer of at least 1")
    return value


def write_case(study: Study) -> None:
    """Write copies of the journal's data for other programs, in the folder `case` of a study.

    They are constraints.json, records.jsonl, statistics.json and, if rules generated the winner, schedule.txt.
    """
    summary = study.summary()
    files = {
        "constraints.json": json.dumps(study.space.to_json(), indent=2) + "\n",
        "records.jsonl": "".join(json.dumps(row) + "\n" for row in study.rows()),
        "statistics.json": json.dumps(summary, indent=2) + "\n",
    }
    if summary["winner"] is not None:
        family, config = member_of(study.generator, study.best().trial.config)
        if isinstance(family, Scheduled):
            files["schedule.txt"] = family.schedule_text(study.operator, study.target, config)
    folder = study.folder / "case"
    try:
        folder.mkdir(exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{folder} cannot be written: {error.strerror}", allowed="a folder with free space") from error
