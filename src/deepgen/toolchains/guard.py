"""Kills the compilers of a process that died without doing so itself. Run as a program, by group.py.

No handler runs in a process that gets SIGKILL, so another process must watch. Each compiler and everything it starts
carries a mark in its environment. When this program's input ends without a farewell message, or the process it works
for has ended, it kills every process with that mark. No process needs to be registered, so none can be missed: one that
is about to become a compiler and has no mark yet holds a pipe open, and this program stays until no process holds it.

It imports little and is started without site-packages, because it lives as long as the builds do.
"""

import os
import select
import signal
import sys
import time

FAREWELL = b"."
_GLANCE = 0.05  # seconds between searches for marked processes
_CALM = 40  # searches without a find after which it ends even if an unknown process holds the pipe open
_LOOKS = 400


def main(builder: int, mark: bytes, compilers: int) -> None:
    """`compilers`: this end of the pipe that each compiler holds open."""
    # A Ray worker that is told to exit kills its children but not grandchildren, so this must not be a child.
    if os.fork():
        os._exit(0)
    born = _born(builder)
    while born and _born(builder) == born:
        # A forked sibling may hold the pipe's other end open, so the builder itself is checked too, once a second.
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
    """Kill the processes that carry the mark, and return their number."""
    from pathlib import Path

    killed = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)
                killed += 1
        except OSError:  # it has ended, or belongs to another user
            continue
    return killed


def _born(pid: int) -> bytes:
    """When a process started, which distinguishes it from a later one with the same id; empty if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib takes long to import
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return b""
    return b"" if fields[0] in (b"Z", b"X") else fields[19]


def _readable(fd: int, seconds: float) -> bool:
    """Whether the pipe becomes readable in that time, including by its end."""
    return bool(select.select([fd], [], [], seconds)[0])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2].encode(), int(sys.argv[3]))
