"""Baselines are loaded during the search, in a separate process; one that fails affects only itself."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from bad_baselines import Crashes, CrashesAsWell, CrashesToo, Fine, Hangs, ImportsMuch, WaitsForFile

import deepgen as dg
from deepgen import targets
from deepgen.run.measure import Contender, Policy, RunnerOptions, Task
from deepgen.run.measure.supervisor import Supervisor
from deepgen.tuning.engines import device
from deepgen.tuning.engines.local import LocalSession
from deepgen.vocabulary import Verdict
from deepgen.vocabulary.finding import source_of

OPERATOR = dg.gemm(37, 29, 23)


@pytest.fixture
def loaded_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "loaded"
    path.touch()
    monkeypatch.setenv("LOADED_BY", str(path))
    return path


@pytest.mark.slow
def test_baselines_that_crash_or_hang_while_they_are_loaded_cost_only_themselves(
    tmp_path: Path, loaded_by: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[int] = []
    close = LocalSession.close

    def closing(self: LocalSession) -> None:
        starts.append(self._runner.starts)  # type: ignore[attr-defined]
        close(self)

    monkeypatch.setattr(LocalSession, "close", closing)
    monkeypatch.setattr(device, "START_SECONDS", 10.0)
    engine, rivals = dg.LocalEngine(), [Hangs, Fine, Crashes]
    study = dg.tune(OPERATOR, target="cpu", trials=3, baselines=rivals, engine=engine, out=tmp_path)
    finals = study.finals()
    assert finals is not None and finals.winner is not None and len(study.trials()) == 3
    assert [one.name for one in finals.baselines] == ["fine"]
    lost = {one.name: one.verdict for one in finals.baselines_lost}
    assert lost == {"hangs": Verdict.TIMED_OUT, "crashes": Verdict.CRASHED}
    assert starts[0] == 1, "the worker of the search has seen none of them"
    attempts = Counter(line.split()[0] for line in loaded_by.read_text().splitlines())
    assert attempts["hangs"] == 1, "the finals do not wait for it again"


@pytest.mark.slow
def test_a_budget_does_not_wait_for_a_baseline_that_hangs(tmp_path: Path, loaded_by: Path) -> None:
    """Baselines that were loaded before it are compared."""
    engine = dg.LocalEngine()
    dg.tune(OPERATOR, target="cpu", trials=1, baselines=False, engine=engine, out=tmp_path / "warm")
    started = time.monotonic()
    words: dict[str, Any] = {"trials": 5, "engine": engine, "time_budget": 15.0, "out": tmp_path / "studies"}
    study = dg.tune(OPERATOR, target="cpu", baselines=[Fine, Hangs], **words)
    assert time.monotonic() - started < 300.0, "it hangs for longer"
    finals = study.finals()
    assert finals is not None and "baseline hangs" in finals.left_out and not finals.baselines_lost
    late = ["fine"] if "baseline fine" in finals.left_out else []  # the machine is busy
    assert [one.name for one in finals.baselines] + late == ["fine"]


def test_a_baseline_that_is_loaded_after_the_first_look_still_races(loaded_by: Path) -> None:
    source = source_of(WaitsForFile)
    assert source is not None
    name, task = WaitsForFile.name, Task(OPERATOR, targets.resolve("cpu"), own_baselines={WaitsForFile.name: source})
    with dg.LocalEngine().open(task) as session:
        session.load([name], 60.0)
        assert session.loaded(0.0) == []
        loaded_by.with_suffix(".go").touch()
        assert session.loaded(60.0) == [name]
        (measured,) = session.compare([Contender(name)], 3, seed=0)
        assert len(measured.samples) == 3
    assert len({*loaded_by.read_text().splitlines()}) == 1, "in the worker that had begun to load it"


def test_what_a_baseline_imports_for_an_operator_is_imported_before_it_has_the_device(loaded_by: Path) -> None:
    source = source_of(ImportsMuch)
    assert source is not None
    name, task = ImportsMuch.name, Task(OPERATOR, targets.resolve("cpu"), own_baselines={ImportsMuch.name: source})
    race = device.BaselineRace(task, RunnerOptions(), nullcontext)
    try:
        race.load([name], 60.0, begin := threading.Event(), at_once=True)
        while not loaded_by.read_text():
            time.sleep(0.01)
        assert loaded_by.read_text() == f"imports for {OPERATOR.describe()}\n" and not begin.is_set()
        race.wait()
    finally:
        race.close()
    assert loaded_by.read_text().count(f"{name} ") == 1


@pytest.mark.parametrize(
    ("cores", "seconds", "rivals", "loaded"),
    [
        (2, 8.0, (Fine, ImportsMuch), ["fine"]),
        (2, 30.0, (Fine, ImportsMuch), ["fine", ImportsMuch.name]),
        (16, 8.0, (Fine, ImportsMuch), ["fine", ImportsMuch.name]),
        (2, 8.0, (ImportsMuch,), [ImportsMuch.name]),
    ],
)
def test_few_cores_in_a_hurry_import_no_framework_where_another_baseline_is_there(
    loaded_by: Path,
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    seconds: float,
    rivals: tuple[Any, ...],
    loaded: list[str],
) -> None:
    own = {one.name: source for one in rivals if (source := source_of(one))}
    with dg.LocalEngine().open(Task(OPERATOR, targets.resolve("cpu"), own_baselines=own)) as session:
        monkeypatch.setattr("deepgen.targets.host.usable_cores", lambda: cores)
        session.load(list(own), seconds)
        assert session.loaded(60.0) == loaded


def test_many_that_crash_do_not_take_the_device_from_others(loaded_by: Path) -> None:
    rivals = (Crashes, CrashesToo, CrashesAsWell, Fine)
    own = {one.name: source for one in rivals if (source := source_of(one))}
    task = Task(OPERATOR, targets.resolve("cpu"), own_baselines=own)
    race = device.BaselineRace(task, RunnerOptions(), nullcontext)
    try:
        race.load(list(own), 60.0, threading.Event(), at_once=True)
        race.wait()
        *crashed, fine = race.compare([Contender(name) for name in own], 3, seed=0)
    finally:
        race.close()
    assert [one.verdict for one in crashed] == [Verdict.CRASHED] * 3 and len(fine.samples) == 3
    assert loaded_by.read_text().count("crashes") == 3, "none is tried again"


def test_a_worker_that_loads_stands_still_while_others_measure(loaded_by: Path) -> None:
    source = source_of(Fine)
    assert source is not None
    task = Task(OPERATOR, targets.resolve("cpu"), policy=Policy(), own_baselines={"fine": source})
    runner = Supervisor(task)
    try:
        assert runner.load("fine").ok, "a worker is there"
        ended = threading.Event()
        verdicts = []

        def load() -> None:
            verdicts.append(runner.load("fine"))
            ended.set()

        with runner.suspended():
            threading.Thread(target=load).start()
            assert not ended.wait(0.7)
        assert ended.wait(60.0) and verdicts[0].ok
        assert runner.starts == 1
    finally:
        runner.close()
