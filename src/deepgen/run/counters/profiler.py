"""Counting on a GPU: the vendor's profiler runs a process of ours, in which the kernel runs on ordinary inputs.

Supported: NVIDIA's ncu, AMD's rocprofv3 and rocprof. The code for AMD's was written from their documentation and has
never run on hardware.
"""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepgen.run.counters import Counted, Refused, number, profiled
from deepgen.run.measure import limits
from deepgen.run.measure.base import Task
from deepgen.run.measure.spawn import environment, import_path
from deepgen.toolchains import required
from deepgen.vocabulary import DeepgenError, Measurement

_TRIES = 3  # if a profiler refuses some events, the others are requested again


class Profiler:
    """The profiler of one device. `close` may be called from another thread."""

    def __init__(self, task: Task, scratch: Path, toolchains: Mapping[str, str]) -> None:
        self._tool = PROFILERS[task.target.languages[0]]
        self._cold, self._scratch, self._toolchains = task.policy.cold, scratch, toolchains
        self._never: str | None = None  # why nothing can be counted here
        self._running: subprocess.Popen[bytes] | None = None
        self._closed = False

    def count(self, opening: Mapping[str, Any], request: Mapping[str, Any]) -> Counted:
        """Count the request's events; `opening` is the message that opens a worker."""
        events = list(request["events"])
        total = Counted()
        for _ in range(_TRIES):
            if self._never is not None or not events:
                break
            try:
                return total | self._counted(opening, {**request, "events": events})
            except Refused as refused:
                self._never = refused.why if refused.lasting else None
                gone = refused.events or tuple(events)
                total |= Counted.nothing(gone, refused.why)
                events = [event for event in events if event not in gone]
            except DeepgenError as error:
                self._never = str(error)
        return total | Counted.nothing(events, self._never or "the profiler refused too many events")

    def close(self) -> None:
        self._closed = True
        self._end()

    def _counted(self, opening: Mapping[str, Any], request: Mapping[str, Any]) -> Counted:
        program = required(self._tool.name, "hardware events cannot be counted on this GPU", self._toolchains)
        events, tool = request["events"], self._tool
        with tempfile.TemporaryDirectory(prefix="count-", dir=self._scratch) as name:
            folder = Path(name)
            (folder / profiled.QUESTION).write_text(json.dumps({"opening": opening, "request": request}))
            ours = [sys.executable, profiled.__file__, str(folder), *import_path()]
            printed = self._run(
                [*tool.command(program, events, folder, cold=self._cold), *ours], folder, opening["threads"]
            )
            answered = (folder / profiled.ANSWER).exists()
            if answered:
                measured = Measurement.from_json(json.loads((folder / profiled.ANSWER).read_text()))
                if not measured.ok:
                    return Counted.of(measured, events)
            try:
                counted = tool.collected(folder, events, _entries(request))
            except Refused as refused:
                if answered or refused.lasting or refused.events:
                    raise
                raise Refused(f"{refused.why}; its process said: {printed or 'nothing'}") from None
            return counted

    def _run(self, argv: Sequence[str], folder: Path, threads: int) -> str:
        """Run a command to its end, and return the last line that it printed."""
        if self._closed:
            raise DeepgenError("the runner is closed")
        # A folder for temporary files, as users of one machine contend for ncu's lock in /tmp.
        with subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**environment(threads), "TMPDIR": str(folder), "LC_ALL": "POSIX"},
            start_new_session=True,
        ) as self._running:
            try:
                printed, _ = self._running.communicate(timeout=limits.START_SECONDS + limits.PROFILED_SECONDS)
            except subprocess.TimeoutExpired:
                raise Refused("the profiler did not finish in time") from None
            finally:
                self._end()
        lines = printed.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    def _end(self) -> None:
        """End the profiler and everything it started."""
        if (running := self._running) is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(running.pid, signal.SIGKILL)


def _entries(request: Mapping[str, Any]) -> list[str]:
    return [step["entry"] for step in request["kernel"]["plan"]["steps"]]


DURATION = "gpu__time_duration.sum"  # always collected, to weight the kernels of one run
_NO_PERMISSION = "ERR_NVGPUCTRPERM"
_UNKNOWN = "Failed to find metric"
_ERROR = "==ERROR=="


def ncu_command(program: str, events: Sequence[str], folder: Path, *, cold: bool) -> list[str]:
    """The part of the command line before the profiled command."""
    metrics = ",".join(dict.fromkeys((*events, DURATION)))
    return [
        program,
        *("--csv", "--page", "raw", "--print-units", "base", "--log-file", str(_log(folder))),
        *("--profile-from-start", "off", "--target-processes", "all"),
        *("--cache-control", "all" if cold else "none", "--clock-control", "none"),
        *("--metrics", metrics),
    ]


