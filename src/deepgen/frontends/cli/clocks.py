"""Whether clocks are free-running, and the commands that would lock them. Nothing here changes any setting."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from deepgen.vocabulary.codec import Serializable

_NVIDIA_FIELDS = ("index", "name", "compute_cap", "driver_version", "memory.total", "clocks.sm", "clocks.max.sm")
_AMD_VENDOR = "0x1002"


@dataclass(frozen=True)
class Clocks(Serializable):
    """The clocks of one device. `state` is free-running, held or unknown; `why` says how this was determined."""

    device: str
    state: str
    why: str
    lock: tuple[str, ...]  # commands for the user to run
    undo: tuple[str, ...]


@dataclass(frozen=True)
class NvidiaGpu:
    """What nvidia-smi reports about one GPU."""

    index: int
    name: str
    compute_capability: str
    driver: str
    memory_mib: str
    clock_mhz: str
    max_clock_mhz: str


def cpu(root: Path = Path("/")) -> Clocks:
    """This machine's CPU, according to sysfs."""
    base = root / "sys/devices/system/cpu"
    governor = _read(base / "cpu0/cpufreq/scaling_governor")
    no_turbo, boost = _read(base / "intel_pstate/no_turbo"), _read(base / "cpufreq/boost")
    turbo = {"0": True, "1": False}.get(no_turbo) if no_turbo else {"1": True, "0": False}.get(boost)
    lock, undo = (
        ["sudo cpupower frequency-set -g performance"],
        [f"sudo cpupower frequency-set -g {governor or 'schedutil'}"],
    )
    for value, path, off, on in (
        (no_turbo, "/sys/devices/system/cpu/intel_pstate/no_turbo", 1, 0),
        (boost, "/sys/devices/system/cpu/cpufreq/boost", 0, 1),
    ):
        if value:
            lock.append(f"echo {off} | sudo tee {path}")
            undo.append(f"echo {on} | sudo tee {path}")
    if not governor and turbo is None:
        why = "the OS exposes neither governor nor turbo (common in virtual machines and containers)"
        return Clocks("cpu", "unknown", why, tuple(lock), tuple(undo))
    held = governor == "performance" and turbo is False
    boosts = {True: "on", False: "off", None: "unknown"}[turbo]
    why = f"governor {governor or 'unknown'}, turbo {boosts}"
    return Clocks("cpu", "held" if held else "free-running", why, tuple(lock), tuple(undo))


def nvidia_gpus(program: str | None) -> list[NvidiaGpu]:
    """The GPUs that nvidia-smi lists; empty if it is missing."""
    if program is None:
        return []
    command = [program, "--query-gpu=" + ",".join(_NVIDIA_FIELDS), "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    good = [row for row in rows if len(row) == len(_NVIDIA_FIELDS) and row[0].isdigit()]
    return [NvidiaGpu(int(index), *rest) for index, *rest in good] if done.returncode == 0 else []


def nvidia(gpu: NvidiaGpu) -> Clocks:
    """The only sign that nvidia-smi gives: an idle GPU lowers its clock unless it is locked."""
    now, most = _number(gpu.clock_mhz), _number(gpu.max_clock_mhz)
    if now is None or most is None:
        state, why = "unknown", "nvidia-smi does not report the clock"
    elif now < 0.5 * most:
        state, why = "free-running", f"the SM clock is currently {now} of {most} MHz"
    else:
        state, why = "unknown", f"the SM clock is {now} of {most} MHz: locked, or under load"
    return Clocks(f"nvidia:{gpu.index}", state, why, *nvidia_commands(str(gpu.index), gpu.max_clock_mhz))


def nvidia_commands(index: str, mhz: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The commands to lock, and to undo it."""
    lock = (f"sudo nvidia-smi -pm 1 -i {index}", f"sudo nvidia-smi -lgc {mhz},{mhz} -i {index}")
    return lock, (f"sudo nvidia-smi -rgc -i {index}",)


def amd(root: Path = Path("/")) -> list[Clocks]:
    """Every AMD GPU that the amdgpu driver lists."""
    devices = []
    for card in sorted((root / "sys/class/drm").glob("card[0-9]*")):
        device = card / "device"
        level = _read(device / "power_dpm_force_performance_level")
        if not re.fullmatch(r"card\d+", card.name) or _read(device / "vendor") != _AMD_VENDOR or not level:
            continue
        steps = re.findall(r"^\s*(\d+):", _read(device / "pp_dpm_sclk"), re.MULTILINE)
        state = "free-running" if level == "auto" else "held"
        lock, undo = amd_commands(card.name, steps[-1] if steps else "LEVEL")
        devices.append(Clocks(f"amd:{card.name}", state, f"performance level {level}", lock, undo))
    return devices


def amd_commands(card: str, level: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The commands to lock, and to undo it."""
    enter = f"cd /sys/class/drm/{card}/device"
    force = "sudo tee power_dpm_force_performance_level"
    return (enter, f"echo manual | {force}", f"echo {level} | sudo tee pp_dpm_sclk"), (enter, f"echo auto | {force}")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None
