"""Progress of a tuning run: a live view on a terminal or in a notebook, occasional lines elsewhere."""

from __future__ import annotations

import re
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from deepgen.report.view import WIDTH, console, cut, note
from deepgen.tuning.progress import Progress, phases_text
from deepgen.tuning.request import Request
from deepgen.tuning.study.text import rate_text
from deepgen.vocabulary.errors import DeepgenError

Watch = Callable[[Progress], None]
LINE_EVERY = 5.0  # seconds, if there is no terminal


@contextmanager
def watching(title: str, *, quiet: bool) -> Iterator[Watch]:
    """A callback for the tuner. The drawing code is imported only if something is drawn, which is rare in scripts."""
    if quiet:
        yield lambda progress: None
    elif in_notebook():
        from deepgen.report.view.block import in_cell, render

        with in_cell(lambda progress: render(title, progress)) as show:
            yield show
    elif sys.stderr.isatty():
        from rich.live import Live

        from deepgen.report.view.block import render

        with Live(console=console(stderr=True), transient=True, refresh_per_second=4) as live:
            yield lambda progress: live.update(render(title, progress))
    else:
        yield _Lines(title)


def title_of(request: Request) -> str:
    """A one-line description of a run."""
    more = f" and {len(request.also)} more" if request.also else ""
    return f"{request.operator.describe()}{more} on {request.target.shown}"


def in_notebook() -> bool:
    return "IPython" in sys.modules and console().is_jupyter


class _Lines:
    """One line every few seconds, and one for each new phase or note."""

    def __init__(self, title: str) -> None:
        self._title: str | None = title  # printed with the first line: a run that cannot start prints none
        self._shown = ("", "")
        self._next = 0.0

    def __call__(self, progress: Progress) -> None:
        if self._title is not None:
            note(self._title)
            self._title = None
        now = time.monotonic()
        # A note that differs only in numbers, or in what follows a colon, is not new.
        news = progress.phase, re.sub(r"\d+", "", (progress.note or "").partition(":")[0])
        if now >= self._next or self._shown != news:
            self._next, self._shown = now + LINE_EVERY, news
            note(line(progress))
            if progress.phase == "done" and progress.phases:
                spent = f"time: {progress.elapsed:.1f} s: {phases_text(progress.phases)}"
                note(textwrap.fill(spent, WIDTH, subsequent_indent="      "))


def line(progress: Progress) -> str:
    """The state of a run in one line; while there is a note, it takes precedence."""
    over = progress.phase == "done"
    left = f"{clock(progress.time_left or 0.0)} left" if (progress.time_left or 0.0) >= 0.5 and not over else ""
    if progress.note and not over:
        now = f"{progress.phase}, {left}" if left and progress.phase == "finals" else progress.phase
        return cut(f"{now}: {progress.note}")
    parts = [f"{progress.phase}: {progress.done}/{max(progress.done, progress.budget)} trials"]
    if failed := _failed(progress):
        parts.append(f"{failed} failed")
    if progress.best_gflops is not None:
        parts.append(f"best trial {rate_text(speed(progress))}")
    if left:
        parts.append(left)
    return cut(", ".join(parts))


def clock(seconds: float) -> str:
    whole = max(0, round(seconds))
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def speed(progress: Progress) -> dict[str, Any]:
    """The speed of the best so far, with the keys of a study's summary."""
    return {**vars(progress), "gflops": progress.best_gflops, "gbytes_per_second": progress.best_gbytes_per_second}


def _failed(progress: Progress) -> int:
    fine = ("correct", "agrees", "not_run")
    return sum(n for verdict, n in progress.verdicts.items() if verdict.split()[0] not in fine)


class Stopped(DeepgenError):
    """The user stopped the run; the message says how to continue."""

    def __init__(self, sentence: str, signum: int) -> None:
        self.exit_code = 128 + signum
        super().__init__(sentence)


@dataclass
class Stop:
    """Set when a signal requests a stop."""

    event: threading.Event = field(default_factory=threading.Event)
    signum: int = 0


@contextmanager
def stop_on_signals(
    signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM), event: threading.Event | None = None
) -> Iterator[Stop]:
    """Inside this block, the first signal only sets the event: the given one, or a new one."""
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
    """Like `stop_on_signals`, for a script. A custom handler is left in place, and threads cannot have one."""
    free = threading.current_thread() is threading.main_thread()
    if free and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with stop_on_signals((signal.SIGINT,), event) as stop:
            yield stop
    else:
        yield Stop(event or threading.Event())
