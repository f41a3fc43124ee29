"""Run a command in the background, so that it survives the terminal."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from deepgen.frontends.cli.output import print_json, shown
from deepgen.tuning import Study
from deepgen.tuning.study.journal import holder
from deepgen.vocabulary.errors import DeepgenError

LOG = "log.txt"
# `python -m` and `-c` look for modules in the current folder first, which the installed command does not: a file there
# named like a package must not be imported.
PROGRAM = "import sys; sys.path = [p for p in sys.path if p]; from deepgen.frontends.cli.main import run; run()"
_PATIENCE = 30.0  # seconds until the background process must have taken the study


def start(argv: Sequence[str], folders: Sequence[Path], *, as_json: bool) -> None:
    """Start the same command in a session of its own, writing to the first study's log, and say how to follow it."""
    folder = folders[0]
    if (pid := holder(folder)) is not None:
        raise DeepgenError(
            f"{shown(folder)} is already running as process {pid}; stop it with: deepgen stop {shown(folder)}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / LOG
    with log.open("ab") as sink:
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
    """The same command line without what made it detach; its log is for people."""
    return [word for word in argv if word not in ("--detach", "--json") and not re.fullmatch(r"O=\d+", word)]


def _wait_until_running(child: subprocess.Popen[bytes], folders: Sequence[Path], log: Path) -> None:
    """A command that fails at once must not look as if it ran."""
    deadline = time.monotonic() + _PATIENCE
    while child.poll() is None and time.monotonic() < deadline:
        # Earlier studies may be complete already, so that a later one is the first to run.
        if any(_running(folder, child.pid) for folder in folders):
            return
        time.sleep(0.05)
    if child.returncode:
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        raise DeepgenError(
            f"the background process ended with code {child.returncode}: {' '.join(last)} (log: {shown(log)})"
        )


def _running(folder: Path, pid: int) -> bool:
    """Whether the process holds the study, and the study can be read."""
    if holder(folder) != pid:
        return False
    try:
        Study.open(folder)
    except DeepgenError:
        return False
    return True
