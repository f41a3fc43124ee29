"""Starts a worker process with its keeper in a clean environment, possibly before there is work for it.

It imports little, because a command starts its worker before importing anything else.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import deepgen
from deepgen.run.measure import keeper
from deepgen.run.measure.channel import Channel, Closed, Pulse

# Set in the environment of the worker and of everything it starts. Systemd services have this variable too, so it does
# not reveal to a kernel that it is being measured.
MARK = "INVOCATION_ID"
_OURS = "DEEPGEN_"  # prefix of our own variables


class Spawned:
    """A worker that imports what it needs, and then waits for its task."""

    def __init__(self, threads: int, meets: str | None = None) -> None:
        """`meets`: the language of a device whose driver it starts at once, because that takes a while."""
        self.surroundings = surroundings(threads)
        self.pulse, pulse_fd = Pulse.create()
        ours, channel = socket.socketpair()
        self.channel = Channel(ours)
        self.line, line = socket.socketpair()
        self.output, output_write = os.pipe()
        os.set_blocking(self.output, False)
        self.mark = os.urandom(16).hex()
        fds = (line.fileno(), channel.fileno(), pulse_fd)
        path, env = self.surroundings
        try:
            self.keeper = subprocess.Popen(
                # Not `-m`, which would put the current folder first in the import path.
                [sys.executable, keeper.__file__, *map(str, fds), *path],
                stdin=subprocess.DEVNULL,
                stdout=output_write,
                stderr=output_write,
                pass_fds=fds,
                cwd="/",  # until it gets a folder of its own
                env={**env, MARK: self.mark},
                start_new_session=True,
            )
        finally:
            channel.close()
            line.close()
            for fd in (pulse_fd, output_write):
                os.close(fd)
        self.met = meets
        if meets is not None:
            with suppress(Closed):  # errors appear when it is opened
                self.channel.ask({"do": "meet", "language": meets})

    def end(self) -> None:
        """End a worker that is not needed."""
        self.line.close()  # the keeper detects this
        self.keeper.wait()
        self.channel.close()
        os.close(self.output)


_waiting: list[Spawned] = []


def start_ahead(threads: int, meets: str | None) -> None:
    """Start a worker before its task is known. It ends with this process."""
    _waiting.append(Spawned(threads, meets))


def take(threads: int, meets: str | None) -> Spawned:
    """The worker that was started ahead, if it fits and is alive, else a new one."""
    while _waiting:
        waiting = _waiting.pop()
        fits = waiting.surroundings == surroundings(threads) and waiting.met == meets
        if fits and waiting.keeper.poll() is None:
            return waiting
        threading.Thread(target=waiting.end, daemon=True).start()  # a starting driver delays its end
    return Spawned(threads, meets)


def surroundings(threads: int) -> tuple[list[str], dict[str, str]]:
    """The import path and environment, which are fixed once a process has started."""
    return import_path(), environment(threads)


def environment(threads: int) -> dict[str, str]:
    """The environment of a process that runs kernels and baselines."""
    count, out = str(threads), unmarked()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"):
        out[name] = count
    # OpenBLAS threads spin for up to 135 ms after a call before they sleep, and every sample would wait for that.
    out.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")
    return out


def unmarked() -> dict[str, str]:
    """This process's environment, without variables that reveal deepgen."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}


def import_path() -> list[str]:
    """The import path of this process, without the current folder, which may contain anything."""
    paths = [str(Path(p).absolute()) for p in sys.path if p]
    ours = str(Path(deepgen.__file__).absolute().parents[1])
    return paths if ours in paths else [*paths, ours]
