"""64-bit Arm targets: NEON and what newer cores add to it, detected on this machine or given for another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from deepgen.targets.cpu import Cpu, field, native

_NEON = ("asimd",)
# Cores by the number that /proc/cpuinfo gives in "CPU part", where the implementer is Arm itself (0x41).
_CORES = {
    0xD03: "Cortex-A53",
    0xD07: "Cortex-A57",
    0xD08: "Cortex-A72",
    0xD0B: "Cortex-A76",
    0xD0C: "Neoverse N1",
    0xD40: "Neoverse V1",
    0xD49: "Neoverse N2",
    0xD4F: "Neoverse V2",
}


@dataclass(frozen=True)
class Arm(Cpu):
    """A 64-bit Arm processor. Vectors are NEON's; SVE is reported but not used."""

    own_kind: ClassVar[str] = "arm"
    machine: ClassVar[str] = "aarch64"
    family: ClassVar[str] = "64-bit Arm"
    features: ClassVar[tuple[str, ...]] = (
        "asimd", "atomics", "fphp", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2",
    )  # fmt: skip
    arches: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "neon": _NEON,
        "neon_dot": (*_NEON, "atomics", "fphp", "asimdhp", "asimddp"),
    }

    @property
    def vector_registers(self) -> int:
        return 32


def from_facts(cpuinfo: str, caches: Mapping[str, int], cores: int) -> Arm:
    """The target that /proc/cpuinfo's text and the cache sizes (L1d, L2, L3, in bytes) describe."""
    return native(Arm, _model(cpuinfo), field(cpuinfo, "Features").split(), caches, cores)


def _model(cpuinfo: str) -> str:
    """Linux gives numbers where other processors give a name."""
    implementer, part = field(cpuinfo, "CPU implementer"), field(cpuinfo, "CPU part")
    if not part:
        return ""
    known = _CORES.get(int(part, 16)) if implementer == "0x41" else None
    return known or f"64-bit Arm, implementer {implementer}, part {part}"
