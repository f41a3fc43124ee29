"""The SIMT family over exactly the space of one of the older tool's files: a tuning config, or a list of its points."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from typing import Any

from deepgen.generators.base import Generator
from deepgen.operators import Gemm, Operator, gemm
from deepgen.space import Space, legacy
from deepgen.targets import Gpu, Target
from deepgen.vocabulary import BadInput, DeepgenError, JsonObject, Kernel

NAME = "legacy_simt"


class LegacyGenerator:
    """Its recipe, which a study keeps, is the file's content and the rule by which it becomes a space."""

    name = NAME

    def __init__(self, data: Mapping[str, Any], strategy: int = 1, where: str = "tuning config") -> None:
        self.recipe: JsonObject = {"data": dict(data), "strategy": strategy}
        self._data, self._strategy, self._where = data, strategy, where
        template = data["template"] if legacy.is_space_file(data) else data
        self._candidates = legacy.check_tuning_config(template, where)
        self.operator = operator_of(self._candidates, where)

    @staticmethod
    def from_recipe(recipe: Mapping[str, Any]) -> LegacyGenerator:
        return LegacyGenerator(recipe["data"], recipe["strategy"])

    @cached_property
    def _space(self) -> Space:
        # Not named after the file: the same content is the same space, wherever it lies.
        if legacy.is_space_file(self._data):
            return legacy.points_space(self._data)
        return legacy.tuning_space(self._data, self._strategy)

    @cached_property
    def _family(self) -> Generator:
        """Who knows which kernel a legal config is."""
        try:
            module = import_module("deepgen.generators.templates.simt.legacy")
        except ModuleNotFoundError as error:
            raise DeepgenError("this deepgen's SIMT family does not take configs of the older tool") from error
        family: Generator = module.LegacySimt(self.operator, self._space)
        return family

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
        return self._space

    def emit(self, operator: Operator, target: Target, config: Mapping[str, Any]) -> Kernel:
        return self._family.emit(operator, target, config)

    def default(self, operator: Operator, target: Target) -> Mapping[str, Any]:
        """Nothing is known to be good in a space that someone else chose: its first point."""
        return self._space.at(0)


def operator_of(candidates: Mapping[str, list[int]], where: str) -> Gemm:
    """The problem that a tuning config is of: the first candidate of each of its keys."""
    first = {key: values[0] for key, values in candidates.items()}
    a, b, c = (legacy.DTYPE_CODES[first[f"DATATYPE_{x}"]] for x in "ABC")
    try:
        return gemm(
            first["M_SIZE"],
            first["N_SIZE"],
            first["K_SIZE"],
            dtype=a,
            b=b,
            c=c,
            batch=first["BATCH_SIZE"],
            layout="tn" if first["IS_ATRANS"] else "nn",
        )
    except BadInput as error:
        raise BadInput(error.what, where=where, allowed=error.allowed) from error
