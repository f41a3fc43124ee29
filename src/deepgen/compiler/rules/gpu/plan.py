"""A sketch for GPUs in the making: steps with knobs for numbers, and what the chip requires of these."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from deepgen.compiler.rules.draft import Tuned, unused
from deepgen.compiler.rules.gpu.counts import Counts
from deepgen.compiler.rules.sketch import Sketch
from deepgen.compiler.rules.template import Extent, Template, plus, span, text, times
from deepgen.compiler.schedule import steps as s
from deepgen.operators.expr.index import Index
from deepgen.operators.expr.nodes import Expression
from deepgen.space import Expr, Requirement, Value
from deepgen.space.expr import knob_ref
from deepgen.targets import Gpu

WIDEST = 16  # bytes that a thread loads or stores at once


@dataclass
class Plan:
    """Mutable while a rule works on it. `expression` is what the steps apply to."""

    expression: Expression
    gpu: Gpu
    names: list[str] = field(default_factory=list)
    steps: list[s.Step] = field(default_factory=list)
    knobs: list[Tuned] = field(default_factory=list)
    derived: dict[str, Expr] = field(default_factory=dict)
    requirements: list[Requirement] = field(default_factory=list)
    lanes: str = ""  # the loop of a warp's lanes
    counts: Counts | None = None  # of the launch that does most of the work

    def knob(self, name: str, values: Sequence[Value], usual: Value) -> Expr | int:
        """A knob, or the number itself where there is only one."""
        choices = [*dict.fromkeys(values)]
        if not choices:
            raise Useless(f"there is no value for {name}")
        if len(choices) == 1 and isinstance(choices[0], int):
            return choices[0]
        name = unused(re.sub(r"\W", "_", name), "{}_{}", [knob.name for knob in self.knobs])
        self.knobs.append(Tuned(name, tuple(choices), usual if usual in choices else choices[0]))
        return knob_ref(name)

    def shared_knob(self, name: str, values: Sequence[Value], usual: Value) -> Expr | int:
        """A knob that may have been made before."""
        exists = any(knob.name == name for knob in self.knobs)
        return knob_ref(name) if exists else self.knob(name, values, usual)

    def require(self, expr: Expr | bool, words: str) -> None:
        if isinstance(expr, bool):
            # Decided already: a config that breaks it does not exist, and the sketch is useless.
            if not expr:
                raise Useless(words)
            return
        words = unused(words, "{} ({})", [requirement.name for requirement in self.requirements])
        self.requirements.append(Requirement(words, expr))

    def derive(self, name: str, value: Extent) -> None:
        if not isinstance(value, int):
            self.derived[unused(name, "{}_{}", list(self.derived))] = value

    def step(self, *steps: s.Step) -> None:
        self.steps += steps

    def split(self, stage: str, loop: str, *factors: Extent) -> list[str]:
        """The names of the loops, the outermost first."""
        self.step(s.Split(stage, loop, tuple(text(factor) for factor in factors)))
        return [f"{loop}.{n}" for n in range(len(factors) + 1)]

    def fuse(self, stage: str, loops: Sequence[str]) -> str:
        if len(loops) > 1:
            self.step(s.Fuse(stage, tuple(loops)))
        return "+".join(loops)

    def bind(self, stage: str, kind: str, *loops: str) -> None:
        self.step(*(s.Annotate(stage, loop, kind) for loop in loops))

    def sketch(self) -> Sketch:
        template: Template = tuple(self.steps)
        return Sketch(
            "_".join(self.names) or "plain",
            self.expression,
            template,
            tuple(self.knobs),
            tuple(self.derived.items()),
            tuple(self.requirements),
            self.counts,
        )


class Useless(Exception):
    """A sketch that has no config."""


def reach(index: Index, extents: Mapping[str, Extent]) -> Extent:
    """How many places an index meets while iterators run over these extents."""
    return span(index, dict(extents))


def product_of(*factors: Extent) -> Extent:
    return times(factors)


def total_of(*terms: Extent) -> Extent:
    return plus(terms)


def powers(most: int, least: int = 1) -> list[int]:
    """Powers of two up to the first that covers `most`."""
    numbers = [least]
    while numbers[-1] < most:
        numbers.append(numbers[-1] * 2)
    return numbers
