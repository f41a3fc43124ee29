"""What every operator can tell: its work, its tensors, its inputs, its reference and its tolerance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from deepgen.vocabulary.dtypes import DType
from deepgen.vocabulary.json import JsonObject

Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True)
class Tensor:
    """One tensor of an operator: dense, row-major. `role` is input, output, or inout (read and written)."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    role: str

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.bytes

    def empty(self) -> Array:
        return np.empty(self.shape, self.dtype.numpy())


@dataclass(frozen=True)
class Tolerance:
    """A result x is right when |x - reference| <= absolute + relative * |reference|, element by element."""

    absolute: float
    relative: float


@runtime_checkable
class Operator(Protocol):
    """What to compute. It knows nothing of hardware."""

    @property
    def name(self) -> str: ...

    def describe(self) -> str:
        """One short line for people."""
        ...

    def slug(self) -> str:
        """A short name fit for a folder."""
        ...

    def flops(self) -> int: ...

    def least_bytes(self) -> int:
        """The bytes that must cross the memory bus at least once."""
        ...

    def tensors(self) -> tuple[Tensor, ...]: ...

    def scalars(self) -> Mapping[str, int | float]:
        """The run-time numbers that a launch plan's expressions may name."""
        ...

    def probes(self) -> tuple[str, ...]:
        """The kinds of input that finalists must survive; "normal" is the first and the one that is timed."""
        ...

    def inputs(self, seed: int, probe: str = "normal") -> dict[str, Array]:
        """Fresh inputs (input and inout tensors), the same for the same seed on every machine."""
        ...

    def reference(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The exact result as float64 or int64, by output tensor."""
        ...

    def tolerance(self, probe: str = "normal") -> Tolerance: ...

    def to_json(self) -> JsonObject: ...
