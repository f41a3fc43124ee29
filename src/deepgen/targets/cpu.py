"""CPU targets: x86 with its instruction sets, and 64-bit Arm with NEON and newer extensions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from deepgen.targets.base import Target
from deepgen.vocabulary.errors import BadInput
from deepgen.vocabulary.json import JsonObject

Processor = TypeVar("Processor", bound="Cpu")


@dataclass(frozen=True)
class Cpu(Target):
    """A CPU that runs kernels in C, and in Triton, which are converted to C. Cache sizes are as seen by one core."""

    languages: ClassVar[tuple[str, ...]] = ("c", "triton")
    runner: ClassVar[str] = "cpu"
    shares_cores_with_builds: ClassVar[bool] = True
    own_kind: ClassVar[str]  # the part of a target's name before the colon
    machine: ClassVar[str]  # its name in `uname -m` and compilers
    family: ClassVar[str]  # description of the CPUs
    features: ClassVar[tuple[str, ...]]  # instruction sets that generators query, with the Linux kernel's names
    arches: ClassVar[Mapping[str, tuple[str, ...]]]  # architectures that can be built for on any machine

    model: str
    isa: tuple[str, ...]
    cores: int
    l1d_bytes: int
    l2_bytes: int
    l3_bytes: int
    line_bytes: int = 64

    def has(self, *features: str) -> bool:
        return set(features) <= set(self.isa)

    def runs_on(self, device: Target) -> bool:
        return isinstance(device, type(self)) and device.has(*self.isa)

    @property
    def host_cores(self) -> int:
        return self.cores

    @property
    def cache_bytes(self) -> int:
        return self.l3_bytes + self.cores * self.l2_bytes

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
        # Generators use caches and cores, but compilers do not: the same kernel gives the same binary for both.
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
        """Whether compilers load a number into all lanes of a vector in one instruction, where it is needed."""
        return False

    def describe(self) -> str:
        return f"{self.name}: {self.model}, {self.cores} cores, {self.vector_bytes * 8}-bit vectors"


def native(cls: type[Processor], model: str, isa: Iterable[str], caches: Mapping[str, int], cores: int) -> Processor:
    """The CPU described by this machine's data; `caches` are the sizes of L1d, L2 and L3 in bytes."""
    return cls(
        name=f"{cls.own_kind}:native",
        model=model or f"unknown {cls.family}",
        isa=_ordered(cls, isa),
        cores=cores,
        # Sizes of nearly every CPU of the last ten years, if the machine does not report its own.
        l1d_bytes=caches.get("L1d", 32 << 10),
        l2_bytes=caches.get("L2", 256 << 10),
        l3_bytes=caches.get("L3", 8 << 20),
    )


def common(cls: type[Processor], cores: int) -> Processor:
    """A typical CPU of that kind, which need not exist here."""
    return native(cls, f"a common {cls.family}", (), {}, cores)


def narrowed(cpu: Processor, arch: str) -> Processor:
    """This machine as an older architecture, or a typical machine of a newer one: building needs no device."""
    if arch == "native":
        return cpu
    if arch not in cpu.arches:
        names = ", ".join(f"{cpu.kind}:{a}" for a in ("native", *cpu.arches))
        raise BadInput(f"unknown target {cpu.kind}:{arch}", allowed=names)
    return replace(cpu, name=f"{cpu.kind}:{arch}", isa=_ordered(type(cpu), cpu.arches[arch]))


def field(cpuinfo: str, key: str) -> str:
    """The first line with this key in the text of /proc/cpuinfo; empty if there is none."""
    match = re.search(rf"^{key}\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
    return match.group(1).strip() if match else ""


def _ordered(cls: type[Cpu], features: Iterable[str]) -> tuple[str, ...]:
    chosen = set(features)
    return tuple(f for f in cls.features if f in chosen)


_AVX2 = ("avx", "avx2", "f16c", "fma", "sse2")
_AVX512 = (*_AVX2, "avx512bw", "avx512dq", "avx512f", "avx512vl")
_VNNI = (*_AVX512, "avx512_vnni")
_AMX = (*_VNNI, "avx512_bf16", "amx_bf16", "amx_int8", "amx_tile")


@dataclass(frozen=True)
class X86(Cpu):
    """An x86-64 CPU."""

    own_kind: ClassVar[str] = "x86"
    machine: ClassVar[str] = "x86_64"
    family: ClassVar[str] = "x86-64"
    features: ClassVar[tuple[str, ...]] = (
        "sse2", "avx", "f16c", "fma", "avx2", "avx_vnni",
        "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16",
        "amx_tile", "amx_int8", "amx_bf16",
    )  # fmt: skip
    arches: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "avx2": _AVX2,
        "avx2_vnni": (*_AVX2, "avx_vnni"),
        "avx512": _AVX512,
        "avx512_vnni": _VNNI,
        "avx512_bf16": (*_VNNI, "avx512_bf16"),
        "amx": _AMX,
    }

    @property
    def vector_bytes(self) -> int:
        return 64 if self.has("avx512f", "avx512vl") else 32 if self.has("avx2", "fma") else 16

    @property
    def vector_registers(self) -> int:
        return 32 if self.has("avx512f") else 16

    @property
    def loads_fill_vectors(self) -> bool:
        return self.has("avx")


def x86_from_facts(cpuinfo: str, caches: Mapping[str, int], cores: int, *, tiles: bool = True) -> X86:
    """The target described by the text of /proc/cpuinfo and the cache sizes (L1d, L2, L3, in bytes).

    `tiles`: whether the system lets processes use AMX; otherwise it counts as missing.
    """
    flags = {flag for flag in field(cpuinfo, "flags").split() if tiles or not flag.startswith("amx_")}
    return native(X86, field(cpuinfo, "model name"), flags, caches, cores)


_NEON = ("asimd",)
# Cores by "CPU part" in /proc/cpuinfo, if the implementer is Arm (0x41).
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
    """A 64-bit Arm CPU. Vectors are NEON's; SVE is reported but not used."""

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


def arm_from_facts(cpuinfo: str, caches: Mapping[str, int], cores: int) -> Arm:
    """The target described by the text of /proc/cpuinfo and the cache sizes (L1d, L2, L3, in bytes)."""
    return native(Arm, _model(cpuinfo), field(cpuinfo, "Features").split(), caches, cores)


def _model(cpuinfo: str) -> str:
    """The CPU's model; Linux reports numbers here where other CPUs have a name."""
    implementer, part = field(cpuinfo, "CPU implementer"), field(cpuinfo, "CPU part")
    if not part:
        return ""
    model = _CORES.get(int(part, 16)) if implementer == "0x41" else None
    return model or f"64-bit Arm, implementer {implementer}, part {part}"
