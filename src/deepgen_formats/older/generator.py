"""The SIMT family over exactly the space of one of its files: a tuning config, or a list of points."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from deepgen.extend import BadInput, Gemm, Gpu, JsonObject, Kernel, Operator, SimtGemm, Space, Target
from deepgen_formats.older import files
from deepgen_formats.older.kernels import older_operator, simt_config

NAME = "legacy_simt"  # in studies, which outlive names


class OlderGenerator:
    """Its recipe, which a study keeps, is the file's content and the rule by which it becomes a space."""

    name = NAME
    results_file = True  # beside the journal of its studies

    def __init__(self, data: Mapping[str, Any], strategy: int = 1, where: str = "tuning config") -> None:
        self.recipe: JsonObject = {"data": dict(data), "strategy": strategy}
        self._data, self._strategy, self._where = data, strategy, where
        template = data["template"] if files.is_space_file(data) else data
        self._candidates = files.check_tuning_config(template, where)
        self._family = SimtGemm()
        try:
            self.operator = older_operator(self._candidates)
        except BadInput as error:
            raise BadInput(error.what, where=where, allowed=error.allowed) from error

    @staticmethod
    def from_recipe(recipe: Mapping[str, Any]) -> OlderGenerator:
        return OlderGenerator(recipe["data"], recipe["strategy"])

    @cached_property
    def _space(self) -> Space:
        # Not named after the file: the same content is the same space, wherever it lies.
        if files.is_space_file(self._data):
            return files.points_space(self._data)
        return files.tuning_space(self._data, self._strategy)

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
        assert isinstance(operator, Gemm) and isinstance(target, Gpu), "ask refuses() first"
        return self._family.emit(operator, target, simt_config(config, operator, target))

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        """Nothing is known to be good in a space that someone else chose: its first point."""
        return self.space(operator, target).at(0)
