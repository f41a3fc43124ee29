"""x86's header of intrinsics, compiled once: gcc takes as long to read it as to compile many a kernel."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

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
    found = [match for source in kernel.sources for match in _INCLUDED.finditer(source.text)]
    wanted = any(match[1] not in defined for match in found)
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
