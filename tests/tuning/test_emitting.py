"""Kernels that are slow to emit are emitted in a thread: the tuner continues, and the search stays the same."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import deepgen as dg
from deepgen.tuning import emitting
from deepgen.tuning.emitting import Emitter
from deepgen.tuning.engines import LocalEngine
from deepgen.tuning.study.rows import Proposal
from deepgen.vocabulary import Kernel, LaunchPlan, Source

FIRST = 7


class Submitted:
    """A session that only records what it gets."""

    def __init__(self) -> None:
        self.trials: list[int] = []
        self.first: list[int] = []

    def submit(self, trial_id: int, kernel: Kernel, *, first: bool = False) -> None:
        assert kernel.sources[0].text == str(trial_id)
        self.trials.append(trial_id)
        self.first += [trial_id] if first else []


def proposal(number: int, rank: int | None = None) -> Proposal:
    return Proposal(number, 100 + number if rank is None else rank, {"number": number})


def kernel(config: Mapping[str, Any]) -> Kernel:
    return Kernel("made_up", "c", (Source("id", str(config["number"])),), (), LaunchPlan(()))


def ended(emitter: Emitter) -> bool:
    thread = emitter._thread
    if thread is not None:
        thread.join(timeout=300.0)
    return thread is None or not thread.is_alive()


def pumped(emitter: Emitter, session: Any) -> None:
    """Pump until everything that was deferred has been submitted."""
    until = threading.Event()
    for _ in range(3000):
        emitter.pump(session)
        if not emitter.waiting:
            return
        until.wait(0.01)
    raise AssertionError("nothing comes")


def test_what_is_emitted_quickly_is_submitted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emitting, "_LONG", 1e9)
    session: Any = Submitted()
    emitter = Emitter(kernel, FIRST)
    for number in range(4):
        emitter.submit(session, proposal(number, FIRST if number == 2 else None))
    assert session.trials == [0, 1, 2, 3] and session.first == [2] and emitter._thread is None
    assert emitter.taken(3).sources[0].text == "3"


def test_the_tuner_does_not_wait_for_what_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emitting, "_LONG", 0.0)
    session: Any = Submitted()
    go, at_work, most = threading.Event(), [0], [0]

    def slow(config: Mapping[str, Any]) -> Kernel:
        at_work[0] += 1
        most[0] = max(most[0], at_work[0])
        assert config["number"] == 0 or go.wait(60.0)
        at_work[0] -= 1
        return kernel(config)

    emitter = Emitter(slow, FIRST)
    emitter.submit(session, proposal(0, FIRST))
    for number in (1, 2, 3):
        emitter.submit(session, proposal(number))
    emitter.pump(session)
    assert session.trials == [0] and emitter.waiting == 3
    go.set()
    assert emitter.kernel({"number": 9}).sources[0].text == "9"  # like finals
    pumped(emitter, session)
    assert session.trials == [0, 1, 2, 3] and session.first == [0] and most == [1]
    emitter.close()
    assert ended(emitter)


def test_what_emitting_raises_reaches_the_tuner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emitting, "_LONG", 0.0)

    def broken(config: Mapping[str, Any]) -> Kernel:
        raise ZeroDivisionError("planted")

    emitter = Emitter(broken, FIRST)
    session: Any = Submitted()
    emitter.submit(session, proposal(1))
    with pytest.raises(ZeroDivisionError):
        pumped(emitter, session)
    emitter.close()
    assert ended(emitter)


def test_after_the_end_nothing_more_is_emitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emitting, "_LONG", 0.0)
    begun, go, emitted = threading.Event(), threading.Event(), []

    def slow(config: Mapping[str, Any]) -> Kernel:
        emitted.append(config["number"])
        begun.set()
        assert go.wait(60.0)
        return kernel(config)

    emitter = Emitter(slow, FIRST)
    for number in range(5):
        emitter.submit(Submitted(), proposal(number))  # type: ignore[arg-type]
    assert begun.wait(60.0)
    emitter.close()
    go.set()
    assert ended(emitter) and emitted == [0]


@pytest.mark.parametrize("strategy", ["random", "model"])
def test_a_study_is_the_same_wherever_its_kernels_are_emitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    tried = []
    for name, long in (("inline", 1e9), ("thread", 0.0)):
        monkeypatch.setattr(emitting, "_LONG", long)
        engine = LocalEngine(jobs=2, cache=tmp_path / name)
        words: dict[str, Any] = {"target": "sim", "out": tmp_path / name, "engine": engine, "trials": 25}
        study = dg.tune(dg.gemm(256, 256, 256), strategy=strategy, **words)
        tried.append([(trial.rank, trial.kernel_id) for trial in study.trials()])
    assert tried[0] == tried[1] and len(tried[0]) == 25
    for thread in threading.enumerate():
        if thread.name == "deepgen-emit":
            thread.join(30.0)
            assert not thread.is_alive()
