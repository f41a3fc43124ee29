"""What processors have in common, whatever their instruction set."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from deepgen.targets.base import Target
from deepgen.vocabulary.errors import BadInput
from deepgen.vocabulary.json import JsonObject

C = TypeVar("C", bound="Cpu")


@dataclass(frozen=True)
class Cpu(Target):
    """A processor that runs kernels in C, and in Triton, which become C. Caches are as one core sees them."""

    languages: ClassVar[tuple[str, ...]] = ("c", "triton")
    runner: ClassVar[str] = "cpu"
    shares_cores_with_builds: ClassVar[bool] = True
    own_kind: ClassVar[str]  # the part of a name before the colon
    machine: ClassVar[str]  # as `uname -m` and compilers call it
    family: ClassVar[str]  # of processors, for people
    features: ClassVar[tuple[str, ...]]  # instruction sets that generators ask for, by the Linux kernel's names
    arches: ClassVar[Mapping[str, tuple[str, ...]]]  # what can be built for on any machine

    model: str
    isa: tuple[str, ...]
    cores: int
    l1d_bytes: int
    l2_bytes: int
    l3_bytes: int
    line_bytes: int = 64

    def has(self, *features: str) -> bool:
        return set(features) <= set(self.isa)

    def runs_on(self, found: Target) -> bool:
        return isinstance(found, type(self)) and found.has(*self.isa)

    @property
    def built_for(self) -> str:
        return self.machine

    @property
    def instruction_sets(self) -> tuple[str, ...]:
        return self.isa

    @property
    def device_kind(self) -> str:
        return f"{self.model}, {self.cores} cores"

    def build_facts(self) -> JsonObject:
        # Caches and cores reach generators, not compilers: the same kernel is the same binary on both.
        return {"name": self.name, "isa": list(self.isa)}

    def limited_to(self, cores: int | None) -> Target:
        return self if cores is None else replace(self, cores=min(cores, self.cores))

    @property
    def vector_bytes(self) -> int:
        """The size of one vector register."""
        return 16

    @property
    def vector_registers(self) -> int:
        return 16

    @property
    def loads_fill_vectors(self) -> bool:
        """Whether compilers load a number into all lanes of a vector where it is needed, by one instruction."""
        return False

    def describe(self) -> str:
        return f"{self.name}: {self.model}, {self.cores} cores, {self.vector_bytes * 8}-bit vectors"

    @classmethod
    def from_json(cls: type[C], data: Mapping[str, Any]) -> C:
        return cls(**{**data, "isa": tuple(data["isa"])})


def native(cls: type[C], model: str, isa: Iterable[str], caches: Mapping[str, int], cores: int) -> C:
    """The processor that this machine's data describe; `caches` are the sizes of L1d, L2 and L3 in bytes."""
    return cls(
        name=f"{cls.own_kind}:native",
        model=model or f"unknown {cls.family}",
        isa=_ordered(cls, isa),
        cores=cores,
        # Sizes that nearly every processor of the last ten years has, if the machine does not report its own.
        l1d_bytes=caches.get("L1d", 32 << 10),
        l2_bytes=caches.get("L2", 256 << 10),
        l3_bytes=caches.get("L3", 8 << 20),
    )


def common(cls: type[C], cores: int) -> C:
    """A typical processor of that kind, which need not be here."""
    return native(cls, f"a common {cls.family}", (), {}, cores)


def narrowed(cpu: C, arch: str) -> C:
    """This machine as an older architecture, or a typical machine of a newer one: builds need no device."""
    if arch == "native":
        return cpu
    if arch not in cpu.arches:
        names = ", ".join(f"{cpu.kind}:{a}" for a in ("native", *cpu.arches))
        raise BadInput(f"unknown target {cpu.kind}:{arch}", allowed=names)
    return replace(cpu, name=f"{cpu.kind}:{arch}", isa=_ordered(type(cpu), cpu.arches[arch]))


def field(cpuinfo: str, key: str) -> str:
    """The first line of that name in /proc/cpuinfo's text; empty when there is none."""
    found = re.search(rf"^{key}\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
    return found.group(1).strip() if found else ""


def _ordered(cls: type[Cpu], features: Iterable[str]) -> tuple[str, ...]:
    chosen = set(features)
    return tuple(f for f in cls.features if f in chosen)
