"""The SIMT family over exactly the space of one of the older tool's files: a tuning config, or a list of its points."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from deepgen.generators.templates.simt.older import OlderSimtGemm, older_operator
from deepgen.operators import Operator
from deepgen.space import Space, legacy
from deepgen.targets import Gpu, Target
from deepgen.vocabulary import BadInput, JsonObject, Kernel

NAME = "legacy_simt"


class LegacyGenerator:
    """Its recipe, which a study keeps, is the file's content and the rule by which it becomes a space."""

    name = NAME

    def __init__(self, data: Mapping[str, Any], strategy: int = 1, where: str = "tuning config") -> None:
        self.recipe: JsonObject = {"data": dict(data), "strategy": strategy}
        self._data, self._strategy, self._where = data, strategy, where
        template = data["template"] if legacy.is_space_file(data) else data
        self._candidates = legacy.check_tuning_config(template, where)
        self._family = OlderSimtGemm(self._candidates, strategy)
        try:
            self.operator = older_operator(self._candidates)
        except BadInput as error:
            raise BadInput(error.what, where=where, allowed=error.allowed) from error

    @staticmethod
    def from_recipe(recipe: Mapping[str, Any]) -> LegacyGenerator:
        return LegacyGenerator(recipe["data"], recipe["strategy"])

    @cached_property
    def _space(self) -> Space:
        # Not named after the file: the same content is the same space, wherever it lies.
        if legacy.is_space_file(self._data):
            return legacy.points_space(self._data)
        return legacy.tuning_space(self._data, self._strategy)

    def refuses(self, operator: Operator, target: Target) -> str | None:
        if operator != self.operator:
            return f"{self._where} is of {self.operator.describe()}"
        if not isinstance(target, Gpu):
            return "the older tool's configs are for GPUs"
        sizes = self._candidates["WARP_SIZE"]
        if target.warp not in sizes:
            return f"WARP_SIZE is {', '.join(map(str, sizes))}, and warps of {target.name} have {target.warp} lanes"
        return self._family.refuses(operator, target)

    def space(self, operator: Operator, target: Target) -> Space:
        assert isinstance(target, Gpu), "ask refuses() first"
        if len(self._candidates["WARP_SIZE"]) > 1:  # a file for several kinds of GPU: those of this one
            return self._space.restrict({"WARP_SIZE": [target.warp]})
        return self._space

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        return self._family.emit(operator, target, config)

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        """Nothing is known to be good in a space that someone else chose: its first point."""
        return self.space(operator, target).at(0)
