"""The process between the supervisor and its worker. Run as a program, by process.py.

The worker is its child, so the parent that a kernel may signal is this process and not the tuner. Everything a kernel
starts remains its descendant, even after a double fork and setsid. When the worker has ended, or the supervisor has
closed the line or died, it kills them all, waits until none is left, and reports how the worker ended. At the start it
reports the worker's process id.

It forks before anything large is imported, so it does not delay the worker's start.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

_DEATH_SIGNAL, _CHILD_SUBREAPER = 1, 36  # options of prctl
_GLANCE = 0.01  # seconds between checks for descendants


def main() -> None:
    """The arguments: descriptors of the supervisor's line, the worker's channel and its pulse; the import path."""
    line_fd, channel_fd, pulse_fd = (int(word) for word in sys.argv[1:4])
    sys.path[:] = sys.argv[4:]
    prctl = ctypes.CDLL(None).prctl
    prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans become children of this process instead of init
    usual = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    keeper = os.getpid()
    worker = os.fork()
    if worker == 0:
        os.close(line_fd)
        os.setsid()  # a signal to the worker's process group does not reach this process
        signal.pthread_sigmask(signal.SIG_SETMASK, usual)
        prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        _blank_command_line()
        if os.getppid() == keeper:
            from deepgen.vocabulary import bytecode

            bytecode.keep()
            from deepgen.run.measure import worker as program

            program.main(channel_fd, pulse_fd)
        return
    os.close(channel_fd)
    os.close(pulse_fd)
    line = socket.socket(fileno=line_fd)
    with suppress(OSError):
        line.sendall(b"%d\n" % worker)
    threading.Thread(target=_end_with_supervisor, args=(line, worker), daemon=True).start()
    report = _watch(worker)
    _end_all(worker)
    with suppress(OSError):
        line.sendall(json.dumps(report).encode())
    os._exit(0)


def _blank_command_line() -> None:
    """Blank the command line, so that a kernel that reads it finds a plain interpreter, as in a user's process."""
    name = Path(sys.executable).name.encode()
    with suppress(OSError, ValueError, IndexError):
        start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
        if 0 < start < end - len(name):
            ctypes.memmove(start, name + bytes(end - start - len(name)), end - start)


def _end_with_supervisor(line: socket.socket, worker: int) -> None:
    with suppress(OSError):
        line.recv(1)
    _end_all(worker)
    os._exit(0)


def _watch(worker: int) -> dict[str, int]:
    """How the worker ended, as a return code of subprocess, or the signal that it or its child sent to this process."""
    while True:
        came = signal.sigwaitinfo(signal.valid_signals())
        if came.si_signo == signal.SIGCHLD:
            for pid, code in _reaped():
                if pid == worker:
                    return {"ended": code}
        elif came.si_pid in _children(worker):
            return {"sent": came.si_signo}  # signals from outside are left to the supervisor


def _reaped() -> list[tuple[int, int]]:
    """Children that have ended, with their exit codes, or negative signal numbers."""
    ended = []
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended.append((pid, -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)))
    return ended


def _end_all(worker: int) -> None:
    """Kill every descendant. Children of a dead child become children of this process before it is reaped."""
    with suppress(ChildProcessError):  # no children are left
        while True:
            for child in _children(worker):
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            if os.waitpid(-1, os.WNOHANG)[0] == 0:  # polled, as a list of children read meanwhile may be incomplete
                time.sleep(_GLANCE)


def _children(worker: int) -> list[int]:
    try:
        return [int(pid) for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()]
    except OSError:
        return [worker]  # if the system does not list children, the supervisor finds the others by their mark


if __name__ == "__main__":
    main()
