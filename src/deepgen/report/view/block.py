"""The state of a run as a block of a few lines, for terminals and notebooks, with a sparkline of the best so far.

In a notebook it is an updatable display rather than a widget, so it needs no extension, and a saved notebook keeps its
last state.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from deepgen.report.view import WIDTH, cut, printable
from deepgen.report.view.live import clock, speed
from deepgen.tuning.progress import SEARCH, Progress
from deepgen.tuning.study.text import bound_text, rate_text, seconds_text

_BLOCKS, _ASCII = "▁▂▃▄▅▆▇█", "_.-~=*#@"
_WIDEST = 48
EVERY = 0.25  # seconds between updates
_BLOCK = '<pre style="white-space:pre;line-height:normal;font-family:monospace">{code}</pre>'


def render(title: str, progress: Progress) -> RenderableType:
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
        Text(f"{progress.done}/{max(progress.done, progress.budget)} trials{left}"),
    )
    counts = [f"built {progress.built}", *(f"{name} {n}" for name, n in progress.verdicts.items())]
    if progress.resumed:
        counts.append(f"from an earlier run {progress.resumed}")
    # Failure messages come from compilers and may be very long; all other lines matter and wrap on a narrow terminal.
    lines: list[RenderableType] = [head, bar, Text(", ".join(counts))]
    # The time of a single trial, and the luckiest of many: the finals time the best again.
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
    """What is being built and run now, and where the time of this run went: by phase, once there are several."""
    open_trials = max(0, progress.asked - progress.done)
    building = min(open_trials, progress.builds_running)
    parts = [f"building {building}"] if building else []
    if open_trials > building:
        parts.append(f"queued or running {open_trials - building}")
    total = sum(progress.spent.values())
    shares = [f"{part} {seconds / total:.0%}" for part, seconds in progress.spent.items() if total and seconds > 0]
    spent = ", ".join(shares)
    if len(progress.phases) > 1 and total:
        builds = progress.spent.get("building", 0.0) / max(progress.phases.get(SEARCH, 0.0), 1e-9)
        waited = f" ({min(1.0, builds):.0%} waiting for builds)" if builds > 0.005 else ""
        spent = ", ".join(
            f"{phase} {clock(seconds)}{waited if phase == SEARCH else ''}"
            for phase, seconds in progress.phases.items()
            if seconds >= 0.5 or phase == SEARCH
        )
    return "; ".join(filter(None, (", ".join(parts), f"time: {spent}" if spent else "")))


def _best(progress: Progress) -> str:
    fast = speed(progress)
    return f"{rate_text(fast)} ({seconds_text(progress.best_seconds)}{bound_text(fast)})"


@dataclass(frozen=True)
class Spark:
    """Speed over trials, from the first correct one to `done`; `improved` is the field of Progress."""

    label: str
    improved: Sequence[tuple[int, float]]
    done: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = max(1, min(_WIDEST, options.max_width - len(self.label) - 1))
        signs = _ASCII if options.ascii_only else _BLOCKS
        yield Text(f"{self.label} {spark(self.improved, self.done, room, signs)}", style="green", no_wrap=True)


def spark(improved: Sequence[tuple[int, float]], done: int, room: int, signs: str = _BLOCKS) -> str:
    """At most `room` characters, each showing the best speed at that point of the search."""
    if not improved:
        return ""
    first, last = improved[0][0], max(done, improved[-1][0])
    count = min(room, last - first + 1)
    speeds = []
    for place in range(count):
        moment = last if count == 1 else first + round(place * (last - first) / (count - 1))
        speeds.append(1.0 / next(seconds for after, seconds in reversed(improved) if after <= moment))
    low, high = min(speeds), max(speeds)
    if high == low:
        return signs[-1] * count
    return "".join(signs[round((speed - low) / (high - low) * (len(signs) - 1))] for speed in speeds)


@contextmanager
def in_cell(render: Callable[[Progress], RenderableType]) -> Iterator[Callable[[Progress], None]]:
    """A callback that displays a state of a run; the last one is always shown."""
    from IPython.display import HTML, display

    shown = display(HTML(""), display_id=True)
    latest: list[Progress] = []
    updated = 0.0

    def show(progress: Progress) -> None:
        nonlocal updated
        latest[:] = [progress]
        if time.monotonic() >= updated + EVERY:
            shown.update(HTML(as_html(render(progress))))
            updated = time.monotonic()

    try:
        yield show
    finally:
        for progress in latest:
            shown.update(HTML(as_html(render(progress))))


def as_html(drawn: RenderableType) -> str:
    """The output of a terminal with 80 columns, as HTML."""
    console = Console(
        file=io.StringIO(), record=True, width=WIDTH, highlight=False, force_jupyter=False, color_system="standard"
    )
    console.print(drawn)
    return console.export_html(inline_styles=True, code_format=_BLOCK)
