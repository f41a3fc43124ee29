"""Makes the space and the kernels of the family `rules`, for supported operators and targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from deepgen.compiler.costs import cost
from deepgen.compiler.passes.ir import Function, Lowered, Machine, Program
from deepgen.compiler.passes.lower import split_ahead
from deepgen.compiler.passes.memory import in_workspace
from deepgen.compiler.passes.text import to_text
from deepgen.compiler.rules.gpu.likely import default as gpu_default
from deepgen.compiler.rules.gpu.sketches import gpu_sketches
from deepgen.compiler.rules.packing import BLOCK, ONCE
from deepgen.compiler.rules.rule import Log, Rule, RuleAnswer, rules_for
from deepgen.compiler.rules.sketch import SKETCH, THREADS, Sketch, sketches, space_of
from deepgen.compiler.schedule.steps import to_text as steps_text
from deepgen.compiler.text.c import kernel
from deepgen.compiler.text.gpu import kernel as gpu_kernel
from deepgen.kernels import Cost
from deepgen.operators import Operator
from deepgen.operators.expr.nodes import Expression, HasExpression
from deepgen.space import Space
from deepgen.targets import Cpu, Gpu, Hip, Target
from deepgen.vocabulary import JsonObject, Kernel


class Making:
    """`constant` treats weights as constant: what depends on them alone is computed once, ahead of time."""

    def __init__(self, name: str, rules: Sequence[Rule], *, constant: bool) -> None:
        self._name, self._constant, self._rules = name, constant, rules
        self._sketches = lru_cache(maxsize=16)(lambda expression, target: tuple(_sketches(expression, target, rules)))

    def space(self, operator: Operator, target: Target) -> Space:
        return space_of(self._name, self.sketches(operator, target))

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        *_, (_, unplaced), (_, last) = self._lowered(operator, target, config)
        if isinstance(last, Program):
            assert isinstance(target, Gpu)
            emitted = gpu_kernel(last, "hip" if isinstance(target, Hip) else "cuda", target.warp, self._name)
        else:
            assert isinstance(unplaced, Function)
            emitted = self._kernel(unplaced, config[THREADS], operator)
        fixed = tuple((f"{size} == {value}", f"{size} is {value}") for size, value in operator.sizes().items())
        return replace(emitted, implied=fixed)

    def _kernel(self, function: Function, threads: int, operator: Operator) -> Kernel:
        ahead, rest = split_ahead(function, frozenset(operator.weights)) if self._constant else (None, function)
        return kernel(in_workspace(rest), threads, self._name, None if ahead is None else in_workspace(ahead))

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        candidates = self.sketches(operator, target)
        sketch, config = (
            gpu_default(candidates, target) if isinstance(target, Gpu) else (candidates[0], candidates[0].usual())
        )
        if self._constant:
            # What each block would otherwise pack in every call is packed once.
            copies = [name for name in (f"at_{weight}" for weight in operator.weights) if config.get(name) == BLOCK]
            config = sketch.made_fit({**config, **dict.fromkeys(copies, ONCE)})
        return ({SKETCH: sketch.name} if len(candidates) > 1 else {}) | config

    def sketches(self, operator: Operator, target: Target) -> tuple[Sketch, ...]:
        return self._sketches(*_served(operator, target))

    def schedule_text(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> str:
        steps = steps_text(self._sketch(operator, target, config).schedule(config))
        return f"{steps}\n{to_text(dict(self._lowered(operator, target, config))['simplify'])}"

    def passes_text(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> str:
        parts, last = [], ""
        for name, function in self._lowered(operator, target, config):
            text = to_text(function)
            parts.append(f"==> {name} <==\n{text if text != last else 'changes nothing'}")
            last = text
        return "\n".join(parts)

    def cost(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Cost:
        sketch = self._sketch(operator, target, config)
        if sketch.counts is not None and isinstance(target, Gpu):
            return sketch.counts.cost(config, target)
        _, built = next(sketch.lowered(config, _machine(target)))
        if self._constant and isinstance(built, Function):
            built = split_ahead(built, frozenset(operator.weights))[1]
        assert isinstance(target, (Cpu, Gpu)), "ask refuses() first"
        return cost(built, target, config.get(THREADS, 1))

    def checked_passes(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> JsonObject:
        from deepgen.compiler.check_passes import check_small  # code that makes kernels needs no interpreter

        sketch = self._sketch(operator, target, config)
        sizes, checked = check_small(sketch.expression, sketch.schedule(config), _machine(target))
        wrong: JsonObject | None = {"pass": checked.names[-1], "why": checked.wrong} if checked.wrong else None
        return {"sizes": sizes, "passes": [*checked.names], "wrong": wrong}

    def answers(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> list[JsonObject]:
        """For each stage and each rule for the target, in the order in which they are tried: the sketches that use it,
        or why it declines or was not tried; `chosen`: whether the config's own sketch uses it."""
        log: list[RuleAnswer] = []
        sketches = _sketches(*_served(operator, target), self._rules, log)
        chosen = self._sketch(operator, target, config).by
        rows: list[JsonObject] = []
        rules = [rule.name for rule in rules_for(target, self._rules)]
        for stage in dict.fromkeys(one.stage for one in log):
            for rule in rules:
                own = [one for one in log if (one.stage, one.rule) == (stage, rule)]
                taking = [sketch.name for sketch in sketches if (stage, rule) in sketch.by]
                # It may have been tried several times: for other forms of the expression, or after another rule.
                whys = dict.fromkeys(one.why for one in sorted(own, key=lambda one: not one.asked) if one.why)
                why = None if taking else next(iter(whys), "other rules serve it")
                asked = any(one.asked for one in own)
                row: JsonObject = {"asked": asked, "sketches": [*taking], "chosen": (stage, rule) in chosen, "why": why}
                rows.append({"stage": stage, "rule": rule, **row})
        return rows

    def _sketch(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Sketch:
        candidates = self.sketches(operator, target)
        chosen = config.get(SKETCH, candidates[0].name)
        return next(sketch for sketch in candidates if sketch.name == chosen)

    def _lowered(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Iterator[tuple[str, Lowered]]:
        return self._sketch(operator, target, config).lowered(config, _machine(target))


def _machine(target: Target) -> Machine:
    assert isinstance(target, (Cpu, Gpu)), "ask refuses() first"
    if isinstance(target, Gpu):
        return Machine(warp=target.warp, early=target.has("cluster"))  # these came with the same chips
    return Machine(target.vector_bytes)


def _sketches(expression: Expression, target: Cpu | Gpu, rules: Sequence[Rule], log: Log | None = None) -> list[Sketch]:
    if isinstance(target, Gpu):
        return gpu_sketches(expression, target, rules, log)
    return sketches(expression, target, rules, log)


def _served(operator: Operator, target: Target) -> tuple[Expression, Cpu | Gpu]:
    assert isinstance(operator, HasExpression) and isinstance(target, (Cpu, Gpu)), "ask refuses() first"
    return operator.expression(), target
