"""The C library that zig compiles when it first links a program for a machine: once, with more time than a kernel."""

from __future__ import annotations

import fcntl
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from deepgen.toolchains.base import BuildError, BuildLimits
from deepgen.toolchains.compilers.judge import run_judged
from deepgen.toolchains.group import Group
from deepgen.vocabulary import digest

_SECONDS = 900  # at most: on a core that nothing else uses it takes a minute
_STEP = 0.1


def ready(command: Sequence[str], version: str, cache: str, limits: BuildLimits, group: Group) -> None:
    """Have the library compiled for what a command links: builds side by side would each do it, and might be stopped.

    Where it fails, the builds themselves tell why.
    """
    folder = Path(cache)
    done = folder / f"linked-{digest([version, *command[1:]], 16)}"
    if not folder.is_dir() or done.is_file():
        return
    try:
        with (folder / "linking").open("w") as lock:
            while not _taken(lock):
                group.sleep(_STEP)
            if not done.is_file():
                _link(command, cache, limits, group)
                done.touch()
    except (OSError, BuildError):
        return


def _taken(lock: IO[Any]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _link(command: Sequence[str], cache: str, limits: BuildLimits, group: Group) -> None:
    with TemporaryDirectory(prefix="deepgen-zig-") as work:
        (Path(work) / "main.c").write_text("int main(void) { return 0; }\n")
        env = {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": f"{work}/zig-cache"}
        longer = replace(limits, wall_seconds=_SECONDS, cpu_seconds=_SECONDS)
        run_judged("zig", [*command, "-o", "main", "main.c", "-pthread", "-lm"], Path(work), longer, group, env)
