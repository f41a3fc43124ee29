"""Helpers shared by several of these tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from deepgen.toolchains.compilers.c import CCompiler
from deepgen.vocabulary import Kernel, LaunchPlan, Source

Fake = Callable[[str], CCompiler]  # makes a compiler from the lines of a shell script

ADD = "int add(int a, int b) { return a + b + (SALT) * 0; }\n"


def c_kernel(text: str = ADD, *flags: str, salt: int = 0) -> Kernel:
    """A C kernel; another salt makes it a different kernel."""
    return Kernel("add", "c", (Source("add.c", text),), (f"-DSALT={salt}", *flags), LaunchPlan(()))


def state(pid: int) -> str:
    """The system's letter for it: `R` runs, `T` is stopped, `Z` has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def alive(pid: int) -> bool:
    return state(pid) != "Z"


def until(condition: Callable[[], bool], seconds: float = 300.0) -> bool:
    """Wait for a condition, with a timeout."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return condition()
