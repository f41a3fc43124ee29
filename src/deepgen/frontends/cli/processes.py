"""End a process and everything that it started, and make sure of it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

_GLANCE = 0.05
_STOPPED = ("T", "t")
_ENDED = ("Z", "X")


@dataclass(frozen=True)
class Process:
    """A process told from a later one with the same number by the moment it started."""

    pid: int
    started: str
    parent: int
    state: str
    threads: int = 1

    @property
    def running(self) -> bool:
        """Whether it still runs; one that only waits to be reaped does not."""
        now = self._now()
        # The first thread of a killed process is a zombie while others, still ending, hold its files and locks.
        return now is not None and (now.state not in _ENDED or now.threads > 1)

    @property
    def still(self) -> bool:
        """Whether it can start nothing more: stopped, or ended."""
        now = self._now()
        return now is None or now.state in (*_STOPPED, *_ENDED)

    def _now(self) -> Process | None:
        now = look(self.pid)
        return now if now is not None and now.started == self.started else None

    def signal(self, signum: signal.Signals) -> None:
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)


@dataclass(frozen=True)
class End:
    """How a family of processes ended."""

    by_itself: bool
    killed: int
    left: int  # that even SIGKILL did not end


def end(pid: int, grace: float) -> End:
    """Ask a process to end; after the grace, kill it; in any case leave nothing of what it had started."""
    first = look(pid)
    if first is None:
        return End(True, 0, 0)
    family = {first.pid: first, **descendants(pid)}
    first.signal(signal.SIGTERM)
    by_itself = _wait([first], grace)
    if by_itself:
        # Helpers that notice the end of their parent need a moment to end themselves.
        _wait(family.values(), 2.0)
    else:
        family |= freeze(first)
    left = [member for member in family.values() if member.running]
    for member in left:
        member.signal(signal.SIGKILL)
    _wait(left, 20.0)  # memory is given back and files are closed first, on a busy machine not at once
    return End(by_itself, len(left), sum(member.running for member in left))


def freeze(first: Process) -> dict[int, Process]:
    """Stop a process and its descendants where they are, so that none can start another while we look."""
    frozen: dict[int, Process] = {}
    while fresh := {p: m for p, m in {first.pid: first, **descendants(first.pid)}.items() if p not in frozen}:
        for member in fresh.values():
            member.signal(signal.SIGSTOP)
        frozen.update(fresh)
        # The signal is only on its way: a fork that had begun ends before it, and its child is seen only then.
        _until(lambda: all(member.still for member in frozen.values()), 1.0)
    return frozen


def descendants(pid: int) -> dict[int, Process]:
    """Children, and theirs, whatever session or process group they made for themselves."""
    everyone = [look(int(entry.name)) for entry in Path("/proc").glob("[0-9]*")]
    children: dict[int, list[Process]] = {}
    for process in filter(None, everyone):
        children.setdefault(process.parent, []).append(process)
    found: dict[int, Process] = {}
    wave = children.get(pid, [])
    while wave:
        found |= {process.pid: process for process in wave}
        wave = [child for parent in wave for child in children.get(parent.pid, []) if child.pid not in found]
    return found


def look(pid: int) -> Process | None:
    """A process as it is now."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name stands in parentheses and may hold anything, also parentheses.
    fields = text.rpartition(")")[2].split()
    return Process(pid, started=fields[19], parent=int(fields[1]), state=fields[0], threads=int(fields[17]))


def _wait(processes: Collection[Process], seconds: float) -> bool:
    """Whether all ended in time."""
    return _until(lambda: not any(process.running for process in processes), seconds)


def _until(done: Callable[[], bool], seconds: float) -> bool:
    """Whether it was done in time."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(_GLANCE)
    return True
