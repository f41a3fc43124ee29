"""Where and when a result was measured: date, hardware, load, versions, and the command."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("deepgen-kernels", "numpy", "torch", "triton", "ray", "ortools", "lightgbm")
GPU_FACTS = "name,driver_version,clocks.sm,clocks.mem,power.draw,power.limit,temperature.gpu"


@dataclass(frozen=True)
class Conditions:
    """The conditions stored with the results of every file."""

    date: str
    hardware: str
    gpu: Mapping[str, str]
    load: str | None
    versions: Mapping[str, str]
    command: str

    @staticmethod
    def now() -> Conditions:
        from deepgen.targets import host

        load = Path("/proc/loadavg")
        return Conditions(
            date=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            hardware=host.processor().describe(),
            gpu=gpu(),
            load=load.read_text().split()[0] if load.exists() else None,
            versions=versions(),
            command=command(),
        )


def versions() -> dict[str, str]:
    import deepgen

    out = {"python": platform.python_version(), "deepgen": deepgen.__version__}
    for package in PACKAGES[1:]:
        try:
            out[package] = version(package)
        except PackageNotFoundError:
            continue
    return out


def command() -> str:
    """The command as typed in the root of the repository, without this machine's folders."""
    program, *words = sys.argv
    return " ".join(["python", f"benchmarks/{Path(program).name}", *words])


@cache  # it takes up to a second
def gpu() -> Mapping[str, str]:
    """Facts about the first NVIDIA GPU from nvidia-smi, when they are first needed; empty if there is none."""
    query = ["nvidia-smi", f"--query-gpu={GPU_FACTS}", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return {}
    return dict(zip(GPU_FACTS.split(","), done.stdout.splitlines()[0].split(", "), strict=False))
