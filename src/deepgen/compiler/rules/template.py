"""Schedule templates: steps with knobs in place of numbers, and steps that depend on what a knob chooses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from deepgen.compiler.schedule.steps import Schedule, Step
from deepgen.space import Value


@dataclass(frozen=True)
class Choose:
    """The steps of one of several ways, by the value of a knob; no steps for a value that is not named."""

    knob: str
    ways: tuple[tuple[Value, Template], ...]


Template: TypeAlias = "tuple[Step | Choose, ...]"


def chosen(template: Template, config: Mapping[str, Any]) -> Schedule:
    """The steps that a config takes, still with knobs for numbers."""
    return tuple(_steps(template, config))


def _steps(template: Template, config: Mapping[str, Any]) -> Iterator[Step]:
    for step in template:
        if isinstance(step, Choose):
            yield from _steps(dict(step.ways).get(config[step.knob], ()), config)
        else:
            yield step
