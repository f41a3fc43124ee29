"""Schedules as text for people, and as JSON both ways."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, get_args

from deepgen.compiler.schedule import steps
from deepgen.compiler.schedule.steps import (
    Layout,
    Number,
    Schedule,
    Step,
)
from deepgen.space import parse
from deepgen.space.evaluate import evaluate_strictly
from deepgen.vocabulary import BadInput, JsonObject

_KINDS: Mapping[str, type[Any]] = {
    re.sub("(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower(): kind for kind in get_args(Step)
}
_NUMBERS = {kind: [f.name for f in fields(kind) if "Number" in str(f.type)] for kind in get_args(Step)}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_LONGEST = 200  # letters of a name or an expression over knobs
_MOST = 10_000  # steps, and parts of a step


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


def to_json(schedule: Schedule) -> list[JsonObject]:
    return [{"step": _NAMES[type(step)], **_fields(step)} for step in schedule]


def _fields(step: Step) -> JsonObject:
    fields = {name: value for name, value in vars(step).items() if value is not None}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}


def from_json(data: Any, where: str = "schedule") -> Schedule:
    """A schedule that was read from a file; anything else than steps is refused."""
    if not isinstance(data, list) or len(data) > _MOST:
        raise BadInput("it is not a list of steps", where=where, allowed=f"at most {_MOST} steps")
    return tuple(_step(one, f"{where}, step {n}") for n, one in enumerate(data, 1))


def _step(data: Any, where: str) -> Step:
    kind = data.get("step") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise BadInput(f"{str(kind)[:60]!r} is not a step", where=where, allowed=", ".join(_KINDS))
    wanted = {field.name: str(field.type) for field in fields(_KINDS[kind])}
    needed = {field.name for field in fields(_KINDS[kind]) if field.default is MISSING}
    if not needed <= set(data) - {"step"} <= set(wanted):
        raise BadInput(f"{kind} has {', '.join(map(str, data))[:200]}", where=where, allowed=", ".join(wanted))
    present = {name: of for name, of in wanted.items() if name in data}
    step: Step = _KINDS[kind](**{name: _field(data[name], of, f"{where}, {name}") for name, of in present.items()})
    return step


def _field(value: Any, of: str, where: str) -> Any:
    if of.startswith("tuple["):
        if not isinstance(value, list) or len(value) > _MOST:
            raise BadInput(f"{str(value)[:60]!r} is not a list", where=where)
        return tuple(_field(one, of.removeprefix("tuple[").partition(",")[0], where) for one in value)
    right, words = _TYPES[of]
    if not right(value):
        raise BadInput(f"{str(value)[:60]!r} cannot be used", where=where, allowed=words)
    return value


def _text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_TYPES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "str": (_text, f"a text of up to {_LONGEST} letters"),
    "str | None": (_text, f"a text of up to {_LONGEST} letters"),
    "int": (_whole, "a whole number"),
    "Number": (lambda value: _whole(value) or _text(value), "a whole number, or an expression over knobs"),
}


def _words(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


_PART = re.compile(r"([/%])([^/%]+)")
_PLACE = re.compile(r"\s*(\d+)\s*((?:[/%][^/%]+)*)")


@dataclass(frozen=True)
class LayoutPlace:
    """One dimension of a layout: a dimension of the stage, divided, and then the remainder where there is one."""

    dimension: int
    by: int = 1
    modulo: int | None = None


def concrete(schedule: Schedule, config: Mapping[str, Any]) -> Schedule:
    """The schedule of one config: numbers in place of texts over knobs."""
    return tuple(_concrete_step(step, config) for step in schedule)


def places(step: Layout) -> tuple[LayoutPlace, ...]:
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


def _concrete_place(step: Layout, text: str, config: Mapping[str, Any]) -> str:
    dimension, parts = _split_place(step, text)
    return dimension + "".join(f"{op}{_value(step, number.strip(), config)}" for op, number in parts)


def _split_place(step: Layout, text: str) -> tuple[str, list[tuple[str, str]]]:
    match = _PLACE.fullmatch(text)
    if not match:
        raise refused(step, f"{text!r} is not a dimension", "such as 0, 1/8, 1%8 or 1/8%4")
    return match.group(1), _PART.findall(match.group(2))


def _place(step: Layout, text: str) -> LayoutPlace:
    dimension, parts = _split_place(step, text)
    operators = "".join(op for op, _ in parts)
    if operators not in ("", "/", "%", "/%") or not all(n.strip().isdigit() and int(n) for _, n in parts):
        raise refused(step, f"{text!r} is not a dimension", "such as 0, 1/8, 1%8 or 1/8%4")
    by = {op: int(n) for op, n in parts}
    return LayoutPlace(int(dimension), by.get("/", 1), by.get("%"))
