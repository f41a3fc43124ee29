"""A worker that starts before the first kernel exists: it is prepared by then, and closing does not wait for it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from faulty_kernels import TARGET, build, kernel

from deepgen.frontends.cli.processes import descendants
from deepgen.operators import gemm
from deepgen.run.measure import process
from deepgen.run.measure.base import Policy, RunnerOptions, Task
from deepgen.run.measure.process import WorkerProcess
from deepgen.run.measure.supervisor import Supervisor

TASK = Task(gemm(37, 29, 23), TARGET, policy=Policy(min_samples=3, max_samples=5))


@pytest.mark.parametrize("pause", [0.0, 0.3])
def test_closing_at_once_leaves_nothing_behind(pause: float) -> None:
    before = set(descendants(os.getpid()))
    runner = Supervisor(TASK, RunnerOptions(ahead=True))
    time.sleep(pause)
    runner.close()
    until = time.monotonic() + 60.0
    while (left := _running() - before) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left


def _running() -> set[int]:
    """Without the process that tests fork workers from, which stays."""
    family = descendants(os.getpid()).items()
    return {pid for pid, one in family if one.running and b"forked_workers" not in _command(pid)}


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_keeper_is_never_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this process were killed meanwhile, it would stay suspended."""
    monkeypatch.setattr(process, "_FORK_SECONDS", 60.0)
    worker = WorkerProcess(1)
    keeper = worker.pid
    try:
        with worker.suspended():
            assert worker.pid != keeper and _state_of(keeper) != "T"
            until = time.monotonic() + 60.0
            while _state_of(worker.pid) != "T" and time.monotonic() < until:
                time.sleep(0.01)
            assert _state_of(worker.pid) == "T"
    finally:
        worker.close()


def _state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_the_first_kernel_meets_a_prepared_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    ask, prepared = WorkerProcess.ask, threading.Event()

    def heard(self: WorkerProcess, message: dict, *more: Any) -> dict:  # type: ignore[type-arg]
        reply = ask(self, message, *more)
        asked.append(message.get("do", "open"))
        if asked[-1] == "prepare":
            prepared.set()
        return reply

    monkeypatch.setattr(WorkerProcess, "ask", heard)
    good = kernel()
    artifact = build(good)
    runner = Supervisor(TASK, RunnerOptions(ahead=True))
    try:
        assert prepared.wait(60.0)
        assert runner.measure(good, artifact).ok
        assert (runner.starts, asked[:3]) == (1, ["open", "prepare", "measure"])
    finally:
        runner.close()


@pytest.mark.slow
def test_what_is_wrong_is_said_to_the_first_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors in the preparing thread would go unnoticed."""
    opened = WorkerProcess.open

    def fails(self: WorkerProcess, opening: dict) -> dict:  # type: ignore[type-arg]
        return opened(self, {**opening, "threads": None, "folder": "/nowhere/at/all"})

    monkeypatch.setattr(WorkerProcess, "open", fails)
    good = kernel()
    artifact = build(good)
    runner = Supervisor(TASK, RunnerOptions(ahead=True))
    try:
        with pytest.raises(Exception, match="cannot be started"):
            runner.measure(good, artifact)
    finally:
        runner.close()


@pytest.mark.parametrize(
    ("body", "held"),
    [("", True), ("C[3] += 1;", False), ("static int calls; if (++calls == 4) abort();", True)],
    ids=["right", "wrong", "crashes when timed"],
)
def test_what_is_in_the_way_is_held_while_a_kernel_is_timed_alone(body: str, held: bool) -> None:
    """Not while it is verified; and whatever happens to the kernel, it is released. On a busy machine it may be timed
    twice."""
    own = kernel(f"multiply(A, B, C, M, N, K); {body}")
    events: list[str] = []

    @contextmanager
    def apart() -> Iterator[None]:
        events.append("held")
        try:
            yield
        finally:
            events.append("let go")

    runner = Supervisor(TASK, RunnerOptions(apart=lambda: apart))
    try:
        measured = runner.measure(own, build(own))
    finally:
        runner.close()
    assert measured.ok is (not body)
    assert events == ["held", "let go"] * (len(events) // 2) and bool(events) is held
    assert measured.samples or body


def test_what_is_in_the_way_is_held_while_events_are_counted() -> None:
    paused: list[bool] = []

    @contextmanager
    def apart() -> Iterator[None]:
        paused.append(True)
        yield

    own = kernel()
    runner = Supervisor(TASK, RunnerOptions(apart=lambda: apart))
    try:
        runner.count(own, build(own), ["cycles"])
    finally:
        runner.close()
    assert paused == [True]
