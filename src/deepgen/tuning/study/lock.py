"""A lock file that names its holder: one process at a time, released when that process ends in any way.

The content of the file is only a hint: anyone who can write it can write any process id, and on another machine or in
another container the same id is another process. So before sending a signal, deepgen checks that the process holds the
lock.
"""

from __future__ import annotations

import fcntl
import os
import signal as signals
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import IO

from deepgen.vocabulary.errors import DeepgenError
from deepgen.vocabulary.folders import appending

_GLANCES, _GLANCE_SECONDS = 10, 0.02
_MOST = 500  # bytes that are read from a lock file
_DIGITS = 10  # of a process id
_START_FIELD = 19  # index in /proc/PID/stat, after the name


@dataclass(frozen=True)
class Holder:
    """The process that a lock names. Fields that older versions did not write are empty."""

    pid: int = 0  # 0 if it has not been written
    started: str = ""  # in clock ticks of that machine's kernel
    namespace: str = ""  # of process ids, as a namespace
    boot: str = ""
    host: str = ""

    @property
    def elsewhere(self) -> str:
        """Where it runs, unless it is on this machine and in this namespace."""
        here = _here()
        if self.boot != here.boot and self.boot:
            return f"on {self.host}, another machine that shares this folder"
        if self.namespace != here.namespace and self.namespace:
            return f"in another container (or namespace of processes) of this machine, {self.host}"
        return ""

    def __str__(self) -> str:
        return " ".join(filter(None, (f"process {self.pid or 'of an unknown number'}", self.elsewhere)))

    def signal(self, number: signals.Signals) -> None:
        """Send a signal to this process, and never to a later one with the same id."""
        with suppress(ProcessLookupError):
            signal_process(self.pid, self.started, number)


def holder(path: Path) -> int | None:
    """The id of the process that holds the lock, if any; 0 if it has not written its id."""
    held = who(path)
    return None if held is None else held.pid


def who(path: Path) -> Holder | None:
    """The process that holds the lock, as described in the file."""
    if not os.path.isfile(path):  # noqa: PTH113  a pipe in somebody's folder would be waited for
        return None
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # a link, too: it may lead to the lock of any other program, which its holder must not pay for
        return None
    try:
        for _ in range(_GLANCES):
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                if (held := _read(os.pread(file, _MOST, 0))) is not None:
                    return held
                time.sleep(_GLANCE_SECONDS)  # it holds the lock and is about to write its id
            else:
                return None
    except OSError:
        return None
    finally:
        os.close(file)
    return Holder()


def proven(path: Path) -> Holder | None:
    """The process that holds the lock, verified before a signal is sent to it; None if there is none.

    Raises DeepgenError if it runs elsewhere, or if the process with that id is another one.
    """
    held = who(path)
    if held is None:
        return None
    if held.elsewhere:
        raise DeepgenError(f"{path.parent} is in use by {held}: stop it there")
    started = start_of(held.pid)
    try:
        ours = bool(held.pid and started) and held.started in ("", started) and _locks(held.pid, path)
    except PermissionError as error:
        raise DeepgenError(f"process {held.pid} belongs to another user; only that user can stop it") from error
    if not ours:
        again = who(path)
        if again is None:
            return None  # it ended in the meantime
        raise DeepgenError(
            f"{path} names process {held.pid}, which does not hold this lock, so no signal was sent: another process "
            f"holds it (`fuser {path.name}` in that folder may find it), perhaps in a container or on another machine"
        )
    return replace(held, started=started)


def take(path: Path) -> IO[str] | None:
    """The lock, held as long as the file is open; None if another process holds it."""
    # Append mode: opening must not erase the holder's id before we hold the lock.
    file = appending(path)
    for _ in range(_GLANCES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_GLANCE_SECONDS)  # `holder` takes the lock for a moment
        else:
            file.seek(0)
            file.truncate()
            here = _here()
            pid = os.getpid()
            file.write(" ".join((str(pid), start_of(pid) or "-", here.namespace or "-", here.boot or "-", here.host)))
            file.write("\n")
            file.flush()
            return file
    file.close()
    return None


def start_of(pid: int) -> str:
    """When a process started, in the kernel's ticks; empty if there is no process with that id."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:  # noqa: PTH123  of every lock
            return stat.read().rpartition(")")[2].split()[_START_FIELD]
    except (OSError, IndexError):
        return ""


def signal_process(pid: int, started: str, number: signals.Signals) -> None:
    """Send a signal to the process with this id and start time. Raises ProcessLookupError if it has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:  # a kernel without pidfd
        if start_of(pid) == started:
            os.kill(pid, number)
        return
    try:
        if start_of(pid) == started:  # the handle refers to this process, even if its id is reused
            signals.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)


def _read(text: bytes) -> Holder | None:
    words = ["" if word == "-" else word for word in text.decode(errors="replace").split()]
    if not words or not words[0].isascii() or not words[0].isdigit() or len(words[0]) > _DIGITS:
        return None
    started, namespace, boot, host = (*words[1:5], "", "", "", "")[:4]
    return Holder(int(words[0]), started, namespace, boot, host if host.isprintable() else "")


@lru_cache(maxsize=1)
def _here() -> Holder:
    """This machine and namespace."""
    namespace = boot = ""
    with suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").readlink())
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return Holder(0, "", namespace, boot, "".join(socket.gethostname().split()) or "-")


def _locks(pid: int, path: Path) -> bool:
    """Whether a process has this file open and holds the exclusive lock on it."""
    wanted = path.stat()
    tells = os.path.exists("/proc/locks")  # noqa: PTH110  else this kernel does not say who holds which lock
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            opened = entry.stat()
            if (opened.st_dev, opened.st_ino) != (wanted.st_dev, wanted.st_ino):
                continue
            facts = Path(f"/proc/{pid}/fdinfo/{entry.name}").read_text().splitlines()
        except FileNotFoundError:  # closed in the meantime
            continue
        if any(line.startswith("lock:") and "FLOCK" in line and "WRITE" in line for line in facts):
            return True
        flags = [int(line.split()[1], 8) for line in facts if line.startswith("flags:")]
        if not tells and any(flag & (os.O_WRONLY | os.O_RDWR) for flag in flags):
            return True
    return False
