"""Processes on a node must exit in time, and must not disturb a kernel that is being timed there.

A process exits when its node or every driver is gone, or when it hangs. Ray does that too, but with timers on the wall
clock. If a clock is set back, these stop for that long, and an orphaned measuring process would keep its device. The
timers here do not use the wall clock.

Compilers on a host are paused while a kernel is timed there, whichever processes they belong to. This uses two files
with operating system locks, so that a process that dies leaves no lock behind. A measuring process locks `wanted` and
then waits for `running`. A building process holds a shared lock on `running`, and releases it while `wanted` is locked.
"""

from __future__ import annotations

import fcntl
import os
import platform
import signal
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from deepgen.extend import DeepgenError, Group

CONTROL = "control"  # the concurrency group of calls that an actor answers while a kernel runs
SILENT_SECONDS = 60.0  # without a call from any driver
RENEW_SECONDS = 10.0
HANGS_ROUNDS = 6  # renewals without an answer
TICK_SECONDS = 1.0


def _end() -> None:
    os._exit(1)  # threads may hang. The system frees locks, keepers end kernels, and the next process removes folders


class Lease:
    """Ends this process if no driver has renewed it for a while."""

    def __init__(
        self, end: Callable[[], None] = _end, seconds: float = SILENT_SECONDS, tick: float = TICK_SECONDS
    ) -> None:
        self._end, self._seconds, self._tick = end, seconds, tick
        self._left = seconds
        threading.Thread(target=self._run_out, name="deepgen-lease", daemon=True).start()

    def renew(self) -> None:
        self._left = self._seconds

    def _run_out(self) -> None:
        # Counted in ticks: a process that was suspended must not exit before it has handled pending calls.
        while self._left > 0.0:
            time.sleep(self._tick)
            self._left -= self._tick
        self._end()


@lru_cache(maxsize=1)
def end_with_node() -> None:
    """Make this process exit together with the raylet that started it."""
    raylet = os.getppid()
    if os.environ.get("RAY_RAYLET_PID") != str(raylet):
        return  # the parent is another process, or there is no node

    def watch() -> None:
        while os.getppid() == raylet:
            time.sleep(TICK_SECONDS)
        _end()

    threading.Thread(target=watch, name="deepgen-node", daemon=True).start()


def _kill(pid: int) -> None:
    """Kill a Ray process. Runs on its node."""
    with suppress(OSError):
        if b"ray::" in Path(f"/proc/{pid}/cmdline").read_bytes():  # not another process with the same pid
            os.kill(pid, signal.SIGKILL)


@dataclass
class _Asked:
    """An actor's last call."""

    ref: Any
    rounds: int = 0  # renewals for which neither it nor earlier calls were answered


