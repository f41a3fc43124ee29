"""The benchmark hub's T1 files: parameters and constraints of a kernel, as text in Python's grammar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deepgen.extend import BadInput, Expr, Space, parse, parse_values


def t1_space(data: Mapping[str, Any], name: str = "T1 file") -> Space:
    """The space of a T1 file; `name` is what errors call it."""
    try:
        section = data["ConfigurationSpace"]
        parameters, conditions = section["TuningParameters"], section.get("Conditions", [])
        kernel = data.get("General", {}).get("BenchmarkName", name)
        if not isinstance(parameters, list) or not isinstance(conditions, list):
            raise BadInput("TuningParameters or Conditions is not a list", where=name, allowed="lists of objects")
    except (KeyError, AttributeError, TypeError) as error:
        raise BadInput(
            f"key {error} is missing", where=name, allowed="ConfigurationSpace with TuningParameters"
        ) from error
    space = Space(str(kernel))
    for parameter in parameters:
        knob, values = _field(parameter, "Name", name), _field(parameter, "Values", name)
        try:
            space.knob(knob, parse_values(values) if isinstance(values, str) else values)
        except (BadInput, TypeError) as error:
            raise BadInput(f"parameter {knob!r}: {error}", where=name) from error
    for condition in conditions:
        text = _field(condition, "Expression", name)
        if not isinstance(text, str):
            raise BadInput(f"condition {text!r:.60}", where=name, allowed="an expression as text")
        try:
            expr: Expr = parse(text)
            if not any(r.name == text for r in space.requirements):
                space.require(expr, text)
        except BadInput as error:
            raise BadInput(f"condition {text!r}: {error}", where=name) from error
    return space


def _field(data: Any, key: str, where: str) -> Any:
    if not isinstance(data, Mapping) or key not in data:
        raise BadInput(f"key {key!r} is missing in {data!r}", where=where)
    return data[key]
