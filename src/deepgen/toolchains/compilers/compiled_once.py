"""What is compiled once and kept, since it takes as long as many a kernel: x86's intrinsics by gcc, zig's C library."""

from __future__ import annotations

import contextlib
import fcntl
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from deepgen.toolchains.base import BuildError, BuildLimits
from deepgen.toolchains.compilers.judge import run_judged
from deepgen.toolchains.group import Group
from deepgen.vocabulary import BadInput, Kernel, digest
from deepgen.vocabulary.folders import default_cache_folder

_INCLUDED = re.compile(r"^(?:#ifndef (\w+)\n)?#include <immintrin\.h>", re.MULTILINE)
# Macros that decide what headers declare, and so must come before all of them.
_COMES_FIRST = re.compile(r"^\s*#\s*define\s+(?:_[A-Z]|__STDC)", re.MULTILINE)
_USUAL = ("-std=", "-pthread", "-O")  # flags; of others there may be as many as a search has values, at 24 MB each
_NAME = "intrinsics.h"


def compiled_header(
    command: Sequence[str], identity: str, flags: Sequence[str], kernel: Kernel, limits: BuildLimits, group: Group
) -> tuple[str, ...]:
    """Flags by which gcc reads the compiled header first; none where a kernel does not need it or it cannot be kept.

    gcc itself refuses a header that was compiled by another gcc or with other flags, and then reads the text.
    """
    if not _includes_it(kernel):
        return ()
    own = [flag for flag in kernel.flags if not flag.startswith(("-D", "-l"))]
    if not all(flag.startswith(_USUAL) for flag in own):
        return ()
    kept = _place(identity, [*command[1:], *flags, *own])
    if kept is None:
        return ()
    if not kept.with_suffix(".h.gch").is_file():
        try:
            _compile([*command, *flags, *own], kept, limits, group)
        except (OSError, BuildError):  # such as of a full disk: kernels are compiled without it
            return ()
    return ("-include", str(kept))


def _includes_it(kernel: Kernel) -> bool:
    defined = {flag[2:].partition("=")[0] for flag in kernel.flags if flag.startswith("-D")}
    matches = [match for source in kernel.sources for match in _INCLUDED.finditer(source.text)]
    wanted = any(match[1] not in defined for match in matches)
    return wanted and not any(_COMES_FIRST.search(source.text) for source in kernel.sources)


def _place(identity: str, flags: Sequence[str]) -> Path | None:
    try:
        return default_cache_folder() / "headers" / digest([identity, *flags], 16) / _NAME
    except BadInput:  # no folder for it
        return None


def _compile(command: Sequence[str], kept: Path, limits: BuildLimits, group: Group) -> None:
    """Into its place, whole or not at all: others may do so at the same time."""
    kept.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=kept.parent.parent, prefix=".new-"))
    try:
        (work / _NAME).write_text("#include <immintrin.h>\n")
        run_judged("gcc", [*command, "-x", "c-header", _NAME, "-o", f"{_NAME}.gch"], work, limits, group)
        with contextlib.suppress(OSError):  # another one was faster
            work.rename(kept.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)


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
