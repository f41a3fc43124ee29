"""Kills the compilers of a process that died without doing so itself. Run as a program, by group.py.

No signal handler runs in a process that gets SIGKILL, so somebody else must watch. This program reads `+group` and
`-group` lines; when the pipe ends, or its parent is gone, it kills every process group that is left.
It imports little and is started without site-packages, because it lives as long as the builds do.
"""

import contextlib
import os
import select
import signal
import sys


def main(parent: int) -> None:
    groups: set[int] = set()
    rest = b""
    # A forked sibling may hold the pipe's other end open: so the parent itself is looked at too, once a second.
    while os.getppid() == parent:
        if not select.select([0], [], [], 1.0)[0]:
            continue
        read = os.read(0, 65536)
        if not read:
            break
        *lines, rest = (rest + read).split(b"\n")
        for line in lines:
            (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
