"""Built once and cached: a trimmed x86 intrinsics header (gcc takes 0.3 s to read the full one), parts of many kernels,
and zig's libc."""

from __future__ import annotations

import contextlib
import fcntl
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from deepgen.toolchains.base import BuildError, BuildLimits
from deepgen.toolchains.compilers.judge import run_judged
from deepgen.toolchains.group import Group
from deepgen.vocabulary import BadInput, Kernel, Source, digest
from deepgen.vocabulary.folders import default_cache_folder

_INCLUDED = re.compile(r"^(?:#ifndef (\w+)\n)?#include <immintrin\.h>", re.MULTILINE)
# Macros that affect declarations in headers, and so must precede all of them.
_COMES_FIRST = re.compile(r"^\s*#\s*define\s+(?:_[A-Z]|__STDC)", re.MULTILINE)
_FILE = "intrinsics.h"
_BEGINS = "int deepgen_begins;\n"
# Includes the C library; it is added at the end, so that only gcc's own definitions are processed.
_LIBRARY = "_MM_MALLOC_H_INCLUDED"
# Fast, as there are 6,400 functions and the first kernel waits: the text before the parameters ends in the name.
_ATTRIBUTE = r"(?:[^({]*__attribute__\s*\(\(.*?\)\))?"
_FUNCTION = re.compile(
    rf"^([ \t]*)(?:extern|static) __inline\b{_ATTRIBUTE}([^(]*)\(.*?^\1}}\n", re.MULTILINE | re.DOTALL
)
_DEFINE = re.compile(r"^#define (\w+).*\n", re.MULTILINE)
_WORD = re.compile(r"\b_\w+")
# Left when no function of an instruction set remains: gcc takes half a millisecond for each, and there are 70.
_EMPTY = re.compile(
    r"^#pragma GCC push_options\n#pragma GCC target ?\(.*\n((?:#(?:define|undef) .*\n)*)#pragma GCC pop_options\n",
    re.MULTILINE,
)
# The parts of the C library that a kernel may get only through these headers; other uses need the full header.
_OF_LIBRARY = re.compile(r"\b(?:_mm_malloc|_mm_free|[cm]alloc|realloc|free|abs|exit|abort|errno|NULL)\b")


def short_header(
    command: Sequence[str], identity: str, flags: Sequence[str], kernel: Kernel, limits: BuildLimits, group: Group
) -> tuple[str, ...]:
    """Flags that make gcc read only the x86 intrinsics that a kernel needs, instead of all 40,000 lines.

    Empty if a kernel does not include them, or if they cannot be stored. A missing function is a compile error.
    """
    if not _includes_it(kernel):
        return ()
    own = [flag for flag in kernel.flags if not flag.startswith(("-D", "-l"))]
    needs = [_needs(source.text) for source in kernel.sources]
    words = sorted(set().union(*(words for words, _ in needs)))
    library = any(library for _, library in needs)
    kept = _place(identity, [*command[1:], *flags, *own, *words, f"library {library}"], _FILE)
    if kept is None:
        return ()
    if not kept.is_file():
        try:
            _shorten([*command, *flags, *own], kept, words, library, limits, group)
        except (OSError, BuildError):  # such as a full disk: kernels are compiled with the full header
            return ()
    return ("-include", str(kept), "-Werror=implicit-function-declaration")


@lru_cache(maxsize=256)
def _needs(text: str) -> tuple[frozenset[str], bool]:
    """The words of a source that may be in the header, and whether it uses the C library. Cached, because kernels of a
    family share most sources."""
    return frozenset(_WORD.findall(text)), _OF_LIBRARY.search(text) is not None


def _includes_it(kernel: Kernel) -> bool:
    defined = {flag[2:].partition("=")[0] for flag in kernel.flags if flag.startswith("-D")}
    matches = [match for source in kernel.sources for match in _INCLUDED.finditer(source.text)]
    wanted = any(match[1] not in defined for match in matches)
    return wanted and not any(_COMES_FIRST.search(source.text) for source in kernel.sources)


def _place(identity: str, flags: Sequence[str], file: str) -> Path | None:
    try:
        return default_cache_folder() / "headers" / digest([identity, *flags], 16) / file
    except BadInput:  # no folder for it
        return None


def _shorten(
    command: Sequence[str], kept: Path, words: Sequence[str], library: bool, limits: BuildLimits, group: Group
) -> None:
    with _new_folder(kept) as work:
        (work / "all.c").write_text(f"{_BEGINS}#include <immintrin.h>\n")
        only = ("-E", "-P", "-dD", f"-D{_LIBRARY}", "all.c", "-o", "all.i")
        run_judged("gcc", [*command, *only], work, limits, group)
        text = (work / "all.i").read_text(encoding="utf-8", errors="replace").partition(_BEGINS)[2]
        shorter = needed_of(text, words)
        rest = "#include <mm_malloc.h>\n" if library else ""
        (work / _FILE).write_text(f"#pragma GCC system_header\n{shorter}{rest}", encoding="utf-8")
        for file in ("all.c", "all.i"):
            (work / file).unlink()


