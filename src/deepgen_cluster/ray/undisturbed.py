"""Compilers on a host are paused while a kernel is timed there, whichever processes they belong to.

Two files with locks of the operating system, so that a process that dies leaves nothing behind. A process that measures
locks `wanted` and then waits for `running`. One that builds holds a shared lock on `running`, and gives it up while
`wanted` is locked.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deepgen.toolchains import Group
from deepgen.vocabulary import DeepgenError

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
    """Wait until nobody measures. `wanted` first: its holder waits for `running`."""
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
    """One for each user of the host. In a folder that all may write to, it must really be ours."""
    folder = Path(tempfile.gettempdir()) / f"deepgen-turns-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise DeepgenError(f"{folder} belongs to another user; remove it")
    return folder
