"""Several groups at once on one screen, and the results at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from deepgen.frontends.cli.output import print_json, shown, table
from deepgen.report.view.live import LINE_EVERY
from deepgen.report.view.text import console, cut, note
from deepgen.tuning.study.text import rate_text, seconds_text
from deepgen_cluster.folder import GroupProgress, RunProgress

Show = Callable[[RunProgress], None]


@contextmanager
def watching(*, quiet: bool) -> Iterator[Show]:
    """Something that shows a run's moments: in place on a terminal, line by line elsewhere."""
    if quiet:
        yield lambda progress: None
    elif sys.stderr.isatty():
        with Live(console=console(stderr=True), transient=True, refresh_per_second=4) as screen:
            yield lambda progress: screen.update(render(progress))
    else:
        yield _Lines()


class _Lines:
    """A line for each group now and then, and one for whatever is new."""

    def __init__(self) -> None:
        self._note = ""
        self._tasks: dict[str, tuple[int, bool]] = {}
        self._next: dict[str, float] = {}

    def __call__(self, progress: RunProgress) -> None:
        if progress.note and progress.note != self._note:
            self._note = progress.note
            note(cut(progress.note))
        for name, group in progress.groups.items():
            moment = (group.task, group.ended)
            if moment != self._tasks.get(name) or (time.monotonic() >= self._next.get(name, 0.0) and not group.ended):
                self._tasks[name] = moment
                self._next[name] = time.monotonic() + LINE_EVERY
                note(line(name, group))


def line(name: str, group: GroupProgress) -> str:
    """Where a group is, in one line."""
    if group.problem:
        return cut(f"{name}: {group.problem}")
    which = f" {group.task}/{group.tasks}" if group.tasks > 1 else ""
    return cut(f"{name}{which}: {group.line}")


def render(progress: RunProgress) -> RenderableType:
    """A block: the run's state, then two lines per group."""
    parts: list[RenderableType] = [Text(cut(f"{progress.state}: {progress.note}"), style="cyan")]
    for name, group in progress.groups.items():
        parts.append(Text(cut(f"{name}  {group.what}"), style="bold"))
        parts.append(Text(cut(f"  {line(name, group)}"), style="red" if group.problem else ""))
    return Group(*parts)


def print_results(progress: RunProgress) -> None:
    rows = []
    for row in progress.results:
        best = row.winner
        speed = rate_text(best) if best else "-"
        rows.append([row.group, str(row.trials), speed, seconds_text(best["seconds"]) if best else "-", row.what])
    if rows:
        table(None, ["group", "trials", "rate", "time", "what"], rows, right=["trials", "rate", "time"])
    for row in progress.results:
        for file in row.files:
            print(shown(file))


def print_results_json(progress: RunProgress) -> None:
    data: dict[str, Any] = dict(progress.to_json())
    print_json({"state": data["state"], "groups": data["groups"], "results": data["results"]})
