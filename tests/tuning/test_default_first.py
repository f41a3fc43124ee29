"""The best guess comes first: it is built and measured before anything else, and no study ends with a slower result."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import deepgen as dg
from deepgen import targets
from deepgen.run.measure.base import Task
from deepgen.run.measure.sim import SimRunner
from deepgen.toolchains.base import BuildError
from deepgen.toolchains.compilers.sim import SimToolchain
from deepgen.tuning.engines import LocalEngine, Outcome
from deepgen.tuning.request import Request, plan
from deepgen.tuning.study.journal import Journal
from deepgen.vocabulary import Artifact, Kernel, Measurement, Verdict

OPERATOR = dg.gemm(256, 256, 256)
REQUEST = Request(OPERATOR, targets.resolve("sim"))
PLAN = plan(REQUEST)


def kernels(count: int) -> list[Kernel]:
    """Kernels of the default and of some other configs."""
    ranks = [PLAN.first or 0, *(rank for rank in range(count) if rank != PLAN.first)]
    return [PLAN.emit(REQUEST, PLAN.space.at(rank)) for rank in ranks[:count]]


def is_default(kernel: Kernel) -> bool:
    return kernel.id == kernels(1)[0].id


def ended(session: Any, count: int) -> list[Outcome]:
    out: list[Outcome] = []
    until = time.monotonic() + 60.0
    while len(out) < count and time.monotonic() < until:
        out += session.results(timeout=1.0)
    return out


@contextmanager
def gate(monkeypatch: pytest.MonkeyPatch, builds: list[str], *, fails: bool = False) -> Iterator[threading.Event]:
    """The default's build waits until the event is set; all started builds are recorded."""
    opened, build = threading.Event(), SimToolchain.build

    def slow(self: SimToolchain, kernel: Kernel, *args: Any) -> Any:
        builds.append(kernel.id)
        if is_default(kernel):
            assert opened.wait(60.0)
            if fails:
                raise BuildError(Verdict.BUILD_FAILED, "planted")
        return build(self, kernel, *args)

    monkeypatch.setattr(SimToolchain, "build", slow)
    yield opened


@pytest.mark.parametrize(("jobs", "beside"), [(1, 0), (2, 0), (8, 3)])
@pytest.mark.parametrize("fails", [False, True])
def test_others_wait_for_the_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, jobs: int, beside: int, fails: bool
) -> None:
    builds: list[str] = []
    many = kernels(6)
    engine = LocalEngine(jobs=jobs, cache=tmp_path)
    with gate(monkeypatch, builds, fails=fails) as opened, engine.open(Task(OPERATOR, REQUEST.target)) as session:
        for number, kernel in enumerate(many):
            session.submit(number, kernel, first=number == 0)
        until = time.monotonic() + 60.0
        while len(builds) < 1 + beside and time.monotonic() < until:
            time.sleep(0.01)
        assert session.results(timeout=0.3) == [], "what was built early waits for the device"
        assert many[0].id in builds and len(builds) == 1 + beside
        opened.set()
        outcomes = ended(session, 6)
    assert outcomes[0].trial_id == 0 and sorted(one.trial_id for one in outcomes) == [*range(6)]
    assert outcomes[0].measurement.ok is not fails and all(one.measurement.ok for one in outcomes[1:])


def test_nothing_is_built_beside_the_first_trial_and_later_ones_are_alone_while_they_are_timed(tmp_path: Path) -> None:
    small = dg.gemm(8, 8, 8)
    with LocalEngine(jobs=1, cache=tmp_path).open(Task(small, targets.resolve("cpu"))) as session:
        paused: list[bool] = []

        class Watching:
            def measure(self, *_: Any, **__: Any) -> Measurement:
                paused.append(session._pool.paused)
                with session._options.apart()():  # as the supervisor does while the worker times
                    paused.append(session._pool.paused)
                return Measurement(Verdict.CORRECT, "", (1.0,))

            def close(self) -> None: ...

        session._runner.close()
        session._runner = Watching()
        for trial in range(2):
            session._outcome(trial, kernels(1)[0], None)
    assert paused == [True, True, False, True]


def slow_builds(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Slow down builds of the default only."""
    build = SimToolchain.build

    def slow(self: SimToolchain, kernel: Kernel, *args: Any) -> Any:
        time.sleep(seconds if is_default(kernel) else 0.0)
        return build(self, kernel, *args)

    monkeypatch.setattr(SimToolchain, "build", slow)


def tune(out: Path, **words: Any) -> dg.Study:
    engine = LocalEngine(jobs=4, cache=out / "cache")
    return dg.tune(
        OPERATOR, **{"target": "sim", "out": out / "studies", "strategy": "random", "engine": engine, **words}
    )


def test_a_default_that_is_built_slowly_is_not_dropped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A real case: with 15 s for a product on a GPU, the default was built too late, and the result
    was half as fast.
    """
    slow_builds(monkeypatch, 4.5)
    study = tune(tmp_path, time_budget=6.0, trials=1000)
    first = next(trial for trial in study.trials() if trial.rank == PLAN.first)
    finals = study.finals()
    assert first.ok and finals is not None and [row.trial for row in finals.finalists if row.default] == [first.id]
    with Journal(study.folder) as journal:
        moments = {trial.id: at for trial, _, at in journal.ended()}
    assert moments[first.id] == min(moments.values())


def test_where_the_default_is_wrong_others_win(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measure = SimRunner.measure

    def wrong(self: SimRunner, kernel: Kernel, artifact: Artifact, **words: Any) -> Measurement:
        measured = measure(self, kernel, artifact, **words)
        return replace(measured, verdict=Verdict.WRONG, samples=()) if is_default(kernel) else measured

    monkeypatch.setattr(SimRunner, "measure", wrong)
    study = tune(tmp_path, time_budget=600.0, trials=12)
    finals = study.finals()
    assert finals is not None and finals.winner is not None and not any(row.default for row in finals.finalists)
