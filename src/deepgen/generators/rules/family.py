"""The family that serves every operator with a tensor expression: rules make its space, and each config a kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from deepgen.generators.rules.emit.c import kernel
from deepgen.generators.rules.emit.c_values import STORED, TYPES
from deepgen.generators.rules.lower.ir import Function
from deepgen.generators.rules.lower.text import to_text
from deepgen.generators.rules.rules.order import sketches
from deepgen.generators.rules.rules.rule import Rule
from deepgen.generators.rules.rules.sketch import SKETCH, THREADS, Sketch, space_of
from deepgen.operators import Operator
from deepgen.operators.expr.nodes import BOOL, Expression, HasExpression, walk
from deepgen.space import Space
from deepgen.targets import Cpu, Target
from deepgen.vocabulary import Kernel


class Rules:
    """Schedules by rules, on processors. `rules` are the user's own, which are asked before deepgen's."""

    name = "rules"

    def __init__(self, rules: Sequence[Rule] = ()) -> None:
        self._sketches = lru_cache(maxsize=16)(lambda expression, cpu: tuple(sketches(expression, cpu, rules)))

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, Cpu):
            return "it serves CPUs only"
        if not isinstance(operator, HasExpression):
            return "it serves operators that are given as tensor expressions"
        strange = sorted(_formats(operator.expression()) - {*TYPES, *STORED, BOOL})
        return f"it has no arithmetic for {', '.join(strange)}" if strange else None

    def space(self, operator: Operator, target: Target) -> Space:
        return space_of(self.name, self.sketches(operator, target))

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        *_, (_, function) = self._lowered(operator, target, config)
        made = kernel(function, config[THREADS], self.name)
        fixed = tuple((f"{size} == {value}", f"{size} is {value}") for size, value in operator.sizes().items())
        return replace(made, implied=fixed)

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        found = self.sketches(operator, target)
        return ({SKETCH: found[0].name} if len(found) > 1 else {}) | found[0].usual()

    def sketches(self, operator: Operator, target: Target) -> tuple[Sketch, ...]:
        return self._sketches(*_served(operator, target))

    def schedule_text(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> str:
        steps = "\n".join(map(str, self._sketch(operator, target, config).schedule(config)))
        nest = dict(self._lowered(operator, target, config))["simplify"]
        return f"{steps}\n\n{to_text(nest)}"

    def passes_text(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> str:
        parts, last = [], ""
        for name, function in self._lowered(operator, target, config):
            text = to_text(function)
            parts.append(f"==> {name} <==\n{text if text != last else 'changes nothing'}")
            last = text
        return "\n".join(parts)

    def _sketch(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Sketch:
        found = self.sketches(operator, target)
        chosen = config.get(SKETCH, found[0].name)
        return next(sketch for sketch in found if sketch.name == chosen)

    def _lowered(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Iterator[tuple[str, Function]]:
        _, cpu = _served(operator, target)
        return self._sketch(operator, target, config).lowered(config, cpu.vector_bytes)


def _served(operator: Operator, target: Target) -> tuple[Expression, Cpu]:
    assert isinstance(operator, HasExpression) and isinstance(target, Cpu), "ask refuses() first"
    return operator.expression(), target


def _formats(expression: Expression) -> set[str]:
    return {t.dtype for t in expression.tensors} | {n.dtype for s in expression.stages for n in walk(s.value)}
