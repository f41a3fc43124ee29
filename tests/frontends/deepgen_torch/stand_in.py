"""A test library: it has a kernel for everything, from the default config of its family."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from deepgen import generators
from deepgen.operators import Gemm, Operator
from deepgen.run.call.loaded import Loaded, load
from deepgen.targets import Target
from deepgen.vocabulary.measurement import KEPT, Properties

SERVED = ("gemm", "softmax", "layer_norm", "rms_norm", "grouped_gemm", "attention")
ALL_KEPT = Properties(KEPT, KEPT, KEPT)


class Everything:
    """As with a library's kernels, one product serves all sizes, so few are built. `torch_seconds`: torch's time; the
    kernel's is a millisecond.
    """

    def __init__(
        self, *, torch_seconds: float | None = None, kinds: tuple[str, ...] = SERVED, properties: Properties = ALL_KEPT
    ) -> None:
        self._torch, self._kinds, self._properties = torch_seconds, kinds, properties
        self._loaded: dict[Operator, Loaded] = {}

    def choose(self, operator: Operator, target: Target, among: tuple[str, ...]) -> Any:
        assert among == ("torch", "torch-gpu")
        if operator.name not in self._kinds:
            return SimpleNamespace(entry=None, reason="it has no such kernel")
        times = [] if self._torch is None else [SimpleNamespace(name="torch", seconds=self._torch)]
        entry = SimpleNamespace(operator=operator, properties=self._properties, serves=lambda operator: None)
        return SimpleNamespace(
            entry=entry, seconds=1e-3, considered=times, reason="", load=lambda: self._load(operator, target)
        )

    def _load(self, operator: Operator, target: Target) -> Loaded:
        name = None
        if isinstance(operator, Gemm) and operator.a != "i8":
            if operator.pair == "none":
                operator = replace(operator, m=16, n=16, k=16, batch=min(operator.batch, 2))
            # It serves every CPU, and has no separate path for small sizes.
            name = "c_gemm" if operator.pair == "none" else None
        if operator not in self._loaded:
            family = generators.find(operator, target, name)
            kernel = family.emit(operator, target, family.default(operator, target))
            self._loaded[operator] = load(kernel, operator, target)
        return self._loaded[operator]
