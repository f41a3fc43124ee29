"""Tests that compare times wait for a quiet machine, and never fail on a busy one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import quiet_machine
from deepgen.run.measure.conditions import MachineReading

pytest_plugins = ["pytester"]

TESTS = """
import pytest
pytestmark = pytest.mark.quiet
def test_right(): pass
def test_wrong(): assert 1 == 2
"""


class Machine:
    """Other processes take a share of each second; the clock advances by itself."""

    def __init__(self, *shares: float) -> None:
        self.shares, self.now = [*shares], MachineReading(0.0)

    def reading(self) -> MachineReading:
        share = self.shares.pop(0) if len(self.shares) > 1 else self.shares[0]
        self.now = MachineReading(self.now.at + 1.0, self.now.busy + 100.0 * share)
        return self.now


Outcomes = Callable[[Machine], tuple[dict[str, int], str]]


@pytest.fixture
def outcomes(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Outcomes:
    """The outcomes of both tests on a machine, and the printed output."""

    def run(machine: Machine) -> tuple[dict[str, int], str]:
        monkeypatch.setattr(quiet_machine, "reading", machine.reading)
        monkeypatch.setattr(quiet_machine, "_QUIET", quiet_machine.Quiet())
        monkeypatch.setattr(quiet_machine.time, "sleep", lambda seconds: None)
        monkeypatch.setattr(quiet_machine.time, "monotonic", lambda: machine.now.at)
        pytester.makepyfile(TESTS)
        pytester.makeini("[pytest]\nmarkers = quiet")
        done = pytester.runpytest_inprocess("-rs", "-p", "no:xdist", plugins=[quiet_machine])
        return done.parseoutcomes(), done.stdout.str()

    return run


def test_on_a_quiet_machine_they_are_judged(outcomes: Outcomes) -> None:
    assert outcomes(Machine(0.0))[0] == {"passed": 1, "failed": 1}


def test_they_wait_for_one(outcomes: Outcomes) -> None:
    assert outcomes(Machine(*[1.0] * 9, 0.0))[0] == {"passed": 1, "failed": 1}


def test_where_there_is_none_they_are_skipped_with_a_sentence(outcomes: Outcomes) -> None:
    counts, said = outcomes(Machine(1.0))
    assert counts == {"skipped": 2} and "needs a quiet machine: other processes took" in said


def test_one_that_fails_while_others_work_is_skipped(outcomes: Outcomes) -> None:
    counts, said = outcomes(Machine(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0))
    assert counts == {"passed": 1, "skipped": 1}, said
    assert "it failed, and needs a quiet machine: other processes took" in said


def test_a_machine_that_was_quiet_just_now_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, slept = Machine(0.0), []
    monkeypatch.setattr(quiet_machine, "reading", machine.reading)
    monkeypatch.setattr(quiet_machine.time, "sleep", slept.append)
    monkeypatch.setattr(quiet_machine.time, "monotonic", lambda: machine.now.at)
    quiet = quiet_machine.Quiet()
    assert quiet.wait() is None and len(slept) == 1
    assert quiet.wait() is None and len(slept) == 1
    machine.now = MachineReading(machine.now.at + quiet_machine.RECENT, machine.now.busy)
    assert quiet.wait() is None and len(slept) == 2
    machine.shares = [1.0]
    assert quiet.disturbed_since(sure=True), "and then it is looked at before the next one"
    assert quiet.wait() and len(slept) > 3