class Renewals:
    """Tells measuring actors that this driver is alive, and keeps them alive.

    Ray ends an actor when its creator drops its handle: the next study of this process would find it dying. An actor
    that stops answering, because it hangs or was suspended, is killed, and Ray restarts it.
    """

    def __init__(self, ray: Any, seconds: float = RENEW_SECONDS) -> None:
        self._ray, self._seconds = ray, seconds
        self._actors: set[Any] = set()
        # Process and node of each actor when it last answered, or when Ray was last queried; others may still be
        # waiting for their node.
        self._renewed: dict[Any, tuple[int, str] | None] = {}
        self._asked: dict[Any, _Asked] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="deepgen-renewals", daemon=True)
        self._thread.start()

    def add(self, actor: Any) -> None:
        self._actors.add(actor)

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._actors.clear()
        self._renewed.clear()
        self._asked.clear()

    def _follow(self) -> None:
        while not self._over.wait(self._seconds):
            for actor in list(self._actors):
                # A caller that waits for a measurement learns of a lost connection.
                with suppress(Exception):
                    self._renew(actor)

    def _renew(self, actor: Any) -> None:
        asked = self._asked.get(actor)
        ended = asked is None or bool(self._ray.wait([asked.ref], timeout=0)[0])
        silent = 0
        if asked is not None and not (ended and self._answered(actor, asked.ref)):
            silent = asked.rounds = asked.rounds + 1
            if silent % HANGS_ROUNDS == 0:
                self._end_if_it_hangs(actor)
        if ended and actor in self._actors:
            self._asked[actor] = _Asked(actor.renew.options(concurrency_group=CONTROL).remote(), silent)

    def _end_if_it_hangs(self, actor: Any) -> None:
        """Kill its process if it is the same as when the silence began; a newer one has time to answer first."""
        process = self._process(actor)
        if process is not None and process == self._renewed.get(actor):
            self._kill(*process)
        self._renewed[actor] = process

    def _process(self, actor: Any) -> tuple[int, str] | None:
        """The process that Ray has given the actor, and its node. It may not have answered anything yet."""
        state = self._ray._private.state.actors(actor._actor_id.hex())
        # Until the actor has a new process, Ray still reports the one that ended, but without a port.
        return (state["Pid"], state["Address"]["NodeID"]) if state and state["Address"]["Port"] else None

    def _kill(self, pid: int, node: str) -> None:
        """Kill its process; Ray starts another. Ray's own method asks the process first, which may be suspended."""
        host = next((n["NodeManagerHostname"] for n in self._ray.nodes() if n["NodeID"] == node), None)
        if host == socket.gethostname():
            _kill(pid)
            return
        there = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        self._ray.remote(_kill).options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(pid)

    def _answered(self, actor: Any, ref: Any) -> bool:
        """Whether the actor itself has answered, or is known to have ended."""
        try:
            self._renewed[actor] = self._ray.get(ref)
        except self._ray.exceptions.ActorDiedError:
            self._forget(actor)
        except self._ray.exceptions.RayError:
            # It is being restarted, or only its connection was lost, for example while suspended: then each call may
            # fail at once.
            return False
        return True

    def _forget(self, actor: Any) -> None:
        self._actors.discard(actor)
        self._renewed.pop(actor, None)
        self._asked.pop(actor, None)


_LOOK_SECONDS = 0.02


@contextmanager
def timing(folder: Path | None = None) -> Iterator[None]:
    """While this context is held, no other process on the host times kernels, and none compiles."""
    place = folder or _folder()
    with _opened(place / "wanted") as wanted, _opened(place / "running") as running:
        fcntl.flock(wanted, fcntl.LOCK_EX)
        fcntl.flock(running, fcntl.LOCK_EX)
        yield


@contextmanager
def building(group: Group, folder: Path | None = None) -> Iterator[None]:
    """While this context is held, the group's compilers pause whenever a kernel is timed on this host."""
    place = folder or _folder()
    over = threading.Event()
    with _opened(place / "wanted") as wanted, _opened(place / "running") as running:
        _step_in(wanted, running)
        watcher = threading.Thread(target=_watch, args=(group, wanted, running, over), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()


def _watch(group: Group, wanted: int, running: int, over: threading.Event) -> None:
    while not over.wait(_LOOK_SECONDS):
        try:
            fcntl.flock(wanted, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(wanted, fcntl.LOCK_UN)
        except BlockingIOError:
            group.pause()
            fcntl.flock(running, fcntl.LOCK_UN)
            _step_in(wanted, running)
            group.resume()


def _step_in(wanted: int, running: int) -> None:
    """Wait until no process measures. `wanted` is locked first: its holder waits for `running`."""
    fcntl.flock(wanted, fcntl.LOCK_SH)
    fcntl.flock(running, fcntl.LOCK_SH)
    fcntl.flock(wanted, fcntl.LOCK_UN)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)  # which also unlocks it


def _folder() -> Path:
    """One folder per user of the host. In a world-writable folder, it must really be ours."""
    folder = Path(tempfile.gettempdir()) / f"deepgen-turns-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise DeepgenError(f"{folder} belongs to another user; remove it")
    return folder


def kept(path: Path, content: bytes) -> Path:
    """Write the file atomically, so that a file truncated by a full disk is never used."""
    if not path.exists():
        part = path.with_name(f"{path.name}.part")
        part.write_bytes(content)
        part.replace(path)
    return path


def refusal(error: OSError) -> str:
    """An error of this host's system as a sentence: an exception would reach the user with Ray's traceback."""
    words = (platform.node(), str(error.filename or ""), error.strerror or str(error))
    return ": ".join(filter(None, words)) + "; finished trials are kept: fix this and run the same command again"
