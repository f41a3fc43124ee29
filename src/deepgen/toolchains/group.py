"""The running compilers as a group that can be paused, resumed and killed."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from types import TracebackType
from typing import NamedTuple

from deepgen.toolchains import guard

_MARK = "DEEPGEN_BUILD_GROUP"


class Resting(NamedTuple):
    """A compiler that waits for its next build, with its builds and CPU time so far."""

    process: subprocess.Popen[bytes]
    builds: int
    cpu_seconds: float


class Group:
    """Process groups that are controlled together, with a clock that stops while they are paused.

    Pauses nest. Nothing outlives the group: `kill` ends all of it, and if this process gets SIGKILL, a guard process
    ends it instead.
    """

    def __init__(self) -> None:
        self.mark = {_MARK: f"{os.getpid()}-{secrets.token_hex(8)}"}  # in the environment of every compiler
        self._changed = threading.Condition()
        self._leaders: set[int] = set()  # leaders of process groups
        self._pauses = 0
        self._killed = False
        self._paused_at = 0.0
        self._paused_seconds = 0.0
        self._guard: _Guard | None = None
        self._resting: dict[tuple[str, ...], list[Resting]] = {}  # by command

    @property
    def inherited(self) -> tuple[int, ...]:
        """File descriptors that every compiler must inherit. Used by the function passed to `start`."""
        return (self._guard.compilers,) if self._guard is not None else ()

    def admit(self) -> None:
        """Wait until work may start. Raises CancelledError if the group was killed."""
        with self._changed:
            self._wait_for_admission()

    def start(self, spawn: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        """Start the leader of a new process group, after the end of a pause."""
        with self._changed:
            self._wait_for_admission()
            self._ensure_guard()
            # Under the lock, so that nothing starts after `pause` has returned.
            process = spawn()
            self._leaders.add(process.pid)
            return process

    def end(self, leader: int) -> None:
        """Kill the rest of a process group whose leader was not reaped yet, and forget it."""
        with self._changed:
            _signal(leader, signal.SIGKILL)
            self._leaders.discard(leader)

    def rest(self, command: tuple[str, ...], one: Resting) -> bool:
        """Keep a compiler for the next build; returns False if the group was killed."""
        with self._changed:
            if not self._killed:
                self._resting.setdefault(command, []).append(one)
            return not self._killed

    def resting(self, command: tuple[str, ...]) -> Resting | None:
        """A kept compiler, after the end of a pause; None if there is none."""
        with self._changed:
            self._wait_for_admission()
            kept = self._resting.get(command)
            return kept.pop() if kept else None

    def pause(self) -> None:
        """Stop every compiler; none starts until `resume`."""
        with self._changed:
            self._pauses += 1
            if self._pauses == 1:
                self._paused_at = time.monotonic()
                for leader in self._leaders:
                    _signal(leader, signal.SIGSTOP)

    def resume(self) -> None:
        """Undo one pause."""
        with self._changed:
            if self._pauses == 0:
                return
            self._pauses -= 1
            if self._pauses == 0:
                self._paused_seconds += time.monotonic() - self._paused_at
                for leader in self._leaders:
                    _signal(leader, signal.SIGCONT)
                self._changed.notify_all()

    def kill(self) -> None:
        """Kill every compiler, paused or not; no more can start."""
        with self._changed:
            self._killed = True
            for leader in self._leaders:
                _signal(leader, signal.SIGKILL)
            self._changed.notify_all()

    @property
    def paused(self) -> bool:
        return self._pauses > 0

    @property
    def killed(self) -> bool:
        return self._killed

    def clock(self) -> float:
        """Seconds outside pauses."""
        with self._changed:
            now = self._paused_at if self._pauses else time.monotonic()
            return now - self._paused_seconds

    def sleep(self, seconds: float) -> None:
        """Sleep on the group's clock, as a compiler would run. Raises CancelledError if the group was killed."""
        self.admit()
        end = self.clock() + seconds
        with self._changed:
            while True:
                self._wait_for_admission()
                left = end - (time.monotonic() - self._paused_seconds)
                if left <= 0.0:
                    return
                self._changed.wait(left)

    def close(self) -> None:
        """Kill what is running and release the guard."""
        self._close(guard.FAREWELL)

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        # A Ctrl-C may have come after a compiler was started but before it was registered. The guard finds it.
        interrupted = kind is not None and not issubclass(kind, Exception)
        self._close(b"" if interrupted else guard.FAREWELL)

    def _close(self, last_word: bytes) -> None:
        self.kill()
        with self._changed:
            watching, self._guard = self._guard, None
            resting = [one for kept in self._resting.values() for one in kept]
            self._resting.clear()
        for one in resting:
            one.process.communicate()
        if watching is not None:
            watching.close(last_word)

    def _wait_for_admission(self) -> None:
        self._changed.wait_for(lambda: self._killed or not self._pauses)
        if self._killed:
            raise CancelledError("the build was stopped")

    def _ensure_guard(self) -> None:
        if self._guard is not None and self._guard.ended:  # it was killed
            self._guard.close(b"")
            self._guard = None
        if self._guard is None:
            self._guard = _Guard(f"{_MARK}={self.mark[_MARK]}")


class _Guard:
    """The guard process, and the pipe by which it detects that no compiler is left."""

    def __init__(self, mark: str) -> None:
        seen, self.compilers = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), mark, str(seen)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,  # prints nothing: it is closed when the guard ends
                stderr=subprocess.DEVNULL,
                pass_fds=(seen,),
                start_new_session=True,
            )
            self._process.wait()  # until the guard is no longer its child
        except BaseException:
            os.close(self.compilers)
            raise
        finally:
            os.close(seen)

    @property
    def ended(self) -> bool:
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], 0.0)[0])

    def close(self, last_word: bytes) -> None:
        """Wait until it has ended: immediately for a farewell, else when no compiler is left."""
        os.close(self.compilers)
        self._process.communicate(last_word)


def _signal(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
