"""Guards of compilers that tests of this process start: forks of one small process, as tests run a thousand builds.

A guard is a separate Python, which takes longer to start than many a cached build. Tests whose subject it is start
theirs as for users (`conftest.py`).
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from deepgen.toolchains import guard

# The process that is forked: it ends with the requesting process, and waits for no other.
_PROGRAM = """
import json, os, signal, socket, sys
sys.path.append(sys.argv[2])
import guard
asked = socket.socket(fileno=int(sys.argv[1]))
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    words, fds, _, _ = socket.recv_fds(asked, 1 << 16, 3)
    if not words:
        os._exit(0)
    lifeline, output, compilers = fds
    if os.fork() == 0:
        asked.close()
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for stream, number in ((lifeline, 0), (output, 1)):
            os.dup2(stream, number)
            os.close(stream)
        builder, mark = json.loads(words)
        guard.main(int(builder), mark.encode(), compilers)
        os._exit(0)
    for fd in (lifeline, output, compilers):
        os.close(fd)
"""


class ForkedGuard:
    """A `Popen`-like object for a guard."""

    def __init__(self, line: socket.socket, words: list[str], pipe: int) -> None:
        theirs, ours = os.pipe()
        ended, theirs_too = os.pipe()
        try:
            socket.send_fds(line, [json.dumps(words).encode()], [theirs, theirs_too, pipe])
        finally:
            os.close(theirs)
            os.close(theirs_too)
        self.stdin, self.stdout = os.fdopen(ours, "wb", 0), os.fdopen(ended, "rb", 0)

    def wait(self) -> None:
        """Nothing to do: it was never a child of this process."""

    def communicate(self, last_word: bytes) -> None:
        with self.stdin, self.stdout:
            try:
                self.stdin.write(last_word)
            except BrokenPipeError:  # it was killed
                return
            self.stdin.close()
            self.stdout.read()


class Guards:
    """Replaces `subprocess` in the module that starts guards."""

    PIPE, DEVNULL = subprocess.PIPE, subprocess.DEVNULL

    def __init__(self) -> None:
        self._server: tuple[int, socket.socket, subprocess.Popen[bytes]] | None = None

    def Popen(self, args: list[str], *, pass_fds: tuple[int, ...], **words: Any) -> ForkedGuard:
        _python, *_options, builder, mark, _pipe = args
        if self._server is None or self._server[0] != os.getpid():  # a fork needs its own server
            self._server = (os.getpid(), *_server())
        return ForkedGuard(self._server[1], [builder, mark], *pass_fds)


def _server() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        fd, nothing = theirs.fileno(), subprocess.DEVNULL
        words = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(fd), str(Path(guard.__file__).parent)]
        process = subprocess.Popen(
            words, pass_fds=[fd], stdin=nothing, stdout=nothing, stderr=nothing, cwd="/", start_new_session=True
        )
    return ours, process
