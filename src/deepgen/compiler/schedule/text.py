"""Schedules as text for people, and with the numbers of a config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, get_args

from deepgen.compiler.schedule import steps
from deepgen.compiler.schedule.steps import Layout, LayoutPlace, Number, Schedule, Step
from deepgen.space import parse
from deepgen.space.evaluate import evaluate_strictly
from deepgen.vocabulary import BadInput

_NAMES = {kind: re.sub("(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower() for kind in get_args(Step)}
_NUMBERS = {kind: [f.name for f in fields(kind) if "Number" in str(f.type)] for kind in get_args(Step)}


def to_text(schedule: Schedule) -> str:
    """One step a line: its stage, what is done, and with what."""
    return "".join(f"{step_text(step)}\n" for step in schedule)


def step_text(step: Step) -> str:
    """Such as `split C: i by 4, 8`."""
    words = {field.name: _words(getattr(step, field.name)) for field in fields(step)}
    cast = f", cast to {step.dtype}" if isinstance(step, steps.CacheRead) and step.dtype else ""
    return f"{_NAMES[type(step)]} {step.phrase.format(**words)}{cast}"


def refused(step: Step, what: str, allowed: str | None = None) -> BadInput:
    """Why a step cannot be done."""
    return BadInput(what, where=step_text(step), allowed=allowed)


def _words(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def concrete(schedule: Schedule, config: Mapping[str, Any]) -> Schedule:
    """The schedule of one config: numbers in place of texts over knobs."""
    return tuple(_concrete_step(step, config) for step in schedule)


def number(step: Step, value: Number) -> int:
    """A number of a concrete step."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise refused(step, f"{value!r} is not a whole number", "give a config for its knobs")
    return value


def _concrete_step(step: Any, config: Mapping[str, Any]) -> Step:
    if isinstance(step, Layout):
        values = [(p, None if p.modulo is None else _value(step, p.modulo, config)) for p in step.order]
        return replace(step, order=tuple(LayoutPlace(p.dimension, _value(step, p.by, config), m) for p, m in values))
    changed: dict[str, Any] = {}
    for name in _NUMBERS[type(step)]:
        value = getattr(step, name)
        many = isinstance(value, tuple)
        changed[name] = tuple(_value(step, v, config) for v in value) if many else _value(step, value, config)
    changed_step: Step = replace(step, **changed)
    return changed_step


def _value(step: Step, value: Number, config: Mapping[str, Any]) -> int:
    number = evaluate_strictly(parse(value), config) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int):
        raise refused(step, f"{value!r} is {number!r}", "a whole number")
    return number
