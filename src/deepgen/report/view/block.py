"""A moment of a run as a block of a few lines, for a terminal and for a notebook."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from deepgen.report.view.live import clock, speed
from deepgen.report.view.spark import Spark
from deepgen.report.view.text import cut, printable
from deepgen.tuning.progress import Progress
from deepgen.tuning.study.text import bound_text, rate_text, seconds_text


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


def _best(progress: Progress) -> str:
    fast = speed(progress)
    return f"{rate_text(fast)} ({seconds_text(progress.best_seconds)}{bound_text(fast)})"
