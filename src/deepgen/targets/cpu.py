"""What processors have in common, whatever their instruction set."""

from __future__ import annotations

from dataclasses import dataclass

from deepgen.targets.base import Target


@dataclass(frozen=True)
class Cpu(Target):
    """A processor that runs kernels in C on its cores. Caches are as one core sees them."""

    model: str
    isa: tuple[str, ...]
    cores: int
    l1d_bytes: int
    l2_bytes: int
    l3_bytes: int
    line_bytes: int = 64

    def has(self, *features: str) -> bool:
        return set(features) <= set(self.isa)

    @property
    def vector_bytes(self) -> int:
        """Of one vector register."""
        return 16

    @property
    def vector_registers(self) -> int:
        return 16

    def describe(self) -> str:
        return f"{self.name}: {self.model}, {self.cores} cores, {self.vector_bytes * 8}-bit vectors"
