"""What benchmarks share: how they end, how they write, and what beside figures (date, hardware, versions, command)."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import deepgen
from deepgen.targets import host
from deepgen.vocabulary import DeepgenError

PACKAGES = ("numpy", "torch", "kernel-tuner", "pyatf", "ortools", "lightgbm", "scikit-learn")


def run_main(main: Callable[[], object]) -> None:
    """A benchmark's main: errors that speak to the user are told as they are. An interrupt ends it without a word, and
    so does a reader of what it prints that goes away, as `head` does. What main returns is its exit status.
    """
    try:
        status = main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except DeepgenError as error:
        raise SystemExit(str(error)) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still to be written at the exit
        raise SystemExit(1) from None
    if status:
        raise SystemExit(status)


def conditions() -> dict[str, Any]:
    """Where and when a figure was taken, and by which command."""
    versions = {"python": platform.python_version(), "deepgen": deepgen.__version__}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    load = Path("/proc/loadavg")
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "hardware": host.processor().describe(),
        "load": load.read_text().split()[0] if load.exists() else None,
        "versions": versions,
        "command": " ".join(["python", *sys.argv]),
    }


def peak_mebibytes() -> float:
    """The most memory that this process has held. (getrusage would tell its parent's, which it inherits.)"""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return float("nan")


def save(path: Path, results: Any, **where: Any) -> None:
    """Write the figures with their conditions, and with what else tells where they were taken."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"conditions": {**conditions(), **where}, "results": results}, indent=1) + "\n")
    print(f"written to {path}")


def by_lines(told: Mapping[str, Any]) -> str:
    """JSON with a line for each member, and for each item of a member that is a list.

    For files of many results: one that is measured again changes one line, and a whole file can be looked through.
    """
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {_of_lines(value)}" for name, value in told.items()) + "\n}\n"


def _of_lines(value: Any) -> str:
    if not isinstance(value, list):
        return json.dumps(value)
    return "[\n" + ",\n".join(json.dumps(item) for item in value) + "\n]"
