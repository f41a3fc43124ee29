"""Sketches: what rules made of an expression on a target, and the one space of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from deepgen.generators.rules.rules import usual
from deepgen.generators.rules.rules.candidates import thread_counts
from deepgen.generators.rules.rules.draft import Draft, Tuned
from deepgen.generators.rules.rules.numbers import plus
from deepgen.generators.rules.rules.template import Template, chosen
from deepgen.generators.rules.schedule.concrete import concrete
from deepgen.generators.rules.schedule.steps import Schedule
from deepgen.space import Expr, Requirement, Space, Value, all_of, any_of, implies
from deepgen.space.expr import key, knob_ref

SKETCH, THREADS = "SKETCH", "THREADS"
_MOST_SCRATCH = 1 << 30  # bytes of copies and results in between


@dataclass(frozen=True)
class Sketch:
    """A template, and the knobs and requirements of its configs."""

    name: str
    template: Template
    knobs: tuple[Tuned, ...]
    derived: tuple[tuple[str, Expr], ...]
    requirements: tuple[Requirement, ...]

    def schedule(self, config: Mapping[str, Any]) -> Schedule:
        return concrete(chosen(self.template, config), config)

    def usual(self) -> dict[str, Value]:
        """The config to take without a search; knobs that do not exist there are left out."""
        config: dict[str, Value] = {}
        for knob in self.knobs:
            if knob.when is None or knob.when.evaluate(config):
                config[knob.name] = knob.usual
        return config


def sketch_of(draft: Draft) -> Sketch:
    """What a draft has come to, with the threads that run it and the memory that it needs beside."""
    operations = sum(prod((*s.shape, *(axis.extent for axis in s.reduced))) for s in draft.expression.stages)
    counts = thread_counts(draft.target.cores)
    draft.knob(THREADS, counts, usual.threads(draft.target, operations))
    if draft.tasks is not None:
        threads = knob_ref(THREADS)
        draft.require((threads == 1) | (threads <= draft.tasks), "every thread has a part of the last stage")
    for stage, size in draft.buffers.items():
        draft.derive(f"bytes_{stage}", size)
    scratch = plus(draft.buffers.values())
    draft.require(scratch <= _MOST_SCRATCH, "copies and results in between fit in memory")
    name = "_".join(draft.names) or "plain"
    return Sketch(name, draft.template, draft.knobs, tuple(draft.derived.items()), draft.requirements)


def space_of(name: str, sketches: Sequence[Sketch]) -> Space:
    """The configs of all sketches. Where there are several, the knob SKETCH tells them apart."""
    space = Space(name)
    if len(sketches) == 1:
        _fill(space, sketches[0])
        return space
    which = space.knob(SKETCH, [sketch.name for sketch in sketches])
    for knob in dict.fromkeys(knob.name for sketch in sketches for knob in sketch.knobs):
        _shared_knob(space, which, knob, sketches)
    for sketch in sketches:
        for derived, value in sketch.derived:
            known = space.derivations.get(derived)
            if known is None or key(known.args[0]) != key(value):
                space.derive(derived if known is None else f"{sketch.name}_{derived}", value)
    for requirement in _distinct(sketches):
        having = [s.name for s in sketches if any(_same(r, requirement) for r in s.requirements)]
        everywhere = len(having) == len(sketches)
        expr = requirement.expr if everywhere else implies(which.isin(having), requirement.expr)
        taken = any(r.name == requirement.name for r in space.requirements)
        space.require(expr, f"{requirement.name} ({', '.join(having)})" if taken else requirement.name)
    return space


def _fill(space: Space, sketch: Sketch) -> None:
    for knob in sketch.knobs:
        space.knob(knob.name, knob.values, knob.when)
    for name, value in sketch.derived:
        space.derive(name, value)
    for requirement in sketch.requirements:
        space.add(requirement)


def _shared_knob(space: Space, which: Expr, name: str, sketches: Sequence[Sketch]) -> None:
    """One knob for all sketches that have it, with the values of all of them."""
    found = {s.name: knob for s in sketches for knob in s.knobs if knob.name == name}
    values = list(dict.fromkeys(value for knob in found.values() for value in knob.values))
    if all(isinstance(value, int) for value in values):
        values.sort(key=lambda value: value if isinstance(value, int) else 0)
    always = [s for s, knob in found.items() if knob.when is None]
    at_times = [all_of(which == s, knob.when) for s, knob in found.items() if knob.when is not None]
    when = None
    if len(always) < len(sketches):
        when = any_of(*([which.isin(always)] if always else []), *at_times)
    made = space.knob(name, values, when)
    for s, knob in found.items():
        if set(knob.values) != set(values):
            words = f"{name} of sketch {s} is one of {', '.join(map(str, knob.values))}"
            space.require(implies(which == s, made.isin(knob.values)), words)


def _distinct(sketches: Sequence[Sketch]) -> list[Requirement]:
    found: list[Requirement] = []
    for sketch in sketches:
        found += [r for r in sketch.requirements if not any(_same(r, other) for other in found)]
    return found


def _same(a: Requirement, b: Requirement) -> bool:
    return a.name == b.name and bool(key(a.expr) == key(b.expr))
