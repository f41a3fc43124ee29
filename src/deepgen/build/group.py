"""The compilers that run now, as one thing that can be paused, resumed and killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from types import TracebackType


class Group:
    """Process groups under one hand, with a clock that stands still while they are paused.

    Pauses nest. Nothing outlives the group: `kill` ends all of it, and should this process get SIGKILL, a guard
    process ends it instead.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._leaders: set[int] = set()  # each is the leader of its own process group
        self._pauses = 0
        self._killed = False
        self._paused_at = 0.0
        self._paused_seconds = 0.0
        self._guard: subprocess.Popen[bytes] | None = None

    def admit(self) -> None:
        """Wait until work may start. Raises CancelledError once the group was killed."""
        with self._changed:
            self._wait_for_admission()

    def start(self, spawn: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        """Start the leader of a new process group, now or when the pause is over."""
        with self._changed:
            self._wait_for_admission()
            # Under the lock, so that a pause which has returned is never followed by a start.
            process = spawn()
            self._leaders.add(process.pid)
            self._tell_guard(f"+{process.pid}")
            return process

    def end(self, leader: int) -> None:
        """Kill what is left of a process group whose leader was not waited for yet, and forget it."""
        with self._changed:
            _signal(leader, signal.SIGKILL)
            self._leaders.discard(leader)
            self._tell_guard(f"-{leader}")

    def pause(self) -> None:
        """Stop every compiler where it is; none starts until `resume`."""
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
        """End every compiler, paused or not; none starts any more."""
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
        """Seconds that passed while not paused."""
        with self._changed:
            now = self._paused_at if self._pauses else time.monotonic()
            return now - self._paused_seconds

    def sleep(self, seconds: float) -> None:
        """Let that much of the clock pass, as a compiler would. Raises CancelledError once the group was killed."""
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
        """Kill what runs and let the guard go."""
        self.kill()
        with self._changed:
            guard, self._guard = self._guard, None
        if guard is not None:
            _dismiss(guard)

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _wait_for_admission(self) -> None:
        self._changed.wait_for(lambda: self._killed or not self._pauses)
        if self._killed:
            raise CancelledError("the build was stopped")

    def _tell_guard(self, line: str) -> None:
        if self._guard is not None and _write(self._guard, line):
            return
        # The first start, or the guard itself was killed: a new one learns everything.
        if self._guard is not None:
            _dismiss(self._guard)
            self._guard = None
        if self._leaders:
            with contextlib.suppress(OSError):  # too many processes: better unguarded than not at all
                self._guard = _start_guard()
        if self._guard is not None:
            _write(self._guard, "\n".join(f"+{leader}" for leader in self._leaders))


def _start_guard() -> subprocess.Popen[bytes]:
    program = Path(__file__).with_name("guard.py")
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(program), str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _write(guard: subprocess.Popen[bytes], line: str) -> bool:
    assert guard.stdin is not None
    try:
        guard.stdin.write(line.encode() + b"\n")
        guard.stdin.flush()
    except OSError:
        return False
    return True


def _dismiss(guard: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        guard.communicate()  # closing its input ends it


def _signal(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
