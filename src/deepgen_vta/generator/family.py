"""The family that serves matrix products on VTA: rules make its space, and each config a program."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from deepgen.operators import Operator
from deepgen.operators.expr.nodes import HasExpression
from deepgen.space import Space
from deepgen.targets import Target, Vta
from deepgen.vocabulary import BadInput, Kernel, LaunchPlan, Source, Step, TensorArg
from deepgen_vta.generator.emit import emit
from deepgen_vta.generator.nest import nest
from deepgen_vta.generator.product import Product, product
from deepgen_vta.generator.space import MOST_INSTRUCTIONS, Tiles, default, space
from deepgen_vta.target.listing import listing
from deepgen_vta.target.program import Program


class VtaRules:
    """Schedules by rules, on VTA."""

    name = "vta"

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if not isinstance(target, Vta):
            return "it serves vta targets only"
        try:
            found = product(operator.expression(), target) if isinstance(operator, HasExpression) else None
        except BadInput as error:
            return str(error)
        if found is None:
            return "it serves products of two i8 matrices with results in i32"
        return f"it takes more than {MOST_INSTRUCTIONS} instructions" if _space(found, target).empty() else None

    def space(self, operator: Operator, target: Target) -> Space:
        return space(self.name, *_served(operator, target))

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        text = self._program(operator, target, config).to_text()
        args = tuple(TensorArg(tensor.name) for tensor in operator.tensors())
        fixed = tuple((f"{size} == {value}", f"{size} is {value}") for size, value in operator.sizes().items())
        plan = LaunchPlan(steps=(Step("run", args),))
        return Kernel(self.name, "vta", (Source("program.json", text),), (), plan, implied=fixed)

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        found, vta = _served(operator, target)
        return default(_space(found, vta), found)

    def schedule_text(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> str:
        found, _ = _served(operator, target)
        return nest(found, Tiles.of(config))

    def passes_text(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> str:
        return listing(self._program(operator, target, config))

    def _program(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Program:
        found, vta = _served(operator, target)
        return emit(found, Tiles.of(config), vta)


def _served(operator: Operator, target: Target) -> tuple[Product, Vta]:
    assert isinstance(operator, HasExpression) and isinstance(target, Vta), "ask refuses() first"
    found = product(operator.expression(), target)
    assert found is not None, "ask refuses() first"
    return found, target


@lru_cache(maxsize=16)
def _space(found: Product, target: Vta) -> Space:
    """For looking only: whoever tunes gets one of their own."""
    return space(VtaRules.name, found, target)
