"""A schedule with knobs, made whole by a config; and the places of a layout, read from their text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from deepgen.compiler.schedule.steps import (
    Layout,
    Number,
    Pipeline,
    Schedule,
    Split,
    Step,
    StorageAlign,
    Swizzle,
    Unroll,
)
from deepgen.compiler.schedule.text import refused
from deepgen.space import parse
from deepgen.space.evaluate import evaluate_strictly

# The fields of steps that are numbers or texts over knobs.
NUMBERS: Mapping[type[Any], tuple[str, ...]] = {
    Split: ("factors",),
    Unroll: ("most",),
    StorageAlign: ("factor", "offset"),
    Pipeline: ("depth",),
    Swizzle: ("mode",),
}
_PART = re.compile(r"([/%])([^/%]+)")
_PLACE = re.compile(r"\s*(\d+)\s*((?:[/%][^/%]+)*)")


@dataclass(frozen=True)
class Place:
    """One dimension of a layout: a dimension of the stage, divided, and then the remainder where there is one."""

    dimension: int
    by: int = 1
    modulo: int | None = None


def concrete(schedule: Schedule, config: Mapping[str, Any]) -> Schedule:
    """The schedule of one config: numbers in place of texts over knobs."""
    return tuple(_concrete_step(step, config) for step in schedule)


def places(step: Layout) -> tuple[Place, ...]:
    """The dimensions of a concrete layout, outermost first."""
    return tuple(_place(step, text) for text in step.order)


def number(step: Step, value: Number) -> int:
    """A number of a concrete step."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise refused(step, f"{value!r} is not a whole number", "give a config for its knobs")
    return value


def _concrete_step(step: Any, config: Mapping[str, Any]) -> Step:
    if isinstance(step, Layout):
        return replace(step, order=tuple(_concrete_place(step, text, config) for text in step.order))
    changed: dict[str, Any] = {}
    for name in NUMBERS.get(type(step), ()):
        value = getattr(step, name)
        many = isinstance(value, tuple)
        changed[name] = tuple(_value(step, v, config) for v in value) if many else _value(step, value, config)
    made: Step = replace(step, **changed)
    return made


def _value(step: Step, value: Number, config: Mapping[str, Any]) -> int:
    found = evaluate_strictly(parse(value), config) if isinstance(value, str) else value
    if isinstance(found, bool) or not isinstance(found, int):
        raise refused(step, f"{value!r} is {found!r}", "a whole number")
    return found


def _concrete_place(step: Layout, text: str, config: Mapping[str, Any]) -> str:
    dimension, parts = _split_place(step, text)
    return dimension + "".join(f"{op}{_value(step, number.strip(), config)}" for op, number in parts)


def _split_place(step: Layout, text: str) -> tuple[str, list[tuple[str, str]]]:
    found = _PLACE.fullmatch(text)
    if not found:
        raise refused(step, f"{text!r} is not a dimension", "such as 0, 1/8, 1%8 or 1/8%4")
    return found.group(1), _PART.findall(found.group(2))


def _place(step: Layout, text: str) -> Place:
    dimension, parts = _split_place(step, text)
    operators = "".join(op for op, _ in parts)
    if operators not in ("", "/", "%", "/%") or not all(n.strip().isdigit() and int(n) for _, n in parts):
        raise refused(step, f"{text!r} is not a dimension", "such as 0, 1/8, 1%8 or 1/8%4")
    by = {op: int(n) for op, n in parts}
    return Place(int(dimension), by.get("/", 1), by.get("%"))
