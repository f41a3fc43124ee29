"""x86 targets: instruction sets, caches and cores, detected on this machine or given for another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from deepgen.targets.cpu import Cpu, field, native

_AVX2 = ("avx", "avx2", "f16c", "fma", "sse2")
_AVX512 = (*_AVX2, "avx512bw", "avx512dq", "avx512f", "avx512vl")
_VNNI = (*_AVX512, "avx512_vnni")
_AMX = (*_VNNI, "avx512_bf16", "amx_bf16", "amx_int8", "amx_tile")


@dataclass(frozen=True)
class X86(Cpu):
    """An x86-64 processor."""

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


def from_facts(cpuinfo: str, caches: Mapping[str, int], cores: int, *, tiles: bool = True) -> X86:
    """The target that /proc/cpuinfo's text and the cache sizes (L1d, L2, L3, in bytes) describe.

    `tiles`: whether the system lets processes use AMX; where it does not, they count as missing.
    """
    flags = {flag for flag in field(cpuinfo, "flags").split() if tiles or not flag.startswith("amx_")}
    return native(X86, field(cpuinfo, "model name"), flags, caches, cores)