@contextlib.contextmanager
def _new_folder(kept: Path) -> Iterator[Path]:
    """An empty folder that takes the place of the kept file's atomically, as others may make it at the same time."""
    kept.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=kept.parent.parent, prefix=".new-"))
    try:
        yield work
        with contextlib.suppress(OSError):  # another process was faster
            work.rename(kept.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def needed_of(text: str, words: Iterable[str]) -> str:
    """A preprocessed header, reduced to the functions and macros that these words need; the rest stays unchanged."""
    bodies: dict[str, list[str]] = {}
    pieces: list[tuple[str, str]] = []  # a function's name, or "", and a text
    at = 0
    for function in _FUNCTION.finditer(text):
        name = function[2].split()[-1].lstrip("*")
        pieces += [("", text[at : function.start()]), (name, function[0])]
        bodies.setdefault(name, []).append(function[0])
        at = function.end()
    pieces.append(("", text[at:]))
    for macro in _DEFINE.finditer(text):
        bodies.setdefault(macro[1], []).append(macro[0])
    todo = [word for word in words if word in bodies]
    wanted: set[str] = set()
    while todo:
        word = todo.pop()
        if word not in wanted:
            wanted.add(word)
            todo += [other for body in bodies[word] for other in _WORD.findall(body) if other in bodies]

    def define(match: re.Match[str]) -> str:
        # Include guards must stay.
        return match[0] if match[1] in wanted or match[1].endswith("_INCLUDED") else ""

    short = _DEFINE.sub(define, "".join(piece for name, piece in pieces if not name or name in wanted))
    while (emptied := _EMPTY.sub(r"\1", short)) != short:
        short = emptied
    return short


# A header that can also be compiled alone, with NAME_ALONE, and linked to kernels that are compiled with NAME_APART.
_APART = re.compile(r"^#ifndef (\w+)_APART$", re.MULTILINE)
_OBJECT = "part.o"
_NO_PLUGIN = "-fno-use-linker-plugin"  # only needed to optimise while linking; starting it takes 5 ms


def separate_parts(command: Sequence[str], flags: Sequence[str], kernel: Kernel) -> list[tuple[Source, str, list[str]]]:
    """The parts of a kernel that are compiled alone: the source, its NAME, and the command without the output."""
    own = [flag for flag in kernel.flags if not flag.startswith(("-D", "-l"))]
    named = [(source, name) for source in kernel.sources if (name := _apart(source.text)) is not None]
    only = [("-O1", f"-D{name}_ALONE", "-x", "c", "-c", source.name) for source, name in named]
    return [(*one, [*command, *flags, *own, *words]) for one, words in zip(named, only, strict=True)]


def linked(parts: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Flags that link the objects of parts, by their names, instead of compiling the parts again."""
    flags = tuple(flag for name, built in parts for flag in (f"-D{name}_APART", built))
    return (*flags, _NO_PLUGIN) if flags else ()


def linked_parts(
    command: Sequence[str], identity: str, flags: Sequence[str], kernel: Kernel, limits: BuildLimits, group: Group
) -> tuple[str, ...]:
    """Flags that make gcc link the compiled parts that a kernel shares with others, instead of compiling them again.

    Empty if a kernel has none, or if they cannot be stored.
    """
    built: list[tuple[str, str]] = []
    for source, name, argv in separate_parts(command, flags, kernel):
        kept = _place(identity, [*argv[1:], source.text], _OBJECT)
        if kept is None:
            continue
        if not kept.is_file():
            with contextlib.suppress(OSError, BuildError):  # then kernels are compiled as a whole
                _keep_object([*argv, "-o", _OBJECT], kept, source, limits, group)
        if kept.is_file():
            built.append((name, str(kept)))
    return linked(built)


@lru_cache(maxsize=256)
def _apart(text: str) -> str | None:
    match = _APART.search(text)
    return match[1] if match else None


def _keep_object(argv: Sequence[str], kept: Path, source: Source, limits: BuildLimits, group: Group) -> None:
    with _new_folder(kept) as work:
        (work / source.name).write_text(source.text, encoding="utf-8")
        run_judged("gcc", argv, work, limits, group)
        (work / source.name).unlink()


_SECONDS = 900  # limit; on an otherwise idle core it takes a minute
_STEP = 0.1


def ready(command: Sequence[str], version: str, cache: str, limits: BuildLimits, group: Group) -> None:
    """Compile the library that a command links, once: concurrent builds would each do it, and might reach their time
    limit.

    If it fails, the builds themselves report why.
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
