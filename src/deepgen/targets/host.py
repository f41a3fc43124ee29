"""What this machine is: with host_gpu, the only place in targets that reads anything."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from pathlib import Path

from deepgen.targets.host_gpu import cuda, has_cuda, has_hip, hip
from deepgen.targets.x86 import X86, from_facts
from deepgen.vocabulary.errors import Missing

__all__ = ["cache_sizes", "cuda", "has_cuda", "has_hip", "hip", "may_use_tiles", "usable_cores", "x86"]


def x86() -> X86:
    """This machine's processor as a target."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        raise Missing(
            "an x86-64 processor",
            blocks=f"this machine is {platform.machine()}, so x86 kernels cannot run here",
            remedy="Name another target with --target.",
        )
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text()
    except OSError:
        cpuinfo = ""
    return from_facts(cpuinfo, cache_sizes(), usable_cores(), tiles=may_use_tiles())


def may_use_tiles() -> bool:
    """Whether this system gives processes the state of AMX tiles; asking for it once is also how a process gets it."""
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
