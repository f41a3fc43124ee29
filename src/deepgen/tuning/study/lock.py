"""A lock file that names its holder: one process at a time, released when that process ends in any way."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import IO

_GLANCES, _GLANCE_SECONDS = 10, 0.02
_DIGITS = 20  # of a process id, at most


def holder(path: Path) -> int | None:
    """The id of the process that holds the lock, if any; 0 if it has not written its id."""
    if not os.path.isfile(path):  # noqa: PTH113  a pipe in somebody's folder would be waited for
        return None
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        for _ in range(_GLANCES):
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                if (text := os.pread(file, _DIGITS, 0).strip()).isdigit():
                    return int(text)
                time.sleep(_GLANCE_SECONDS)  # it has the lock and writes its id next
            else:
                return None
    except OSError:
        return None
    finally:
        os.close(file)
    return 0


def take(path: Path) -> IO[str] | None:
    """The lock, for as long as the file is open; None when another process holds it."""
    # Append mode: opening must not erase the holder's id before the lock is ours.
    file = path.open("a+")
    for _ in range(_GLANCES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_GLANCE_SECONDS)  # `holder` takes it for an instant
        else:
            file.seek(0)
            file.truncate()
            file.write(str(os.getpid()))
            file.flush()
            return file
    file.close()
    return None
