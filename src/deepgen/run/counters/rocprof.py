"""AMD's profilers, rocprofv3 and the older rocprof: their command lines, and what they write.

Written from their documentation. It has never run on hardware.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from deepgen.run.counters.base import Counted, Refused, number

_NAME = "deepgen"


def command(program: str, events: Sequence[str], folder: Path, *, cold: bool) -> list[str]:
    """What comes before the command that is profiled."""
    if Path(program).name == "rocprofv3":
        return [program, "--pmc", *events, "--output-format", "csv", "-d", str(folder), "-o", _NAME, "--"]
    wanted = folder / f"{_NAME}.txt"
    wanted.write_text(f"pmc : {' '.join(events)}\n")
    return [program, "-i", str(wanted), "-o", str(folder / f"{_NAME}.csv")]


def collected(folder: Path, events: Sequence[str], entries: Sequence[str]) -> Counted:
    """What a finished run left: of all launches that it recorded, the last of the plan's steps. Raises Refused."""
    for path in sorted(folder.rglob(f"{_NAME}*.csv")):
        launches = [row for name, row in parse(path.read_text(errors="replace")) if name in entries]
        last = launches[-len(entries) :]
        if len(last) == len(entries):
            return _added(last, events)
    raise Refused("the profiler wrote no counters of this kernel; more may be asked for than fit into one run")


def parse(text: str) -> list[tuple[str, dict[str, float]]]:
    """Each launch in order: its kernel and its counters. rocprofv3 has a row a counter, rocprof a row a launch."""
    rows = list(csv.DictReader(text.splitlines()))
    if rows and "Counter_Name" in rows[0]:
        launches: dict[str, tuple[str, dict[str, float]]] = {}
        for row in rows:
            _, counters = launches.setdefault(row["Dispatch_Id"], (_plain(row["Kernel_Name"]), {}))
            counters.update(_numbers([(row["Counter_Name"], row["Counter_Value"])]))
        return [launches[key] for key in sorted(launches, key=int)]
    return [(_plain(row.get("KernelName", "")), _numbers(row.items())) for row in rows]


def _numbers(items: Iterable[tuple[str, str]]) -> dict[str, float]:
    return {name: value for name, text in items if text and (value := number(text)) is not None}


def _added(launches: Sequence[Mapping[str, float]], events: Sequence[str]) -> Counted:
    values = {event: sum(row[event] for row in launches) for event in events if all(event in row for row in launches)}
    return Counted(values, {event: "the profiler gives no number for it" for event in events if event not in values})


def _plain(kernel: str) -> str:
    return kernel[:-3] if kernel.endswith(".kd") else kernel
