"""Counting on a GPU: its maker's profiler runs a process of ours, in which the kernel runs on the usual inputs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from deepgen.run.counters import profiled
from deepgen.run.counters.base import Counted, Refused
from deepgen.run.counters.vendor_profilers import PROFILERS
from deepgen.run.measure import limits
from deepgen.run.measure.base import Task
from deepgen.run.measure.spawn import environment, import_path
from deepgen.toolchains import required
from deepgen.vocabulary import DeepgenError, Measurement

_TRIES = 3  # where a profiler refuses some of the events, the others are asked for again


class Profiler:
    """The profiler of one device. `close` may come from another thread."""

    def __init__(self, task: Task, scratch: Path, toolchains: Mapping[str, str]) -> None:
        self._tool = PROFILERS[task.target.languages[0]]
        self._cold, self._scratch, self._toolchains = task.policy.cold, scratch, toolchains
        self._never: str | None = None  # why nothing can be counted here
        self._running: subprocess.Popen[bytes] | None = None
        self._closed = False

    def count(self, opening: Mapping[str, Any], request: Mapping[str, Any]) -> Counted:
        """Count the request's events; `opening` is what a worker is opened with."""
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
        program = required(self._tool.name, "events of this GPU cannot be counted", self._toolchains)
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
        """Run it to its end and give the last line that it printed."""
        if self._closed:
            raise DeepgenError("the runner is closed")
        # The folder for temporary files: users of one machine get in each other's way at ncu's lock in /tmp.
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
                raise Refused("the profiler did not end in time") from None
            finally:
                self._end()
        lines = printed.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    def _end(self) -> None:
        """The profiler and all that it started."""
        if (running := self._running) is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(running.pid, signal.SIGKILL)


def _entries(request: Mapping[str, Any]) -> list[str]:
    return [step["entry"] for step in request["kernel"]["plan"]["steps"]]
