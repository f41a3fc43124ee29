"""Programs run one after another within a time: who is left at its end is interrupted, then killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO

GRACE_SECONDS = 5.0


class Clock:
    """How much of the time there was is left."""

    def __init__(self, seconds: float) -> None:
        self._begun, self._ends = time.monotonic(), time.monotonic() + seconds

    def spent(self) -> float:
        return time.monotonic() - self._begun

    def left(self) -> float:
        return self._ends - time.monotonic()


@contextmanager
def started(words: Sequence[str], log: IO[str]) -> Iterator[subprocess.Popen[str]]:
    """A program in Python whose words go to the log. It does not outlive this block, but may clear up before that."""
    log.write(f"\n$ {' '.join(words)}\n")
    log.flush()
    child = subprocess.Popen([sys.executable, *words], stdout=log, stderr=subprocess.STDOUT, text=True)
    try:
        yield child
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGINT)
            try:
                child.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def ended(child: subprocess.Popen[str], seconds: float) -> str:
    """Why it did not end well within these seconds; empty where it did."""
    try:
        code = child.wait(max(seconds, 0.0))
    except subprocess.TimeoutExpired:
        return f"stopped after {seconds:.0f} s"
    return f"ended with {code}" if code else ""
