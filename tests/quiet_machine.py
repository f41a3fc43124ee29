"""Tests with the mark `quiet` compare times: they wait for a quiet machine, and are skipped if it stays busy.

One that fails while other processes use the CPU is also skipped, with a reason: its times are meaningless.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

import pytest

from deepgen.frontends.cli.processes import descendants
from deepgen.run.measure import conditions

PATIENCE = 60.0  # total waiting time of all tests in seconds
LOOK = 0.4  # seconds
RECENT = 2.0  # seconds for which a machine that was quiet is assumed to stay so
_TICK = os.sysconf("SC_CLK_TCK")


class Quiet:
    """Observations of the machine so far."""

    def __init__(self) -> None:
        self.left = PATIENCE
        self.since: conditions.MachineReading | None = None  # when the last test began
        self.seen = -inf  # when the machine was last seen quiet
        self.disturbed: dict[Path, str] = {}  # files, whose tests may share what was measured then

    def wait(self) -> str | None:
        """What still disturbs the machine after waiting."""
        if time.monotonic() - self.seen < RECENT:
            self.since = reading()
            return None
        before = self.since or reading()
        time.sleep(max(0.0, LOOK - (time.monotonic() - before.at)))
        why = conditions.contaminated(before, reading())
        while why and self.left > 0.0:
            self.left -= LOOK
            before = reading()
            time.sleep(LOOK)
            why = conditions.contaminated(before, reading())
        self.since = reading()
        self.seen = -inf if why else self.since.at
        return why

    def disturbed_since(self, *, sure: bool) -> str | None:
        """What disturbed the current test. `sure`: observe for long enough to see it."""
        assert self.since is not None
        if sure:
            time.sleep(max(0.0, LOOK - (time.monotonic() - self.since.at)))
        now = reading()
        why = conditions.contaminated(self.since, now)
        if why or now.at - self.since.at >= LOOK:
            self.seen = -inf if why else now.at
        return why


def reading() -> conditions.MachineReading:
    return conditions.read(_ours(), 0)


def _ours() -> float:
    """CPU seconds of this process and everything that it started, including running processes."""
    uses = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(use.ru_utime + use.ru_stime for use in uses) + sum(map(_seconds, descendants(os.getpid())))


def _seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICK


_QUIET = Quiet()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("quiet") and (why := _QUIET.wait()):
        pytest.skip(f"needs a quiet machine: {why}")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome: Any = yield
    report = outcome.get_result()
    if not item.get_closest_marker("quiet") or report.when == "teardown" or _QUIET.since is None:
        return
    if why := _QUIET.disturbed_since(sure=report.failed):
        _QUIET.disturbed[item.path] = why
    if report.failed and (why := _QUIET.disturbed.get(item.path)):
        report.outcome = "skipped"
        said = f"Skipped: it failed, and needs a quiet machine: {why}"
        report.longrepr = (str(item.path), item.location[1] or 0, said)
