"""Runs programs under qemu on this machine, and counts their instructions."""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from threading import Thread
from typing import Protocol

from deepgen.run.riscv.program import COUNTS, REQUEST, Ran
from deepgen.targets import Riscv, host
from deepgen.toolchains import BuildLimits, Cache, Group, build_once, default_cache_folder, programs, required
from deepgen.toolchains.process import End, run
from deepgen.vocabulary import Json, Kernel, LaunchPlan, Source

_PLUGIN, _PROGRAM, _TRACE = "count.so", "program", "trace"
_SHARED = "instructions.h"
_NARROW_FLOATS = {"zvfh": ("zfh", "zvfh"), "zvfbfwma": ("zfbfmin", "zvfbfmin", "zvfbfwma")}  # as qemu's properties
_NARROW_FLOATS_SINCE = 9  # qemu 7.2 lacks vectors of f16 and bf16, 10 has them
_MOST_MEMORY = 8 << 30  # address space for qemu and its guest
_MOST_FILE = 4 << 30
_DRAINED_SECONDS = 60.0  # for reading the rest of a log after qemu has ended


class Qemu:
    """An emulator of the target's CPU for user programs. Folders of runs are created in `scratch`."""

    counts = True

    def __init__(
        self, target: Riscv, scratch: Path, paths: Mapping[str, str] | None = None, cache: Cache | Path | None = None
    ) -> None:
        """Raises Missing if qemu is not installed."""
        self.path, version, numbers = find(paths)
        self.counter = _counter(self.path, numbers, paths, cache)
        self.processor = processor(target, numbers)
        self.conditions: Mapping[str, Json] = {"proxy": target.proxy, "qemu": version}
        narrow = [name for name in _NARROW_FLOATS if target.has(name)]
        old = narrow and numbers[0] < _NARROW_FLOATS_SINCE
        self.lacks = f"qemu {version} has no {' and '.join(narrow)}" if old else ""
        self._scratch = scratch
        self._group = Group()
        self._numbers = itertools.count()

    def run(self, program: Path, inputs: Path, request: str, seconds: float, *, counted: bool) -> Ran:
        folder = self._scratch / f"run-{next(self._numbers)}"
        folder.mkdir()
        for file in inputs.iterdir():
            (folder / file.name).symlink_to(file)
        (folder / REQUEST).write_text(request)
        if not os.access(program, os.X_OK):  # as in an unpacked bundle; qemu refuses such a file silently
            program = Path(shutil.copyfile(program, folder / _PROGRAM))
            program.chmod(0o700)
        limits = BuildLimits(seconds, int(seconds) + 1, _MOST_MEMORY, file_bytes=_MOST_FILE)
        with self.counter.counting(folder) if counted else nullcontext(()) as counting:
            argv = (self.path, *self.processor, *counting, str(program.absolute()), ".")
            ended = run(argv, folder=folder, limits=limits, group=self._group)
        return Ran(ended.code, ended.end is not End.WALL_CLOCK, ended.seconds, ended.log, folder)

    def close(self) -> None:
        self._group.kill()


class Counter(Protocol):
    """How instructions are counted."""

    def counting(self, folder: Path) -> AbstractContextManager[tuple[str, ...]]:
        """Options for qemu; when it has ended, its program's counts are in the folder."""
        ...


@dataclass(frozen=True)
class Plugin:
    """Counts with a library that qemu loads."""

    library: Path

    @contextmanager
    def counting(self, folder: Path) -> Iterator[tuple[str, ...]]:
        # Linked into the folder, because qemu takes a comma in a path as the end of an option.
        (folder / _PLUGIN).symlink_to(self.library)
        yield "-plugin", f"./{_PLUGIN},out={COUNTS}"


@dataclass(frozen=True)
class Trace:
    """Counts from qemu's log of every executed block, read while it is written: a few times as slow."""

    library: Path

    @contextmanager
    def counting(self, folder: Path) -> Iterator[tuple[str, ...]]:
        pipe = folder / _TRACE
        os.mkfifo(pipe, 0o600)
        reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        writing = os.open(pipe, os.O_WRONLY)  # our own writer, so that the log does not end before qemu has opened it
        os.set_blocking(reading, True)
        count = ctypes.CDLL(str(self.library)).count_trace
        # It closes the pipe itself. A process left behind by a kernel may keep the log open, which is not waited for.
        reader = Thread(target=count, args=(reading, str(folder / COUNTS).encode()), daemon=True)
        reader.start()
        try:
            yield "-d", "in_asm,exec,nochain", "-D", _TRACE
        finally:
            os.close(writing)
            reader.join(_DRAINED_SECONDS)
            pipe.unlink()


def find(paths: Mapping[str, str] | None = None) -> tuple[str, str, tuple[int, int]]:
    """The path of the emulator, its version as text and the first two numbers of it. Raises Missing."""
    path = required("qemu-riscv64", "kernels for riscv targets cannot be run here", paths)
    version = programs.version(path)
    major, minor = [*(int(part) for part in re.findall(r"\d+", version)), 0, 0][:2]
    return path, version, (major, minor)


def processor(target: Riscv, version: tuple[int, int]) -> tuple[str, str]:
    """The options that select the target's CPU."""
    narrow = [name for name in _NARROW_FLOATS if target.has(name) and version[0] >= _NARROW_FLOATS_SINCE]
    more = "".join(f",{part}=true" for name in narrow for part in _NARROW_FLOATS[name])
    return "-cpu", f"rv64,v=true,vlen={target.vlen},elen=64,vext_spec=v1.0{more}"


def _counter(
    path: str, version: tuple[int, int], paths: Mapping[str, str] | None, cache: Cache | Path | None
) -> Counter:
    """Count with a plugin if qemu supports plugins: Debian 13's is statically linked and does not."""
    takes_plugins = "-plugin" in programs.ask(path, "-help")
    api = 1 if version < (9, 0) else 2 if version < (9, 1) else 3
    name, flags = ("count.c", (f"-DAPI={api}",)) if takes_plugins else ("trace.c", ())
    folder = resources.files("deepgen.run.riscv")
    sources = tuple(Source(file, (folder / file).read_text()) for file in (name, _SHARED))
    used = cache if isinstance(cache, Cache) else Cache(cache or default_cache_folder())
    kernel = Kernel("count_instructions", "c", sources, ("-O2", *flags), LaunchPlan(()))
    library = Path(build_once(kernel, host.processor(), paths=paths, cache=used).binary).resolve()
    return Plugin(library) if takes_plugins else Trace(library)
