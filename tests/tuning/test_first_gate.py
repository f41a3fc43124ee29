"""The gate behind a study's first trial: however that one ends, the others continue."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import deepgen as dg
from deepgen import targets
from deepgen.run.measure.base import Task
from deepgen.run.measure.sim import SimRunner
from deepgen.toolchains.base import BuildError
from deepgen.toolchains.compilers.sim import SimToolchain
from deepgen.tuning.engines import LocalEngine
from deepgen.tuning.engines.device import FairLock, FirstGate
from deepgen.tuning.request import Request, plan
from deepgen.vocabulary import Kernel, Measurement, Verdict

FIRST = 0


class Bench:
    """Builds and a device that progress in a random order."""

    def __init__(self, jobs: int, seed: int) -> None:
        self.gate: FirstGate[int, int] = FirstGate(jobs)
        self.rng = random.Random(seed)
        self.building: list[int] = []
        self.device: list[int] = []  # waiting for the device
        self.measured: list[int] = []
        self.beside = 0  # the most builds concurrent with the first one's

    def submit(self, trial: int) -> None:
        self.building += self.gate.submit(trial, trial, first=trial == FIRST)
        if FIRST in self.building:
            self.beside = max(self.beside, len(self.building) - 1)

    def built(self, trial: int, *, fails: bool) -> None:
        self.building.remove(trial)
        ready, begin = self.gate.built(trial, None if fails else trial)
        self.device += ready
        self.building += begin

    def measure(self) -> None:
        trial = self.device.pop(0)
        self.measured.append(trial)
        self.device += self.gate.ended(trial)

    def step(self, fails: frozenset[int], *, hold: bool = False) -> bool:
        """One event; with `hold` the first trial's build does not end."""
        able = [trial for trial in self.building if not (hold and trial == FIRST)]
        events = (["build"] if able else []) + (["measure"] if self.device else [])
        if not events:
            return False
        if self.rng.choice(events) == "measure":
            self.measure()
        else:
            trial = self.rng.choice(able)
            self.built(trial, fails=trial in fails)
        return True


