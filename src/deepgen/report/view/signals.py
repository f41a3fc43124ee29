"""Ctrl-C and SIGTERM end a run cleanly; a second Ctrl-C ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from deepgen.report.view.text import note
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
def stop_on_signals(
    signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM), event: threading.Event | None = None
) -> Iterator[Stop]:
    """While this is held, the first signal only sets the event: one of its own, or the one that is given."""
    stop = Stop(event or threading.Event())

    def hear(signum: int, frame: FrameType | None) -> None:
        if stop.signum and signum == signal.SIGINT:
            raise KeyboardInterrupt
        if not stop.signum:
            stop.signum = signum
            stop.event.set()
            note("stopping cleanly; press Ctrl-C again to stop at once" if signum == signal.SIGINT else "stopping")

    before = {s: signal.signal(s, hear) for s in signals}
    try:
        yield stop
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@contextmanager
def stop_on_ctrl_c(event: threading.Event | None) -> Iterator[Stop]:
    """The same for a script. A handler of its own is left alone, and threads cannot have one."""
    free = threading.current_thread() is threading.main_thread()
    if free and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with stop_on_signals((signal.SIGINT,), event) as stop:
            yield stop
    else:
        yield Stop(event or threading.Event())
