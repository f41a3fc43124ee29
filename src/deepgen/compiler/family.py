"""The family for every operator with a tensor expression: rules define its space, and each config gives a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from deepgen.kernels import Cost, Rank
from deepgen.operators import Operator
from deepgen.operators.expr.contraction import is_matrix_product
from deepgen.operators.expr.nodes import BOOL, Expression, HasExpression, walk
from deepgen.targets import Cpu, Gpu, Hip, Target
from deepgen.vocabulary import BadInput, JsonObject, Kernel
from deepgen.vocabulary.code_digest import code_digest
from deepgen.vocabulary.dtypes import EIGHT_BITS, OF_C, STORED

if TYPE_CHECKING:
    from deepgen.compiler.making import Making
    from deepgen.compiler.rules.rule import Rule
    from deepgen.compiler.rules.sketch import Sketch
    from deepgen.space import Space


class Rules:
    """Schedules by rules, on CPUs and GPUs. `rules` are the user's own, which are tried before deepgen's."""

    name = "rules"
    constant = False

    def __init__(self, rules: Sequence[Rule] = ()) -> None:
        if rules:
            from deepgen.compiler.rules.rule import check_rules

            check_rules(rules)
        self.rules = tuple(rules)

    @property
    def asks(self) -> list[JsonObject]:
        """What a study records of the user's rules: with other rules it is another study."""
        values = [getattr(rule, "__dict__", None) for rule in self.rules]
        return [
            {"name": rule.name, **({"values": code_digest(value, type(rule))} if value else {})}
            for rule, value in zip(self.rules, values, strict=True)
        ]

    def others(self) -> list[Rule]:
        """All rules that are not deepgen's own: those of the user and of plug-ins."""
        from deepgen.compiler.rules.rule import plugged

        return [*self.rules, *plugged()]

    @cached_property
    def _making(self) -> Making:
        """Imported late: every study asks this family whether it serves an operator, and the code that makes kernels is
        slow to import."""
        from deepgen.compiler.making import Making

        return Making(self.name, self.rules, constant=self.constant)

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, (Cpu, Gpu)):
            return "it supports CPUs and GPUs only"
        if not isinstance(operator, HasExpression):
            return "it supports operators defined by tensor expressions"
        try:
            expression = operator.expression()
        except BadInput as error:  # some forms of an operator have none, such as a GEMM that reads its result
            return f"cannot be expressed: {error}"
        of_cpus = EIGHT_BITS if isinstance(target, Gpu) else ()
        strange = sorted(_formats(expression) - {*OF_C, *STORED, BOOL}.difference(of_cpus))
        if strange:
            return f"it has no arithmetic for {', '.join(strange)}"
        if not isinstance(target, Hip):
            return None
        from deepgen.compiler.text.gpu import missing_functions

        lacking = missing_functions(expression)
        return f"it has no {', '.join(lacking)} for HIP" if lacking else None

    def rank(self, operator: Operator, target: Target) -> Rank:
        """After all families that are written for one operator: it serves whatever has an expression.

        Those for matrix products and for attention are faster wherever they serve: competing there would only cost
        search time and, for attention, memory for all scores.
        """
        assert isinstance(operator, HasExpression), "asked only for supported operators"
        surpassed = operator.general_last or is_matrix_product(operator.expression())
        return Rank.SURPASSED if surpassed else Rank.GENERAL

    def space(self, operator: Operator, target: Target) -> Space:
        return self._making.space(operator, target)

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        return self._making.emit(operator, target, config)

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        return self._making.default(operator, target)

    def sketches(self, operator: Operator, target: Target) -> tuple[Sketch, ...]:
        return self._making.sketches(operator, target)

    def schedule_text(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> str:
        return self._making.schedule_text(operator, target, config)

    def passes_text(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> str:
        return self._making.passes_text(operator, target, config)

    def cost(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Cost:
        return self._making.cost(operator, target, config)

    def checked_passes(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> JsonObject:
        return self._making.checked_passes(operator, target, config)

    def answers(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> list[JsonObject]:
        return self._making.answers(operator, target, config)


class RulesConstantWeights(Rules):
    """The same for constant weights: what depends on them alone is computed once, ahead of time, and adds nothing to a
    call."""

    name = "rules_constant_weights"
    constant = True

    def rank(self, operator: Operator, target: Target) -> Rank:
        return Rank.BY_NAME

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, Cpu):
            return "it supports CPUs only"
        if not operator.weights:
            return "it supports operators with weights, such as convolutions"
        return super().refuses(operator, target)


def _formats(expression: Expression) -> set[str]:
    return {t.dtype for t in expression.tensors} | {n.dtype for s in expression.stages for n in walk(s.value)}
