"""Processes: start one in the background that survives the terminal, and end one with everything that it started."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from deepgen.frontends.cli.output import print_json, shown
from deepgen.tuning.study.journal import holder, writer
from deepgen.tuning.study.lock import signal_process
from deepgen.vocabulary.errors import DeepgenError
from deepgen.vocabulary.folders import appending

_GLANCE = 0.05
_STOPPED = ("T", "t")
_ENDED = ("Z", "X")


@dataclass(frozen=True)
class Process:
    """A process. The start time distinguishes it from a later one with the same pid."""

    pid: int
    started: str
    parent: int
    state: str
    threads: int = 1

    @property
    def running(self) -> bool:
        """Whether it still runs; a zombie does not."""
        now = self._now()
        # The main thread of a killed process is a zombie while other threads, still exiting, hold its files and locks.
        return now is not None and (now.state not in _ENDED or now.threads > 1)

    @property
    def still(self) -> bool:
        """Whether it can no longer start processes: it is stopped or has ended."""
        now = self._now()
        return now is None or now.state in (*_STOPPED, *_ENDED)

    def _now(self) -> Process | None:
        now = look(self.pid)
        return now if now is not None and now.started == self.started else None

    def signal(self, signum: signal.Signals) -> None:
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                signal_process(self.pid, self.started, signum)


@dataclass(frozen=True)
class TreeEnd:
    """How a process tree ended."""

    by_itself: bool
    killed: int
    left: int  # not even ended by SIGKILL


def end(pid: int, grace: float, started: str | None = None) -> TreeEnd:
    """Ask a process to end, kill it after the grace period, and in any case end everything that it started.

    `started`: the start time of the intended process; another one with the same pid is left alone.
    """
    first = look(pid)
    if first is None or started not in (None, first.started):
        return TreeEnd(True, 0, 0)
    family = {first.pid: first, **descendants(pid)}
    first.signal(signal.SIGTERM)
    by_itself = _wait([first], grace)
    if by_itself:
        # Helpers that notice the end of their parent need a moment to exit.
        _wait(family.values(), 2.0)
    else:
        family |= freeze(first)
    left = [member for member in family.values() if member.running]
    for member in left:
        member.signal(signal.SIGKILL)
    _wait(left, 20.0)  # memory is released and files are closed first, which takes a while on a busy machine
    return TreeEnd(by_itself, len(left), sum(member.running for member in left))


def freeze(first: Process) -> dict[int, Process]:
    """Stop a process and its descendants, so that none can start another while the tree is read."""
    frozen: dict[int, Process] = {}
    while fresh := {p: m for p, m in {first.pid: first, **descendants(first.pid)}.items() if p not in frozen}:
        for member in fresh.values():
            member.signal(signal.SIGSTOP)
        frozen.update(fresh)
        # Delivery of the signal takes a moment: a fork in progress completes first, and its child is visible only then.
        _until(lambda: all(member.still for member in frozen.values()), 1.0)
    return frozen


def descendants(pid: int) -> dict[int, Process]:
    """Children and their descendants, whatever session or process group they created."""
    everyone = [look(int(entry.name)) for entry in Path("/proc").glob("[0-9]*")]
    children: dict[int, list[Process]] = {}
    for process in filter(None, everyone):
        children.setdefault(process.parent, []).append(process)
    family: dict[int, Process] = {}
    wave = children.get(pid, [])
    while wave:
        family |= {process.pid: process for process in wave}
        wave = [child for parent in wave for child in children.get(parent.pid, []) if child.pid not in family]
    return family


def look(pid: int) -> Process | None:
    """The current state of a process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name is in parentheses and may contain anything, including parentheses.
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


LOG = "log.txt"
# `python -m` and `-c` search the current folder first, unlike the installed command: a file there with the name of a
# package must not be imported.
PROGRAM = "import sys; sys.path = [p for p in sys.path if p]; from deepgen.frontends.cli.main import run; run()"
_PATIENCE = 30.0  # seconds until the background process must hold the study


def start(argv: Sequence[str], folders: Sequence[Path], *, as_json: bool) -> None:
    """Start the same command in a new session, writing to the first study's log, and print how to follow it."""
    folder = folders[0]
    if (held := writer(folder)) is not None:
        raise DeepgenError(f"{shown(folder)} is already running as {held}; stop it with: deepgen stop {shown(folder)}")
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / LOG
    with appending(log) as sink:
        child = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *foreground(argv)],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    _wait_until_running(child, folders, log)
    if as_json:
        print_json({"study": str(folder), "pid": child.pid, "log": str(log)})
        return
    print(f"running in the background as process {child.pid}")
    print(f"follow   tail -f {shown(log)}")
    print(f"look     deepgen status {shown(folder)}")
    print(f"stop     deepgen stop {shown(folder)}")


def foreground(argv: Sequence[str]) -> list[str]:
    """The same command line without the options for detaching and JSON; its log is meant for people."""
    return [word for word in argv if word not in ("--detach", "--json") and not re.fullmatch(r"O=\d+", word)]


def _wait_until_running(child: subprocess.Popen[bytes], folders: Sequence[Path], log: Path) -> None:
    """Wait until the study runs: a command that fails at once must not look as if it were running."""
    deadline = time.monotonic() + _PATIENCE
    while child.poll() is None and time.monotonic() < deadline:
        # Earlier studies may already be complete, so a later one may run first.
        if any(_running(folder, child.pid) for folder in folders):
            return
        time.sleep(0.05)
    if child.returncode:
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        raise DeepgenError(
            f"the background process ended with code {child.returncode}: {' '.join(last)} (log: {shown(log)})"
        )


def _running(folder: Path, pid: int) -> bool:
    """Whether the process holds the study, and the study is readable."""
    if holder(folder) != pid:
        return False
    from deepgen.tuning import Study

    try:
        Study.open(folder)
    except DeepgenError:
        return False
    return True
