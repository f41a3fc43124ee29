"""Runs compilers under limits, in a process each or in one that stays for other kernels.

A compiler runs in its own session, so that Ctrl-C reaches it only through us and its whole process group can be paused
or killed. Limits are set from outside, right after the start: code between fork and exec is not safe in a process with
threads. Children that it forked before that are limited too, and later ones inherit the limits.

A resident compiler builds one kernel after another, so that it starts and loads only once. It reads requests from its
stdin. It prints the log of a build, up to a NUL byte, then a line with the build's exit code and the CPU time used so
far. It is not used again after a failed build, so that a failure cannot affect later builds, and it is replaced after
some number of builds.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from enum import Enum
from math import ceil
from pathlib import Path

from deepgen.toolchains.base import BuildLimits
from deepgen.toolchains.group import Group, Resting

_CHUNK = 1 << 16
_GLANCE = 0.1  # seconds between checks of a silent process


class End(Enum):
    """Why a process ended."""

    ITSELF = "it ended by itself"
    WALL_CLOCK = "the wall clock ran out"
    OUTPUT = "it printed too much"


@dataclass(frozen=True)
class Finished:
    """A process that has ended, with its children."""

    code: int  # its exit code, or minus the signal that ended it
    end: End
    log: str  # stdout and stderr as they came, truncated in the middle
    seconds: float  # without pauses
    cpu_seconds: float  # of the process and the children that it waited for


def run(
    argv: Sequence[str], *, folder: Path, limits: BuildLimits, group: Group, env: Mapping[str, str] | None = None
) -> Finished:
    """Run a command in a folder. Raises OSError if it cannot start, CancelledError if its group was killed."""
    process = group.start(lambda: spawn(argv, folder, {**(env or {}), **group.mark}, group.inherited))
    started, log, end = group.clock(), Log(limits.log_bytes), None
    try:
        _limit(process.pid, limits)
        end = watch(process, log, limits, group, started)
    finally:
        cpu_seconds = ended(process, log, limits, group)
    if group.killed:
        raise CancelledError("the build was stopped")
    return Finished(process.returncode, end or End.ITSELF, log.text(), group.clock() - started, cpu_seconds)


def ended(process: subprocess.Popen[bytes], log: Log, limits: BuildLimits, group: Group) -> float:
    """End a process with its group, read the rest of its output, and return its CPU time."""
    assert process.stdout is not None
    try:
        with process.stdout:
            group.end(process.pid)
            _drain(process.stdout.fileno(), log, limits)
    finally:
        # Reaped only here: while the leader is a zombie, its id cannot be reused by another process group.
        group.end(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def spawn(
    argv: Sequence[str],
    folder: Path,
    env: Mapping[str, str],
    inherited: tuple[int, ...],
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start a compiler in its own session, without limits."""
    process = subprocess.Popen(
        argv,
        cwd=folder,
        # We parse the messages, hence the C locale; temporary files of a killed compiler are deleted with the folder.
        env={**os.environ, "LC_ALL": "POSIX", "TMPDIR": str(folder), **env},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=inherited,
        start_new_session=True,
    )
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    return process


def _limit(pid: int, limits: BuildLimits) -> None:
    """Limit a process, then its existing children; later ones inherit the limits."""
    cpu = max(1, round(limits.cpu_seconds))
    with contextlib.suppress(ProcessLookupError):
        for what, soft, hard in (
            (resource.RLIMIT_CPU, cpu, cpu + 2),  # the soft limit's signal differs from other kills
            (resource.RLIMIT_AS, limits.memory_bytes, limits.memory_bytes),
            (resource.RLIMIT_FSIZE, limits.file_bytes, limits.file_bytes),
            (resource.RLIMIT_CORE, 0, 0),
        ):
            # A lower existing limit that may not be raised stays.
            with contextlib.suppress(PermissionError, ValueError):
                resource.prlimit(pid, what, (soft, hard))
        with contextlib.suppress(OSError):
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                _limit(int(child), limits)


def watch(process: subprocess.Popen[bytes], log: Log, limits: BuildLimits, group: Group, started: float) -> End | None:
    """Read a process's output until it ends, exceeds a limit, or its log is complete (None). Does not reap it."""
    assert process.stdout is not None
    out = process.stdout.fileno()
    poll = select.poll()
    poll.register(out, select.POLLIN)
    with _exit_event(process.pid) as event:
        if event is not None:
            poll.register(event, select.POLLIN)
        while not is_over(process.pid):
            left = limits.wall_seconds - (group.clock() - started)
            if left <= 0.0 and not group.paused:
                return End.WALL_CLOCK
            ready = poll.poll(1000.0 * (_GLANCE if left <= 0.0 else min(left, _GLANCE)))
            if any(fd == out for fd, _ in ready):
                chunk = os.read(out, _CHUNK)
                log.add(chunk)
                if log.complete:
                    return None
                if log.total > limits.output_bytes:
                    return End.OUTPUT
                if not chunk:
                    poll.unregister(out)
    return End.ITSELF


@contextlib.contextmanager
def _exit_event(pid: int) -> Iterator[int | None]:
    """A file descriptor that becomes readable when the process ends; None if the system does not support this."""
    try:
        event = os.pidfd_open(pid)
    except (OSError, AttributeError):
        yield None
        return
    try:
        yield event
    finally:
        os.close(event)


def is_over(pid: int) -> bool:
    """Whether a child has ended. It is not reaped."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _drain(out: int, log: Log, limits: BuildLimits) -> None:
    """Read the rest of the output from the pipe, which a child in another session may hold open."""
    with contextlib.suppress(BlockingIOError):
        while log.total <= limits.output_bytes and (chunk := os.read(out, _CHUNK)):
            log.add(chunk)


class Log:
    """The first and the last part of a stream of any length."""

    complete = False  # whether the output is complete although the process continues

    def __init__(self, size: int) -> None:
        self._half = max(1, size // 2)
        self._head = b""
        self._tail = b""
        self.total = 0

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        room = self._half - len(self._head)
        self._head += chunk[:room]
        self._tail = (self._tail + chunk[room:])[-self._half :]

    def text(self) -> str:
        left_out = self.total - len(self._head) - len(self._tail)
        middle = f"\n... {left_out} bytes left out ...\n".encode() if left_out else b""
        return (self._head + middle + self._tail).replace(b"\0", b"").decode(errors="replace")


_BUILDS = 200  # after which it is replaced


def run_resident(
    command: tuple[str, ...], words: Sequence[str], *, folder: Path, limits: BuildLimits, group: Group
) -> Finished:
    """Run one build in a folder. Raises OSError if none can start, CancelledError if its group was killed."""
    one = _taken(command, limits, group) or Resting(
        group.start(lambda: spawn(command, folder, group.mark, group.inherited, subprocess.PIPE)), 0, 0.0
    )
    process, started = one.process, group.clock()
    assert process.stdin is not None
    log, end = _Reply(limits.log_bytes), None
    try:
        _limit_build(process.pid, limits, one.cpu_seconds)
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


def _limit_build(pid: int, limits: BuildLimits, spent: float) -> None:
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
