"""Detection of this machine. Only this file and host_gpu do I/O in targets."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from pathlib import Path

from deepgen.targets import arm as arm_facts
from deepgen.targets import x86 as x86_facts
from deepgen.targets.arm import Arm
from deepgen.targets.cpu import C, Cpu, common
from deepgen.targets.host_gpu import cuda, gpu_memory_bytes, has_cuda, has_hip, hip
from deepgen.targets.x86 import X86
from deepgen.vocabulary.errors import Missing

__all__ = [
    "arm",
    "cache_sizes",
    "cuda",
    "gpu_memory_bytes",
    "has_cuda",
    "has_hip",
    "hip",
    "like",
    "machine",
    "may_use_tiles",
    "memory_bytes",
    "processor",
    "usable_cores",
    "x86",
]
_MACHINES: dict[str, type[Cpu]] = {kind.machine: kind for kind in (X86, Arm)}


def processor() -> Cpu:
    """This machine's processor as a target, whatever its kind."""
    kind = _MACHINES.get(machine())
    if kind is None:
        raise Missing(
            "a processor that deepgen knows",
            blocks=f"this machine is {machine()}, so kernels for its processor cannot be built",
            remedy="Name another target with --target.",
        )
    return x86() if kind is X86 else arm()


def x86() -> X86:
    """This machine's processor, which must be an x86-64."""
    _require(X86, "an x86-64 processor")
    return x86_facts.from_facts(_cpuinfo(), cache_sizes(), usable_cores(), tiles=may_use_tiles())


def arm() -> Arm:
    """This machine's processor, which must be a 64-bit Arm."""
    _require(Arm, "a 64-bit Arm processor")
    return arm_facts.from_facts(_cpuinfo(), cache_sizes(), usable_cores())


def like(kind: type[C]) -> C:
    """This machine's processor if it is of that kind; otherwise a typical one, to build for."""
    found = processor() if machine() in _MACHINES else None
    return found if isinstance(found, kind) else common(kind, usable_cores())


def _require(kind: type[Cpu], words: str) -> None:
    if _MACHINES.get(machine()) is not kind:
        raise Missing(
            words,
            blocks=f"this machine is {machine()}, so {kind.own_kind} kernels cannot run here",
            remedy="Name another target with --target.",
        )


def machine() -> str:
    """The architecture's name as in compilers: x86_64, aarch64."""
    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""


def may_use_tiles() -> bool:
    """Whether this system lets processes use AMX tiles. The request also enables them for this process."""
    if sys.platform != "linux":
        return False
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return bool(ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) == 0)


def usable_cores() -> int:
    """Cores that this process may run on, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def cache_sizes(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> dict[str, int]:
    """Bytes of L1d, L2 and L3 as one core sees them."""
    sizes = {}
    for index in sorted(root.glob("index*")):
        try:
            level = (index / "level").read_text().strip()
            kind = (index / "type").read_text().strip()
            size = (index / "size").read_text().strip()
        except OSError:
            continue
        name = {"Data": f"L{level}d", "Unified": f"L{level}"}.get(kind)
        if name and size[:-1].isdigit():
            sizes[name] = int(size[:-1]) * {"K": 1 << 10, "M": 1 << 20}.get(size[-1], 1)
    return sizes


def memory_bytes() -> int | None:
    """This machine's memory, if the system reports it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
