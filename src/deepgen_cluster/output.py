"""Text output for a cluster: hosts, nodes, groups in progress and results."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from deepgen.extend import (
    LINE_EVERY,
    bytes_text,
    clock,
    console,
    counted,
    cut,
    labelled,
    note,
    print_json,
    print_table,
    rate_text,
    seconds_text,
    shown,
)
from deepgen_cluster.check import Report
from deepgen_cluster.folder import GroupProgress, RunProgress
from deepgen_cluster.model import Host
from deepgen_cluster.nodes import Node


def print_reports(reports: Sequence[Report]) -> None:
    """One line per host, then what each has, then what is wrong."""
    rows = []
    for report in reports:
        facts = report.facts or {}
        packages = facts.get("packages", {})
        free = bytes_text(facts["free_bytes"]) if facts else "-"
        verdict = "ok" if report.ok else counted(len(report.problems), "problem")
        rows.append(
            [_name(report.host), facts.get("python", "-"), packages.get("ray") or "-", free, verdict, report.roles]
        )
    print_table(None, ["host", "python", "ray", "free", "state", "role"], rows)
    for report in reports:
        labelled(str(report.host), "", indent=0)
        labelled("  folder", report.host.folder, indent=12)
        if report.facts and report.facts["doctor"]:
            _print_doctor(report.facts["doctor"])
        for problem in report.problems:
            labelled("  wrong", problem, indent=12)


def print_nodes(nodes: Sequence[Node]) -> None:
    rows = []
    for node in nodes:
        state = "up" if node.up else "unreachable" if node.problem and not node.since else "down"
        age = clock(time.time() - node.since) if node.up and node.since else "-"
        rows.append(
            [
                _name(node.host) if node.host else "head, here",
                state,
                age,
                str(node.processes),
                node.problem or node.roles,
            ]
        )
    print_table(None, ["host", "node", "for", "processes", "role"], rows, right=["for", "processes"])


def node_json(node: Node) -> dict[str, Any]:
    host = str(node.host) if node.host else None
    return {
        "host": host,
        "roles": node.roles,
        "up": node.up,
        "processes": node.processes,
        "since": node.since,
        "problem": node.problem,
    }


def _name(host: Host) -> str:
    return str(host) if len(str(host)) <= 24 else host.address[:24]


def _print_doctor(doctor: Mapping[str, Any]) -> None:
    tools = [f"{tool['name']} {tool['version']}" for tool in doctor["toolchains"] if tool["ok"]]
    devices = [_device(device) for device in doctor["devices"]]
    labelled("  deepgen", f"{doctor['deepgen']}, copied there: the same as here", indent=12)
    labelled("  tools", ", ".join(tools) or "none", indent=12)
    labelled("  devices", ", ".join(devices), indent=12)
    labelled("  clocks", ", ".join(f"{c['device']} {c['state']}" for c in doctor["clocks"]), indent=12)


def _device(device: Mapping[str, Any]) -> str:
    return f"{device['index']}: {device['name']}" if "index" in device else str(device["name"])


Show = Callable[[RunProgress], None]


@contextmanager
def watching(*, quiet: bool) -> Iterator[Show]:
    """A function that shows the progress of a run: in place on a terminal, line by line elsewhere."""
    if quiet:
        yield lambda progress: None
    elif sys.stderr.isatty():
        with Live(console=console(stderr=True), transient=True, refresh_per_second=4) as screen:
            yield lambda progress: screen.update(render(progress))
    else:
        yield _Lines()


class _Lines:
    """A line for each group at intervals, and one for each change."""

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
    """The state of a group in one line."""
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
        print_table(None, ["group", "trials", "rate", "time", "what"], rows, right=["trials", "rate", "time"])
    for row in progress.results:
        for file in row.files:
            print(shown(file))


def print_results_json(progress: RunProgress) -> None:
    data: dict[str, Any] = dict(progress.to_json())
    print_json({"state": data["state"], "groups": data["groups"], "results": data["results"]})
