"""What a tuning run shows while it runs: a live view on a terminal or in a notebook, a line now and then elsewhere."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from deepgen.tuning.progress import Progress
from deepgen.tuning.request import Request
from deepgen.tuning.text import bound_text, rate_text, seconds_text
from deepgen.view import notebook
from deepgen.view.spark import Spark
from deepgen.view.text import console, cut, note, printable

Watch = Callable[[Progress], None]
LINE_EVERY = 5.0  # seconds, where there is no terminal


@contextmanager
def watching(title: str, *, quiet: bool) -> Iterator[Watch]:
    """A callback for the tuner."""
    if quiet:
        yield lambda progress: None
    elif in_notebook():
        with notebook.block(lambda progress: render(title, progress)) as show:
            yield show
    elif sys.stderr.isatty():
        with Live(console=console(stderr=True), transient=True, refresh_per_second=4) as live:
            yield lambda progress: live.update(render(title, progress))
    else:
        yield _Lines(title)


def title_of(request: Request) -> str:
    """What a run is about, in one line."""
    more = f" and {len(request.also)} more" if request.also else ""
    return f"{request.operator.describe()}{more} on {request.target.shown}"


def in_notebook() -> bool:
    return console().is_jupyter


class _Lines:
    """One line every few seconds, and one for each new phase or note."""

    def __init__(self, title: str) -> None:
        self._title: str | None = title  # said with the first line: a run that cannot start has nothing to show
        self._told = ("", "")
        self._next = 0.0

    def __call__(self, progress: Progress) -> None:
        if self._title is not None:
            note(self._title)
            self._title = None
        now = time.monotonic()
        news = progress.phase, re.sub(r"\d+", "", progress.note or "")  # another number in a note is none
        if now >= self._next or self._told != news:
            self._next, self._told = now + LINE_EVERY, news
            note(line(progress))


def line(progress: Progress) -> str:
    """A moment of a run in one line; a note is what matters while it stands."""
    if progress.note and progress.phase != "done":
        return cut(f"{progress.phase}: {progress.note}")
    parts = [f"{progress.phase}: {progress.done}/{progress.budget} trials"]
    if failed := _failed(progress):
        parts.append(f"{failed} failed")
    if progress.best_gflops is not None:
        parts.append(f"best trial {rate_text(_speed(progress))}")
    if progress.phase == "searching" and progress.time_left is not None:
        parts.append(f"{clock(progress.time_left)} left")
    return cut(", ".join(parts))


def render(title: str, progress: Progress) -> RenderableType:
    """A moment of a run as a block of a few lines."""
    state = f"{progress.phase} {clock(progress.elapsed)}"
    head = Table.grid(expand=True, padding=(0, 1))
    head.add_column(overflow="ellipsis", no_wrap=True, ratio=1)
    head.add_column(justify="right", no_wrap=True)
    head.add_row(Text(printable(title), style="bold"), Text(state, style="cyan"))
    over = progress.phase == "done"
    left = f", {clock(progress.time_left)} left" if progress.time_left is not None and not over else ""
    bar = Table.grid(expand=True, padding=(0, 1))
    bar.add_column(ratio=1)
    bar.add_column(justify="right", no_wrap=True)
    bar.add_row(
        ProgressBar(total=max(1, progress.budget), completed=progress.done),
        Text(f"{progress.done}/{progress.budget} trials{left}"),
    )
    counts = [f"built {progress.built}", *(f"{name} {n}" for name, n in progress.verdicts.items())]
    if progress.resumed:
        counts.append(f"from an earlier run {progress.resumed}")
    # Failures come from compilers, which may say pages; all the rest matters, and wraps on a narrow terminal.
    lines: list[RenderableType] = [head, bar, Text(", ".join(counts))]
    # One trial's time, and the luckiest of many: finals time the best again.
    lines.append(Text(f"best trial {_best(progress) if progress.best_gflops is not None else '-'}", style="green"))
    if progress.improved:
        lines.append(Spark("so far", progress.improved, progress.done))
    if now := _under_way(progress):
        lines.append(Text(now))
    if progress.last_failure:
        failure = cut(f"last failure: {progress.last_failure}")
        lines.append(Text(failure, style="yellow", no_wrap=True, overflow="ellipsis"))
    if progress.note and not over:
        lines.append(Text(cut(progress.note), style="dim"))
    return Group(*lines)


def _under_way(progress: Progress) -> str:
    """What is built and run just now, and where the time of this run has gone."""
    open_trials = max(0, progress.asked - progress.done)
    building = min(open_trials, progress.builds_running)
    parts = [f"building {building}"] if building else []
    if open_trials > building:
        parts.append(f"queued or running {open_trials - building}")
    total = sum(progress.spent.values())
    shares = [f"{part} {seconds / total:.0%}" for part, seconds in progress.spent.items() if total and seconds > 0]
    return "; ".join(filter(None, (", ".join(parts), f"time: {', '.join(shares)}" if shares else "")))


def clock(seconds: float) -> str:
    whole = max(0, round(seconds))
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def _best(progress: Progress) -> str:
    fast = _speed(progress)
    return f"{rate_text(fast)} ({seconds_text(progress.best_seconds)}{bound_text(fast)})"


def _speed(progress: Progress) -> dict[str, Any]:
    """Of the best so far, named as in a study's summary."""
    return {**vars(progress), "gflops": progress.best_gflops, "gbytes_per_second": progress.best_gbytes_per_second}


def _failed(progress: Progress) -> int:
    fine = ("correct", "agrees", "not_run")
    return sum(n for verdict, n in progress.verdicts.items() if verdict.split()[0] not in fine)
