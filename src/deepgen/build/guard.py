"""Kills the compilers of a process that died without doing so itself. Run as a program, by group.py.

No handler runs in a process that gets SIGKILL, so somebody else must watch. Each compiler and all that it starts carry
a mark in their environment; when this program's input ends without a goodbye message, or its parent is gone, it kills
every process with that mark. Nothing needs to be registered, so there is no moment in which one could be missed.
It imports little and is started without site-packages, because it lives as long as the builds do.
"""

import os
import select
import signal
import sys
import time

FAREWELL = b"."


def main(parent: int, mark: bytes) -> None:
    while os.getppid() == parent:
        # A forked sibling may hold the pipe's other end open: so the parent itself is looked at too, once a second.
        if select.select([0], [], [], 1.0)[0]:
            if os.read(0, 1) == FAREWELL:
                return
            break
    calm = 0
    for _ in range(200):
        # What was just being started may carry the mark a moment later: it must be calm for a while.
        calm = 0 if kill_marked(mark) else calm + 1
        if calm == 3:
            return
        time.sleep(0.05)


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


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2].encode())
