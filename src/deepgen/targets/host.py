"""Detection of this machine. The only module of targets that does I/O."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from pathlib import Path

from deepgen.targets import cpu as arm_facts
from deepgen.targets import cpu as x86_facts
from deepgen.targets.base import Target
from deepgen.targets.cpu import X86, Arm, Cpu, Processor, common
from deepgen.targets.gpu import Cuda, Hip, found_cuda, found_hip
from deepgen.vocabulary.errors import Missing

_MACHINES: dict[str, type[Cpu]] = {kind.machine: kind for kind in (X86, Arm)}


def processor() -> Cpu:
    """This machine's CPU as a target, whatever its kind."""
    kind = _MACHINES.get(machine())
    if kind is None:
        raise Missing(
            "a CPU that deepgen supports",
            blocks=f"this machine is {machine()}, so kernels for its CPU cannot be built",
            remedy="Name another target with --target.",
        )
    return x86() if kind is X86 else arm()


def x86() -> X86:
    """This machine's CPU, which must be an x86-64 CPU."""
    _require(X86, "an x86-64 CPU")
    return x86_facts.x86_from_facts(_cpuinfo(), cache_sizes(), usable_cores(), tiles=may_use_tiles())


def arm() -> Arm:
    """This machine's CPU, which must be a 64-bit Arm CPU."""
    _require(Arm, "a 64-bit Arm CPU")
    return arm_facts.arm_from_facts(_cpuinfo(), cache_sizes(), usable_cores())


def like(kind: type[Processor]) -> Processor:
    """This machine's CPU if it is of that kind; otherwise a typical one, to build for."""
    here = processor() if machine() in _MACHINES else None
    return here if isinstance(here, kind) else common(kind, usable_cores())


def _require(kind: type[Cpu], words: str) -> None:
    if _MACHINES.get(machine()) is not kind:
        raise Missing(
            words,
            blocks=f"this machine is {machine()}, so {kind.own_kind} kernels cannot run here",
            remedy="Name another target with --target.",
        )


def system() -> str:
    """The operating system, its release and the processor's kind. `platform.platform()` runs `uname` for it."""
    return "-".join((os.uname().sysname, os.uname().release, os.uname().machine))


def machine() -> str:
    """The architecture's name in compilers: x86_64, aarch64."""
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
    """Cores that this process may run on; in a container these may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def cache_sizes(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> dict[str, int]:
    """Bytes of L1d, L2 and L3 as seen by one core."""
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
            sizes[name] = int(size[:-1]) * (1 << 10 * ("KMG".find(size[-1]) + 1))
    return sizes


def memory_bytes() -> int | None:
    """This machine's memory, if the system reports it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


_CUDA_NODES = (Path("/dev/nvidiactl"), Path("/dev/dxg"), Path("/dev/nvhost-ctrl-gpu"))
_KFD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")
_HYGON = 0x1D94  # PCI vendor
_FRAMEBUFFER = ("1", "2")  # heap types of amdkfd: the card's own memory, visible to the host or not
# CUdevice_attribute codes, by the target's fields that they fill.
_ATTRIBUTES = {
    "threads_per_block": 1,
    "warp": 10,
    "multiprocessors": 16,
    "l2_bytes": 38,
    "threads_per_sm": 39,
    "shared_per_sm": 81,
    "registers_per_sm": 82,
    "shared_per_block": 97,
    "blocks_per_sm": 106,
    "shared_reserved": 111,
}
_CLOCK_KHZ, _MAJOR, _MINOR = 13, 75, 76


def has_cuda() -> bool:
    """Whether the driver finds a device. Without a device file, the driver is not even loaded."""
    return _driver() is not None


def cuda(device: int = 0) -> Cuda:
    """The card with this number."""
    driver = _driver()
    if driver is None:
        raise Missing(
            "an NVIDIA GPU",
            blocks="the CUDA driver finds none, so CUDA kernels can be built here but not measured",
            remedy="Name an architecture (--target cuda:sm_80) to build for it.",
        )
    value, name = ctypes.c_int(), ctypes.create_string_buffer(256)

    def ask(attribute: int) -> int:
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        return value.value

    driver.cuDeviceGetName(name, len(name), device)
    limits = {field: ask(attribute) for field, attribute in _ATTRIBUTES.items()}
    return found_cuda(name.value.decode(), ask(_MAJOR) * 10 + ask(_MINOR), ask(_CLOCK_KHZ) // 1000, limits)


def gpu_memory_bytes(target: Target, device: int = 0, nodes: Path | None = None) -> int | None:
    """The memory of the card that runs such kernels here; None if there is no card or it is not reported."""
    if isinstance(target, Cuda):
        driver, size = _driver(), ctypes.c_size_t()
        answered = driver is not None and driver.cuDeviceTotalMem_v2(ctypes.byref(size), device) == 0
        return size.value if answered else None
    cards = _kfd(nodes or _KFD_NODES) if isinstance(target, Hip) else []
    return cards[device].get("memory_bytes") if device < len(cards) else None


def has_hip(nodes: Path = _KFD_NODES) -> bool:
    return bool(_kfd(nodes))


def hip(device: int = 0, nodes: Path = _KFD_NODES) -> Hip:
    """The card with this number, as described by the kernel driver."""
    cards = _kfd(nodes)
    if device >= len(cards):
        raise Missing(
            "an AMD GPU or a Hygon DCU",
            blocks="the kernel's amdkfd driver finds none, so HIP kernels can be built here but not measured",
            remedy="Name an architecture (--target hip:gfx90a) to build for it.",
        )
    facts = cards[device]
    version = facts["gfx_target_version"]
    arch = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
    vendor = "Hygon DCU" if facts.get("vendor_id") == _HYGON else "AMD GPU"
    limits = {
        "multiprocessors": facts["simd_count"] // facts["simd_per_cu"],
        "warp": facts["wave_front_size"],
        "threads_per_sm": facts["max_waves_per_simd"] * facts["simd_per_cu"] * facts["wave_front_size"],
        "shared_per_block": facts["lds_size_in_kb"] << 10,
    }
    return found_hip(f"{vendor} {arch}", arch, limits)


def _driver() -> ctypes.CDLL | None:
    if not any(node.exists() for node in _CUDA_NODES):
        return None
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return None
    return driver if count.value > 0 else None


def _kfd(nodes: Path) -> list[dict[str, int]]:
    """The properties of the nodes that are GPUs; CPUs are nodes too, but without SIMD units."""
    out = []
    for node in sorted(nodes.glob("*"), key=lambda path: (len(path.name), path.name)):
        try:
            words = [line.split() for line in (node / "properties").read_text().splitlines()]
        except OSError:
            continue
        facts = {key: int(value) for key, value in (w for w in words if len(w) == 2) if value.isdigit()}
        if facts.get("simd_count") and facts.get("gfx_target_version"):
            out.append({**facts, **_kfd_memory(node)})
    return out


def _kfd_memory(node: Path) -> dict[str, int]:
    total = 0
    for bank in node.glob("mem_banks/*/properties"):
        facts = dict(line.split() for line in bank.read_text().splitlines() if len(line.split()) == 2)
        total += int(facts.get("size_in_bytes", 0)) if facts.get("heap_type") in _FRAMEBUFFER else 0
    return {"memory_bytes": total} if total else {}
