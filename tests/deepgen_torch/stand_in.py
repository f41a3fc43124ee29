"""A library for tests: it has a kernel for everything, the default config of its family."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from deepgen import generators
from deepgen.operators import Gemm, Operator
from deepgen.runtime.loaded import Loaded, load
from deepgen.targets import Target

SERVED = ("gemm", "softmax", "layer_norm", "rms_norm")


class Everything:
    """Says what it was asked for, and how often its kernels were called."""

    def __init__(self, *, torch_seconds: float | None = None, kinds: tuple[str, ...] = SERVED) -> None:
        self.asked: list[Operator] = []
        self.calls = 0
        self._torch, self._kinds = torch_seconds, kinds

    def choose(self, operator: Operator, target: Target, among: tuple[str, ...]) -> Any:
        assert among == ("torch", "torch-gpu")
        self.asked.append(operator)
        if operator.name not in self._kinds:
            return SimpleNamespace(entry=None, reason="it has no such kernel")
        times = [] if self._torch is None else [SimpleNamespace(name="torch", seconds=self._torch)]
        return SimpleNamespace(
            entry=operator, seconds=1e-3, considered=times, reason="", load=lambda: self._load(operator, target)
        )

    def _load(self, operator: Operator, target: Target) -> Loaded:
        family = generators.find(operator, target)
        return load(family.emit(operator, target, family.default(operator, target)), operator, target)


class OneForAll(Everything):
    """A kernel for each layout serves all sizes, as a library's do: nothing is built for a new shape."""

    def __init__(self) -> None:
        super().__init__(kinds=("gemm",))
        self._loaded: dict[Operator, Loaded] = {}

    def _load(self, operator: Operator, target: Target) -> Loaded:
        usual = replace(operator, m=16, n=16, k=16, batch=1) if isinstance(operator, Gemm) else operator
        if usual not in self._loaded:
            self._loaded[usual] = super()._load(usual, target)
        return self._loaded[usual]
