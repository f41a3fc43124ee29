"""Ctrl-C and SIGTERM end a run cleanly; a second Ctrl-C ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from deepgen.cli.output import note
from deepgen.vocabulary.errors import DeepgenError


class Stopped(DeepgenError):
    """The user ended the run; the message says how to go on."""

    def __init__(self, sentence: str, signum: int) -> None:
        self.exit_code = 128 + signum
        super().__init__(sentence)


@dataclass
class Stop:
    """Set when a signal asked for the end."""

    event: threading.Event = field(default_factory=threading.Event)
    signum: int = 0


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """While this is held, the first signal only sets `event`."""
    stop = Stop()

    def hear(signum: int, frame: FrameType | None) -> None:
        if stop.event.is_set() and signum == signal.SIGINT:
            raise KeyboardInterrupt
        if not stop.event.is_set():
            stop.signum = signum
            stop.event.set()
            note("stopping; Ctrl-C again to stop at once" if signum == signal.SIGINT else "stopping")

    before = {s: signal.signal(s, hear) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