@pytest.mark.parametrize("jobs", [1, 2, 4, 16])
@pytest.mark.parametrize("fails", [(), (FIRST,), (1, 2), (FIRST, 1, 2, 3)])
def test_every_trial_is_measured_whatever_the_order(jobs: int, fails: tuple[int, ...]) -> None:
    for seed in range(60):
        bench = Bench(jobs, seed)
        for trial in range(8):
            bench.submit(trial)
            while bench.rng.random() < 0.5 and bench.step(frozenset(fails)):
                pass
        while bench.step(frozenset(fails)):
            pass
        assert sorted(bench.measured) == [trial for trial in range(8) if trial not in fails]
        assert FIRST in fails or bench.measured[0] == FIRST
        assert bench.beside <= max(0, (jobs - 2) // 2)


def test_until_the_first_is_measured_the_device_is_its_own() -> None:
    bench = Bench(16, 0)
    for trial in range(20):
        bench.submit(trial)
    while bench.step(frozenset(), hold=True):
        pass
    assert bench.building == [FIRST] and bench.measured == [] and bench.device == []
    bench.built(FIRST, fails=False)
    assert bench.device == [FIRST] and len(bench.building) == 12
    bench.measure()
    assert sorted(bench.device) == [*range(1, 8)]


def test_trials_that_wait_are_not_lost_when_another_one_leads() -> None:
    gate: FirstGate[int, int] = FirstGate(2)
    assert gate.submit(0, 0, first=True) == [0] and gate.submit(1, 1) == []
    assert gate.submit(2, 2, first=True) == [2]
    assert gate.built(0, 0) == ([], [])  # it no longer leads
    assert gate.built(2, None) == ([0], [1])


def test_without_a_first_trial_nothing_waits_and_after_the_end_nothing_begins() -> None:
    gate: FirstGate[int, int] = FirstGate(1)
    assert [gate.submit(i, i) for i in range(3)] == [[0], [1], [2]]
    assert gate.built(1, 1) == ([1], []) and gate.ended(1) == []
    gate.submit(3, 3, first=True)
    gate.submit(4, 4)
    gate.close()
    assert gate.built(3, 3) == ([], []) and gate.ended(3) == [] and gate.submit(5, 5) == []


# The gate in a session ------------------------------------------------------------------------------------------------

REQUEST = Request(dg.gemm(256, 256, 256), targets.resolve("sim"))
PLAN = plan(REQUEST)
KERNELS = [PLAN.emit(REQUEST, PLAN.space.at(rank)) for rank in range(4)]


@contextmanager
def session(tmp_path: Path, look: Any = None) -> Iterator[Any]:
    with LocalEngine(jobs=2, cache=tmp_path).open(Task(REQUEST.operator, REQUEST.target), look) as opened:
        for number, kernel in enumerate(KERNELS):
            opened.submit(number, kernel, first=number == FIRST)
        yield opened


def ended(opened: Any, count: int) -> list[int]:
    out: list[int] = []
    for _ in range(60):
        out += [outcome.trial_id for outcome in opened.results(timeout=1.0 if len(out) < count else 0.0)]
        if len(out) >= count:
            return out
    raise AssertionError(f"only {out} have ended")


def building(monkeypatch: pytest.MonkeyPatch, first: Any) -> None:
    """Do something before the first kernel is built."""
    build = SimToolchain.build

    def planted(self: SimToolchain, kernel: Kernel, *args: Any) -> Any:
        if kernel.id == KERNELS[FIRST].id:
            first()
        return build(self, kernel, *args)

    monkeypatch.setattr(SimToolchain, "build", planted)


def raises(error: BaseException) -> Any:
    def planted() -> None:
        raise error

    return planted


def test_the_others_follow_a_build_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    building(monkeypatch, raises(BuildError(Verdict.BUILD_FAILED, "planted")))
    with session(tmp_path) as opened:
        assert ended(opened, 4)[0] == FIRST


def test_the_others_follow_a_build_that_was_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    building(monkeypatch, raises(CancelledError()))
    with session(tmp_path) as opened:
        assert sorted(ended(opened, 3)) == [1, 2, 3]


def test_the_others_follow_an_error_that_reaches_the_tuner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    building(monkeypatch, raises(ZeroDivisionError("planted")))
    with session(tmp_path) as opened:
        with pytest.raises(ZeroDivisionError):
            opened.results(timeout=60.0)
        assert sorted(ended(opened, 3)) == [1, 2, 3]


@pytest.mark.parametrize("died", [True, False])
def test_the_others_follow_a_worker_that_died_or_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, died: bool
) -> None:
    measure = SimRunner.measure

    def planted(self: SimRunner, kernel: Kernel, *args: Any, **words: Any) -> Measurement:
        if kernel.id != KERNELS[FIRST].id:
            return measure(self, kernel, *args, **words)
        if died:
            return Measurement(Verdict.CRASHED, "signal 11")
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(SimRunner, "measure", planted)
    with session(tmp_path) as opened:
        if not died:
            with pytest.raises(ZeroDivisionError):
                opened.results(timeout=60.0)
        assert sorted(ended(opened, 4 if died else 3))[-3:] == [1, 2, 3]


def test_the_others_follow_one_that_is_not_worth_running(tmp_path: Path) -> None:
    with session(tmp_path, lambda trial, artifact: trial != FIRST) as opened:
        assert ended(opened, 4)[0] == FIRST


def test_what_was_dropped_is_over_and_the_session_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As when the time is over, or the study is stopped: during the first build, and after it."""
    begun, go = threading.Event(), threading.Event()
    building(monkeypatch, lambda: (begun.set(), go.wait(60.0)))
    with session(tmp_path) as opened:
        assert begun.wait(60.0) and opened.drop()
        go.set()
        assert opened.results(timeout=0.2) == []
    assert not opened._thread.is_alive()


def test_a_session_that_is_closed_while_others_wait_begins_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    begun, built = threading.Event(), []
    build = SimToolchain.build

    def slow(self: SimToolchain, kernel: Kernel, *args: Any) -> Any:
        built.append(kernel.id)
        begun.set()
        until.wait(0.5)
        return build(self, kernel, *args)

    until = threading.Event()
    monkeypatch.setattr(SimToolchain, "build", slow)
    with session(tmp_path):
        assert begun.wait(60.0)
    assert built == [KERNELS[FIRST].id] and "Traceback" not in capfd.readouterr().err


def test_the_device_goes_to_whoever_asked_first() -> None:
    """Also if the current holder asks again at once."""
    lock, order = FairLock(), []

    def ask(name: str) -> None:
        with lock:
            order.append(name)

    others = [threading.Thread(target=ask, args=(str(n),)) for n in range(3)]
    with lock:
        for n, thread in enumerate(others):
            thread.start()
            while len(lock._waiting) < n + 2:
                time.sleep(0.001)
    ask("again")
    for thread in others:
        thread.join()
    assert order == ["0", "1", "2", "again"]
