"""Measuring workers that tests of this process start: forks of one process that has already imported what they need.

A worker takes a quarter of a second of CPU time before it receives its task, nearly all of it for imports, and tests
start hundreds. A fork is as fresh as a new process: with its own keeper, environment, folder and session. If anything
differs that a process inherits from its parent at its start, a worker is started as for users; so are those of tests
whose subject is the process itself (`conftest.py`).

Run as a program, it is the process that is forked.
"""

from __future__ import annotations

import gc
import json
import os
import select
import socket
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

# These change from test to test, and no import of a worker reads them. The last are read by baselines of tests.
_PASSING = {"PYTEST_CURRENT_TEST", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "INVOCATION_ID", "COLUMNS"}
_PASSING |= {"LOADED_BY", "SLOW_REFERENCE"}
_NUMBER = struct.Struct("i")


class Forked:
    """A `Popen`-like object for a process that another one has started."""

    def __init__(self, status: int, args: Any) -> None:
        self.args = args
        self.returncode: int | None = None
        self._status, self._lock = status, threading.Lock()
        self.pid = self._read()

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None and select.select([self._status], [], [], 0.0)[0]:
                self.returncode = self._read()
                os.close(self._status)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            select.select([self._status], [], [], timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(9)

    def _read(self) -> int:
        """The exit code that was written; -9 if the writer is gone."""
        data = os.read(self._status, _NUMBER.size)
        return int(_NUMBER.unpack(data)[0]) if data else -9


class Forks:
    """Replaces `subprocess` in the module that starts workers."""

    DEVNULL = subprocess.DEVNULL

    def __init__(self) -> None:
        self._seen: Counter[object] = Counter()
        self._servers: dict[object, tuple[socket.socket, subprocess.Popen[bytes]]] = {}

    def ahead(self, path: list[str], env: Mapping[str, str]) -> None:
        """Begin the process that is forked where it is known that many will ask: forks of this process share it."""
        key = _key(path, env)
        self._seen[key] = 1
        self._servers[key] = _server(path, env)

    def Popen(
        self, args: list[str], *, pass_fds: tuple[int, ...], env: Mapping[str, str], stdout: int, **words: Any
    ) -> Any:
        path = args[2 + len(pass_fds) :]
        key = _key(path, env)
        self._seen[key] += 1
        if self._seen[key] == 1:  # perhaps the only one with such an environment
            return subprocess.Popen(args, pass_fds=pass_fds, env=env, stdout=stdout, **words)
        if key not in self._servers:
            self._servers[key] = _server(path, env)
        seen, status = os.pipe()
        request = json.dumps([args[1], path, dict(env)]).encode()
        socket.send_fds(self._servers[key][0], [request], [*pass_fds, stdout, status])
        os.close(status)
        return Forked(seen, args)

    def end(self) -> None:
        for line, process in self._servers.values():
            line.close()  # this tells it to end
            process.wait()


def _key(path: list[str], env: Mapping[str, str]) -> object:
    """What a worker inherits from its parent."""
    lasting = {name: value for name, value in env.items() if name not in _PASSING}
    return (*path, *sorted(lasting.items()), *sorted(os.sched_getaffinity(0)))


def _server(path: list[str], env: Mapping[str, str]) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """The process that forks, and the line to it. A `Popen` that is dropped warns, which is an error in some tests."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    nothing, fd = subprocess.DEVNULL, theirs.fileno()
    words: dict[str, Any] = {"stdin": nothing, "stdout": nothing, "stderr": nothing, "start_new_session": True}
    process = subprocess.Popen([sys.executable, __file__, str(fd), *path], pass_fds=[fd], env=env, cwd="/", **words)
    theirs.close()
    return ours, process


def _serve(asked: socket.socket) -> tuple[Any, list[int]]:
    """Fork for each request; returns in the fork. Ends with the requesting process."""
    running: dict[int, tuple[int, int]] = {}
    poll = select.poll()
    poll.register(asked, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready in running:
                poll.unregister(ready)
                pid, status = running.pop(ready)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                _tell(status, code)
                os.close(status)
                os.close(ready)
                continue
            data, fds, _, _ = socket.recv_fds(asked, 1 << 20, 8)
            if not data:
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                asked.close()
                for one in (fds.pop(), *running, *(status for _, status in running.values())):
                    os.close(one)
                return json.loads(data), fds
            end = os.pidfd_open(pid)
            poll.register(end, select.POLLIN)
            running[end] = pid, fds.pop()
            _tell(running[end][1], pid)
            for fd in fds:
                os.close(fd)


def _tell(status: int, number: int) -> None:
    try:
        os.write(status, _NUMBER.pack(number))
    except BrokenPipeError:
        return


def _become(keeper: str, path: list[str], env: Mapping[str, str], fds: list[int]) -> None:
    """Set up the fork like a process that was just started as a keeper."""
    *kept, output = fds
    os.setsid()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.clear()
    os.environ.update(env)
    sys.argv[:] = [keeper, *map(str, kept), *path]


if __name__ == "__main__":
    sys.path[:] = sys.argv[2:]
    from deepgen.vocabulary import bytecode

    bytecode.keep()
    import numpy.random  # noqa: F401  # by the first inputs of each worker: 8 ms

    from deepgen.run.measure import keeper, worker  # noqa: F401

    gc.collect()
    gc.freeze()
    (program, path, env), fds = _serve(socket.socket(fileno=int(sys.argv[1])))
    _become(program, path, env, fds)
    keeper.main()
