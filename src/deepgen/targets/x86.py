"""x86 targets: instruction sets, caches and cores, read from the machine or given for a machine that is elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from deepgen.targets.cpu import Cpu
from deepgen.vocabulary.errors import BadInput

# Instruction sets that generators ask for, by the name the Linux kernel gives them.
FEATURES = (
    "sse2", "avx", "f16c", "fma", "avx2", "avx_vnni",
    "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16",
    "amx_tile", "amx_int8", "amx_bf16",
)  # fmt: skip
_AVX2 = ("avx", "avx2", "f16c", "fma", "sse2")
_AVX512 = (*_AVX2, "avx512bw", "avx512dq", "avx512f", "avx512vl")
_VNNI = (*_AVX512, "avx512_vnni")
_AMX = (*_VNNI, "avx512_bf16", "amx_bf16", "amx_int8", "amx_tile")
ARCHES: Mapping[str, tuple[str, ...]] = {
    "avx2": _AVX2,
    "avx2_vnni": (*_AVX2, "avx_vnni"),
    "avx512": _AVX512,
    "avx512_vnni": _VNNI,
    "avx512_bf16": (*_VNNI, "avx512_bf16"),
    "amx": _AMX,
}


@dataclass(frozen=True)
class X86(Cpu):
    """An x86-64 processor."""

    @property
    def vector_bytes(self) -> int:
        return 64 if self.has("avx512f", "avx512vl") else 32 if self.has("avx2", "fma") else 16

    @property
    def vector_registers(self) -> int:
        return 32 if self.has("avx512f") else 16

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> X86:
        return X86(**{**data, "isa": tuple(data["isa"])})


def from_facts(cpuinfo: str, caches: Mapping[str, int], cores: int, *, tiles: bool = True) -> X86:
    """The target that /proc/cpuinfo's text and the cache sizes (L1d, L2, L3, in bytes) describe.

    `tiles`: whether the system lets processes use AMX; where it does not, the instructions are as good as missing.
    """
    flags = {flag for flag in _field(cpuinfo, "flags").split() if tiles or not flag.startswith("amx_")}
    return X86(
        name="x86:native",
        model=_field(cpuinfo, "model name") or "unknown x86-64",
        isa=tuple(f for f in FEATURES if f in flags),
        cores=cores,
        # Sizes that nearly every processor of the last ten years has, where the machine does not tell.
        l1d_bytes=caches.get("L1d", 32 << 10),
        l2_bytes=caches.get("L2", 256 << 10),
        l3_bytes=caches.get("L3", 8 << 20),
    )


def narrowed(native: X86, arch: str) -> X86:
    """This machine seen as a lesser architecture, or a common machine of a greater one: builds need no device."""
    if arch == "native":
        return native
    if arch not in ARCHES:
        raise BadInput(f"unknown target x86:{arch}", allowed="x86:native, " + ", ".join(f"x86:{a}" for a in ARCHES))
    return replace(native, name=f"x86:{arch}", isa=_ordered(ARCHES[arch]))


def _ordered(features: Iterable[str]) -> tuple[str, ...]:
    chosen = set(features)
    return tuple(f for f in FEATURES if f in chosen)


def _field(cpuinfo: str, key: str) -> str:
    found = re.search(rf"^{key}\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
    return found.group(1).strip() if found else ""
