"""A resident compiler: it builds one kernel after another, so that it starts and loads only once.

It runs like other compilers (process.py), and reads requests from its stdin. It prints the log of a build, up to a NUL
byte, then a line with the build's exit code and the CPU time used so far. It is not used again after a failed build, so
that a failure cannot affect later builds, and it is replaced after some number of builds.
"""

from __future__ import annotations

import contextlib
import resource
import subprocess
from collections.abc import Sequence
from concurrent.futures import CancelledError
from math import ceil
from pathlib import Path

from deepgen.toolchains.base import BuildLimits
from deepgen.toolchains.group import Group, Resting
from deepgen.toolchains.process import End, Finished, Log, ended, is_over, spawn, watch

_BUILDS = 200  # after which it is replaced


def run(command: tuple[str, ...], words: Sequence[str], *, folder: Path, limits: BuildLimits, group: Group) -> Finished:
    """Run one build in a folder. Raises OSError if none can start, CancelledError if its group was killed."""
    one = _taken(command, limits, group) or Resting(
        group.start(lambda: spawn(command, folder, group.mark, group.inherited, subprocess.PIPE)), 0, 0.0
    )
    process, started = one.process, group.clock()
    assert process.stdin is not None
    log, end = _Reply(limits.log_bytes), None
    try:
        _limit(process.pid, limits, one.cpu_seconds)
        request = "\0".join((str(folder), *words)).encode()
        with contextlib.suppress(BrokenPipeError):  # it has ended, which is handled below
            process.stdin.write(b"%d\n%s" % (len(request), request))
            process.stdin.flush()
        end = watch(process, log, limits, group, started)
    finally:
        code, cpu_seconds = log.reply()
        if not (end is None and code == 0 and one.builds < _BUILDS and _rests(command, one, cpu_seconds, group)):
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            cpu_seconds = ended(process, log, limits, group)
            code = code if log.complete else process.returncode
    if group.killed:
        raise CancelledError("the build was stopped")
    seconds = group.clock() - started
    return Finished(code, end or End.ITSELF, log.text(), seconds, cpu_seconds - one.cpu_seconds)


def _rests(command: tuple[str, ...], one: Resting, cpu_seconds: float, group: Group) -> bool:
    return group.rest(command, Resting(one.process, one.builds + 1, cpu_seconds))


def _taken(command: tuple[str, ...], limits: BuildLimits, group: Group) -> Resting | None:
    """A resting compiler that is still alive: the system may have killed it."""
    while (one := group.resting(command)) is not None and is_over(one.process.pid):
        ended(one.process, Log(limits.log_bytes), limits, group)
    return one


def _limit(pid: int, limits: BuildLimits, spent: float) -> None:
    """Set limits for the next build. Only soft limits are set, which can be raised again."""
    with contextlib.suppress(ProcessLookupError):
        for what, most in (
            (resource.RLIMIT_CPU, ceil(spent) + max(1, round(limits.cpu_seconds))),
            (resource.RLIMIT_AS, limits.memory_bytes),
            (resource.RLIMIT_FSIZE, limits.file_bytes),
            (resource.RLIMIT_CORE, 0),
        ):
            # A lower existing limit that may not be raised stays.
            with contextlib.suppress(PermissionError, ValueError):
                resource.prlimit(pid, what, (most, resource.prlimit(pid, what)[1]))


class _Reply(Log):
    """A build's log, and the status line after it."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._last: bytes | None = None

    def add(self, chunk: bytes) -> None:
        if self._last is None:
            chunk, end, last = chunk.partition(b"\0")
            super().add(chunk)
            self._last = last if end else None
        else:
            self._last += chunk
        self.complete = self._last is not None and self._last.endswith(b"\n")

    def reply(self) -> tuple[int, float]:
        """The exit code, and the CPU time so far; a failure if they are missing or unreadable."""
        try:
            code, used = (self._last or b"").split()
            return int(code), float(used)
        except ValueError:
            return 1, 0.0
