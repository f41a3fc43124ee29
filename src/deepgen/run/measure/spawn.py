"""Starts a worker process with its keeper in a clean environment, possibly before there is work for it.

It imports little: a command starts its worker here before it has imported anything else of its own.
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

# In the environment of the worker and of everything that it starts. Services of systemd have such a variable too: it
# should not be plain to a kernel that it is being measured.
MARK = "INVOCATION_ID"
_OURS = "DEEPGEN_"  # what names of our own variables begin with


class Spawned:
    """A worker that imports what it needs, and then waits to be told its task."""

    def __init__(self, threads: int, meets: str | None = None) -> None:
        """`meets`: the language of a device whose driver it shall start at once, which takes a while."""
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
                # Not `-m`: that would put the current folder before everything else that is imported.
                [sys.executable, keeper.__file__, *map(str, fds), *path],
                stdin=subprocess.DEVNULL,
                stdout=output_write,
                stderr=output_write,
                pass_fds=fds,
                cwd="/",  # until it is told a folder of our own
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
            with suppress(Closed):  # whoever opens it says what is wrong
                self.channel.ask({"do": "meet", "language": meets})

    def end(self) -> None:
        """Where there is no use for it."""
        self.line.close()  # by this its keeper knows
        self.keeper.wait()
        self.channel.close()
        os.close(self.output)


_waiting: list[Spawned] = []


def start_ahead(threads: int, meets: str | None) -> None:
    """Start a worker before there is a task for it. It ends with this process."""
    _waiting.append(Spawned(threads, meets))


def take(threads: int, meets: str | None) -> Spawned:
    """The worker that was started ahead if it fits and lives, else a new one."""
    while _waiting:
        waiting = _waiting.pop()
        fits = waiting.surroundings == surroundings(threads) and waiting.met == meets
        if fits and waiting.keeper.poll() is None:
            return waiting
        threading.Thread(target=waiting.end, daemon=True).start()  # a driver that starts delays that
    return Spawned(threads, meets)


def surroundings(threads: int) -> tuple[list[str], dict[str, str]]:
    """The import path and the environment, which a process cannot change as a whole once it has started."""
    return import_path(), environment(threads)


def environment(threads: int) -> dict[str, str]:
    """Of a process that runs kernels and baselines."""
    count, out = str(threads), unmarked()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"):
        out[name] = count
    # OpenBLAS's threads spin for up to 135 ms after a call before they sleep, and every sample waits for that.
    out.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")
    return out


def unmarked() -> dict[str, str]:
    """This process's own environment, without what says whose it is."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}


def import_path() -> list[str]:
    """Where this process found what it imported, but for the current folder, where anything may lie."""
    paths = [str(Path(p).absolute()) for p in sys.path if p]
    ours = str(Path(deepgen.__file__).absolute().parents[1])
    return paths if ours in paths else [*paths, ours]
