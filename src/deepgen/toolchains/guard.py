"""Kills the compilers of a process that died without doing so itself. Run as a program, by group.py.

No handler runs in a process that gets SIGKILL, so another one must watch. Each compiler and all that it starts carry
a mark in their environment; when this program's input ends without a goodbye message, or the process it works for is
gone, it kills every process with that mark. Nothing needs to be registered, so none can be missed: what is about to
become a compiler and has no mark yet holds a pipe open, and this program stays until nobody holds it.
It imports little and is started without site-packages, because it lives as long as the builds do.
"""

import os
import select
import signal
import sys
import time

FAREWELL = b"."
_GLANCE = 0.05  # seconds between two looks for marked processes
_CALM = 40  # looks without a find after which even a pipe that stays open, held by who knows whom, keeps nobody
_LOOKS = 400


def main(builder: int, mark: bytes, compilers: int) -> None:
    """`compilers`: the pipe that each of them holds open at its other end."""
    # A Ray worker that is told to exit kills its children, so this must not be one. Grandchildren stay.
    if os.fork():
        os._exit(0)
    born = _born(builder)
    while born and _born(builder) == born:
        # A forked sibling may hold the pipe's other end open: so the builder itself is looked at too, once a second.
        if _readable(0, 1.0):
            if os.read(0, 1) == FAREWELL:
                return
            break
    calm = 0
    for _ in range(_LOOKS):
        calm = 0 if kill_marked(mark) else calm + 1
        if calm and (_readable(compilers, 0.0) or calm == _CALM):
            return
        time.sleep(_GLANCE)


def kill_marked(mark: bytes) -> int:
    """Kill the processes that carry the mark, and tell how many there were."""
    from pathlib import Path

    killed = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)
                killed += 1
        except OSError:  # gone, or another user's
            continue
    return killed


def _born(pid: int) -> bytes:
    """When a process started, by which it is told from a later one of its number; empty once it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib takes long to import
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return b""
    return b"" if fields[0] in (b"Z", b"X") else fields[19]


def _readable(fd: int, seconds: float) -> bool:
    """Whether there is something to read within that time, be it the end of the pipe."""
    return bool(select.select([fd], [], [], seconds)[0])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2].encode(), int(sys.argv[3]))
