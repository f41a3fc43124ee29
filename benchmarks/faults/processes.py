"""Identifies the processes of a chaos run."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

from deepgen.frontends.cli.processes import descendants, look

_COMPILERS = ("gcc", "cc1", "as", "collect2", "ld")
_RAY = {"ray::build": "builder", "ray::Tester": "tester"}
KILL = signal.SIGKILL
_ENDED = ("Z", "X")


def role(pid: int) -> str:
    """The role of a process: worker, compiler, builder, tester, raylet, gcs; or empty for others."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    blank = len(words) > 3 and not any(words[1:])  # a worker, which is a fork of its keeper
    if blank or any(word.endswith(b"run/measure/keeper.py") for word in words):
        return "worker"
    first = os.fsdecode(words[0])
    for title, name in _RAY.items():
        if first.startswith(title):
            return name
    program = Path(first.partition(" ")[0]).name
    if program in ("raylet", "gcs_server"):
        return "gcs" if program == "gcs_server" else program
    # gcc is called aarch64-linux-gnu-gcc-12 if it was found by its full name.
    named = program in _COMPILERS or "-gcc" in program or program.startswith("gcc-")
    return "compiler" if named else ""


def family(pid: int) -> list[int]:
    """A process and all that it started, itself first."""
    return [pid, *descendants(pid)]


def children() -> set[int]:
    """The children of this process."""
    return {pid for pid, process in descendants(os.getpid()).items() if process.parent == os.getpid()}


def everyone() -> list[int]:
    """All visible processes that have not ended."""
    results = (look(int(entry.name)) for entry in Path("/proc").glob("[0-9]*"))
    return [process.pid for process in results if process is not None and process.state not in _ENDED]


def ancestors_and_self() -> list[int]:
    results, pid = [], os.getpid()
    while pid > 0 and (process := look(pid)) is not None:
        results.append(pid)
        pid = process.parent
    return results


def send(pids: Iterable[int], number: signal.Signals) -> int:
    """How many of them existed to get the signal."""
    count = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
            count += 1
    return count


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