def ncu_collected(folder: Path, events: Sequence[str], entries: Sequence[str]) -> Counted:
    """The counts of a finished run. Raises Refused."""
    try:
        text = _log(folder).read_text(errors="replace")
    except FileNotFoundError:
        raise Refused("ncu exited without output") from None
    kernels = parse_ncu(text)
    if kernels:
        return combine_ncu(kernels, events)
    if _NO_PERMISSION in text:
        raise Refused(
            f"the driver does not permit this user to read GPU counters ({_NO_PERMISSION}): run as root, or load the "
            "nvidia module with NVreg_RestrictProfilingToAdminUsers=0",
            lasting=True,
        )
    errors = [line.partition(_ERROR)[2].strip() for line in text.splitlines() if line.startswith(_ERROR)]
    unknown = [event for event in events for line in errors if _UNKNOWN in line and _names(line, event)]
    if unknown:
        raise Refused("ncu has no such metric for this GPU", events=tuple(unknown))
    raise Refused(f"ncu says: {errors[0]}" if errors else "ncu saw no kernel run")


def parse_ncu(text: str) -> list[dict[str, float]]:
    """The metrics of each kernel, from a table with a column per metric or a row per metric.

    Values that are not numbers, such as n/a, are left out.
    """
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        return []
    rows = list(csv.DictReader(line for line in lines[first:] if line.startswith('"')))
    if rows and "Metric Name" in rows[0]:
        by_kernel: dict[str, dict[str, str]] = {}
        for row in rows:
            by_kernel.setdefault(row["ID"], {})[row["Metric Name"]] = row["Metric Value"]
        metrics = list(by_kernel.values())
    else:
        metrics = [{k: v for k, v in row.items() if "__" in k} for row in rows if row["ID"]]  # units below
    return [
        {name: value for name, text in row.items() if text and (value := number(text)) is not None} for row in metrics
    ]


def combine_ncu(kernels: Sequence[Mapping[str, float]], events: Sequence[str]) -> Counted:
    """Combine the kernels of one run: sums are added, other metrics averaged with the kernels' times as weights."""
    values, missing = {}, {}
    for event in events:
        parts = [(row[event], row.get(DURATION, 1.0)) for row in kernels if event in row]
        if len(parts) < len(kernels):
            missing[event] = "ncu reports no value for it"
        elif event.endswith(".sum"):
            values[event] = sum(value for value, _ in parts)
        else:
            total = sum(weight for _, weight in parts) or 1.0
            values[event] = sum(value * weight for value, weight in parts) / total
    return Counted(values, missing)


def _log(folder: Path) -> Path:
    return folder / "ncu.log"


def _names(line: str, event: str) -> bool:
    """Whether a line mentions this event, even inside a regular expression."""
    return re.search(rf"(?<![\w.]){re.escape(event)}(?![\w.]\w)", line.replace("\\", "")) is not None


_FILES = "deepgen"


def rocprof_command(program: str, events: Sequence[str], folder: Path, *, cold: bool) -> list[str]:
    """The part of the command line before the profiled command."""
    if Path(program).name == "rocprofv3":
        return [program, "--pmc", *events, "--output-format", "csv", "-d", str(folder), "-o", _FILES, "--"]
    wanted = folder / f"{_FILES}.txt"
    wanted.write_text(f"pmc : {' '.join(events)}\n")
    return [program, "-i", str(wanted), "-o", str(folder / f"{_FILES}.csv")]


def rocprof_collected(folder: Path, events: Sequence[str], entries: Sequence[str]) -> Counted:
    """The counts of a finished run, from its last launches, one per step of the plan. Raises Refused."""
    for path in sorted(folder.rglob(f"{_FILES}*.csv")):
        launches = [row for name, row in parse_rocprof(path.read_text(errors="replace")) if name in entries]
        last = launches[-len(entries) :]
        if len(last) == len(entries):
            return _added(last, events)
    raise Refused("the profiler wrote no counters for this kernel; there may be too many events for one pass")


def parse_rocprof(text: str) -> list[tuple[str, dict[str, float]]]:
    """Each launch in order: its kernel and counters. rocprofv3 writes a row per counter, rocprof a row per launch."""
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
    return Counted(values, {event: "the profiler reports no value for it" for event in events if event not in values})


def _plain(kernel: str) -> str:
    return kernel[:-3] if kernel.endswith(".kd") else kernel


@dataclass(frozen=True)
class VendorProfiler:
    """A vendor's profiler: `command` precedes the profiled command, `collected` reads what it counted."""

    name: str
    command: Callable[..., list[str]]
    collected: Callable[[Path, Sequence[str], Sequence[str]], Counted]


PROFILERS: Mapping[str, VendorProfiler] = {
    "cuda": VendorProfiler("ncu", ncu_command, ncu_collected),
    "hip": VendorProfiler("rocprof", rocprof_command, rocprof_collected),
}
