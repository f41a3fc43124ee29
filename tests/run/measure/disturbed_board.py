"""Studies on a board that is disturbed: the state of the board and the study afterwards.

The board is a real SSH server on a loopback address (`loopback_board.py`). A study that stops says why, and the same
command resumes it: all its trials must be there in the end, with earlier measurements unchanged.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deepgen.tuning import Study
from loopback_board import DROP, KILL, LoopbackBoard

TARGET = "riscv:rv64gcv_zvl128b"
EVENTS = "task-clock,page-faults,record.cpu-clock,no-such-event"
SHAPES = ((6, 5, 7), (16, 16, 16), (9, 20, 12))
_AGED = 2 * 3600  # seconds: longer than a board keeps the files of an abandoned run


@dataclass(frozen=True)
class Fault:
    """A disturbance of a study: what is done to the board after this many seconds, and the words that must be reported;
    none if the study continues by itself.
    """

    name: str
    strike: Callable[[LoopbackBoard], None]
    says: str = ""
    kills_tuner: bool = False


FAULTS = (
    Fault("none", lambda board: None),
    Fault("program killed", lambda board: board.before(KILL, times=2)),
    Fault("connection dropped", lambda board: board.before(DROP, times=2)),
    Fault("connection lost", lambda board: board.before(DROP), "the connection was lost"),
    Fault("disk full", lambda board: board.fill(), "its disk is full"),
    Fault("host key changed", lambda board: board.accept("user"), "host key differs"),
    Fault("tuner killed", lambda board: None, kills_tuner=True),
)


@dataclass
class Watched:
    """The peaks observed on the board."""

    board: LoopbackBoard
    processes: int = 0
    files: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        while not self.over.wait(1.0):
            self.processes = max(self.processes, len(self.board.processes()))
            self.files = max(self.files, len(self.board.files()))


def command(board: LoopbackBoard, number: int, trials: int, out: Path) -> list[str]:
    sizes = (f"{name}={size}" for name, size in zip("MNK", SHAPES[number % len(SHAPES)], strict=True))
    words = ("gemm", *sizes, "--target", TARGET, "--host", board.host, "--trials", str(trials), "--keep-top", "1")
    counted = ("--counters", EVENTS) if number % 2 else ()
    return [sys.executable, "-m", "deepgen", "tune", *words, "--seed", str(number), *counted, "--out", str(out)]


def tuned(argv: list[str], board: LoopbackBoard, fault: Fault | None, after: float) -> tuple[int, str]:
    """How the command ended and what it printed, with a fault this many seconds after its start."""
    env = {**os.environ, "PATH": f"{board.client}{os.pathsep}{os.environ['PATH']}"}
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env)

    def strike() -> None:
        assert fault is not None
        fault.strike(board)
        if fault.kills_tuner:
            process.send_signal(signal.SIGKILL)

    timer = threading.Timer(after, strike)
    if fault is not None:
        timer.start()
    said = process.communicate()[1]
    timer.cancel()
    return process.returncode, " ".join(said.split())


def kept(out: Path) -> dict[int, Any]:
    """The trials of the study in a folder by their numbers; none if it has not started."""
    folder = next(iter(out.glob("*/journal.sqlite")), None)
    return {} if folder is None else {trial.id: trial for trial in Study.open(folder.parent).trials()}


def one(board: LoopbackBoard, number: int, fault: Fault, after: float, trials: int, folder: Path) -> dict[str, Any]:
    """A study with a fault, to its end."""
    out = folder / f"round-{number}"
    argv = command(board, number, trials, out)
    began, watched = time.monotonic(), Watched(board)
    board.perf(there=number % 4 == 1)
    watcher = threading.Thread(target=watched.watch)
    watcher.start()
    code, said = tuned(argv, board, fault, after)
    runs, problems, first = 1, [], kept(out)
    if fault.says and code == 1 and fault.says not in said:
        problems.append(f"not in its words: {said[-300:]}")
    if "Traceback" in said or code not in (0, 1, -signal.SIGKILL):
        problems.append(f"ended with {code}: {said[-300:]}")
    board.calm()
    board.accept()
    stopped = code != 0
    while code != 0 and runs < 4:
        code, said = tuned(argv, board, None, 0.0)
        runs += 1
    watched.over.set()
    watcher.join()
    found = kept(out)
    if code != 0 or len(found) != trials or not all(trial.ok for trial in found.values()):
        problems.append(f"{len(found)} of {trials} trials, exit code {code}: {said[-300:]}")
    if any(found.get(id) != trial for id, trial in first.items()):
        problems.append("trials that were measured before the fault are others after it")
    left = settled(board)
    for session in board.sessions():  # its tuner could not remove it: the next study finds it as if hours later
        then = time.time() - _AGED
        os.utime(session, (then, then))
    return {
        "fault": fault.name,
        "stopped": stopped,
        "runs": runs,
        "trials": len(found),
        "seconds": round(time.monotonic() - began, 1),
        "most_processes": watched.processes,
        "most_files": watched.files,
        "left_processes": left,
        "left_files": len(board.files()),
        "problems": problems,
    }


def settled(board: LoopbackBoard, seconds: float = 30.0) -> list[str]:
    """The processes on the board, after those that are about to end have ended."""
    deadline = time.monotonic() + seconds
    while (left := board.processes()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left
