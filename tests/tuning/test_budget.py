"""A time budget is kept, whatever is slow: builds, references, baselines. What did not fit is reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

import deepgen as dg
from deepgen import targets
from deepgen.operators import Answer, Array, Gemm
from deepgen.run.measure.base import Contender, Task
from deepgen.run.measure.sim import SimRunner
from deepgen.targets.host import usable_cores
from deepgen.tuning import costs, progress
from deepgen.tuning.costs import ASSUMED, StepCosts
from deepgen.tuning.engines import LocalEngine
from deepgen.tuning.engines.local import LocalSession
from deepgen.tuning.finals.plan import FinalsPlan, OutOfTime, for_finals, plan_finals, within
from deepgen.tuning.finals.race import run_race
from deepgen.vocabulary import DeepgenError, Kernel, Measurement, Verdict

OPERATOR = dg.gemm(256, 256, 256)
SIM = targets.resolve("sim")
SLACK = 3.0 * max(1.0, os.getloadavg()[0] / usable_cores())  # seconds, for a busy machine
HANGS = 600.0  # seconds; how precisely a budget is kept shows only on a quiet machine


def tune(out: Path, **words: Any) -> dg.Study:
    engine = LocalEngine(jobs=2, cache=out / "cache")
    usual = {"target": "sim", "out": out / "studies", "strategy": "random", "engine": engine, "trials": 10_000}
    return dg.tune(OPERATOR, **{**usual, **words})


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests leave recorded durations behind."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))


class Timed:
    """How long something took, with a check of the limit: nothing that hangs was waited for."""

    def __init__(self, longest: float = HANGS / 2) -> None:
        self.longest = longest

    def __enter__(self) -> Timed:
        self.started = time.monotonic()
        return self

    def __exit__(self, *exc: object) -> None:
        assert time.monotonic() - self.started < self.longest


def slow_verify(monkeypatch: pytest.MonkeyPatch, seconds: float, after: int = 0) -> list[str]:
    """Make references slow, from the call with that number on."""
    verify, calls = SimRunner.verify, []

    def slow(self: SimRunner, kernel: Kernel, artifact: Any, seed: int, probe: str, shape: int = 0) -> Measurement:
        calls.append(probe)
        time.sleep(seconds if len(calls) > after else 0.0)
        return verify(self, kernel, artifact, seed, probe, shape)

    monkeypatch.setattr(SimRunner, "verify", slow)
    return calls


def test_one_reference_that_takes_longer_than_all_the_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slow_verify(monkeypatch, HANGS)
    with Timed():
        study = tune(tmp_path, time_budget=6.0)
    finals, summary = study.finals(), study.summary()
    assert finals is not None and [row.default for row in finals.finalists] == [True]
    assert finals.rounds == 0 and summary["winner"]["trial"] == finals.winner  # type: ignore[index, call-overload]
    assert summary["left_out"][:2] == ["all sets of other inputs", "the race"]  # type: ignore[index]
    assert "ended before the finals" in " ".join(summary["doubts"])  # type: ignore[arg-type]


def test_what_did_not_fit_is_made_up_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as patched:
        slow_verify(patched, HANGS)
        first = tune(tmp_path, time_budget=6.0, trials=4)
    assert first.summary()["left_out"]
    again = tune(tmp_path, trials=4)
    finals = again.finals()
    assert finals is not None and not finals.left_out and finals.rounds >= 10 and len(again.trials()) == 4


@pytest.mark.parametrize("strategy", ["random", "model"])
def test_a_search_that_a_budget_ended_goes_on_as_if_it_had_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, strategy: str
) -> None:
    words: dict[str, Any] = {"target": "sim:measure_seconds=0.02", "strategy": strategy, "transfer": False}
    whole = tune(tmp_path / "whole", trials=60, **words)
    with monkeypatch.context() as patched:
        past: list[float] = []  # after some trials the time is over
        passing = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(past), time=time.time)
        patched.setattr(progress, "time", passing)
        over = {"time_budget": HANGS, "watch": lambda seen: past.append(HANGS * (seen.done > 9))}
        parts = tune(tmp_path / "parts", trials=60, **over, **words)
    assert 0 < len(parts.trials()) < 60
    parts = tune(tmp_path / "parts", trials=60, **words)
    assert [trial.rank for trial in parts.trials()] == [trial.rank for trial in whole.trials()]
    best, first = parts.best(), next(trial for trial in parts.trials() if trial.id == 0)
    assert best.seconds <= 1.02 * min(row.seconds for row in parts.finals().finalists)  # type: ignore[union-attr]
    assert any(row.default and row.rank == first.rank for row in parts.finals().finalists)  # type: ignore[union-attr]


def test_fewer_sets_and_shapes_are_tried_where_references_take_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = slow_verify(monkeypatch, 0.75)
    with Timed():
        study = tune(tmp_path, time_budget=12.0)
    finals = study.finals()
    assert finals is not None and finals.rounds > 0 and any(row.default for row in finals.finalists)
    assert calls[0] != "normal", "inputs of another kind come first"
    assert any("other inputs" in text or "other shape" in text for text in finals.left_out)


def test_a_budget_shorter_than_anything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened = LocalSession.__init__

    def slow(self: LocalSession, *args: Any) -> None:
        time.sleep(HANGS)
        opened(self, *args)

    with Timed(), pytest.raises(DeepgenError, match="ended before a kernel was measured"):
        tune(tmp_path, time_budget=0.01)
    monkeypatch.setattr(LocalSession, "__init__", slow)
    with Timed(), pytest.raises(DeepgenError, match="ended before a kernel was measured"):
        tune(tmp_path, time_budget=0.5, seed=1)


def test_every_build_takes_longer_than_the_time(tmp_path: Path) -> None:
    with Timed(), pytest.raises(DeepgenError, match="ended before a kernel was measured"):
        tune(tmp_path, target="sim:build_seconds=600", time_budget=1.0)


@pytest.mark.slow
def test_a_compiler_that_is_slow(tmp_path: Path) -> None:
    """It sleeps before it compiles: only one kernel fits, the default, and later builds are tried on resume."""
    wrapper = tmp_path / "gcc"
    wrapper.write_text('#!/bin/sh\ncase "$*" in *.c*) sleep 2 ;; esac\nexec gcc "$@"\n')
    wrapper.chmod(0o755)
    engine = LocalEngine(jobs=2, cache=tmp_path / "cache", toolchains={"gcc": str(wrapper)})
    words: dict[str, Any] = {"target": "cpu", "engine": engine, "baselines": False, "family": "c_gemm"}
    operator = dg.gemm(32, 32, 32)
    dg.tune(operator, trials=1, seed=7, out=tmp_path / "warm", **words)  # the machine's peak is measured once
    with Timed():
        study = dg.tune(operator, time_budget=16.0, trials=500, out=tmp_path / "studies", **words)
    summary: dict[str, Any] = study.summary()
    assert summary["default_measured_after"] is not None and summary["winner"] is not None
    assert sum(summary["trials"].values()) < 20


@pytest.mark.quiet
def test_a_command_s_budget_counts_from_the_start_of_its_process(tmp_path: Path) -> None:
    words = ["tune", "gemm", "MNK=256", "--target", "sim:measure_seconds=0.05", "--trials", "100000", "--json"]
    command = [sys.executable, "-m", "deepgen", *words, "--time-budget", "3", "--out", str(tmp_path)]
    with Timed(1.1 * 3.0 + SLACK) as timed:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        took = time.monotonic() - timed.started
    summary = json.loads(done.stdout)
    assert 0.0 < took - summary["time"]["total"] < 2.0 * SLACK and took > 1.5, "at least half of it is used"
    assert 0.1 < summary["default_measured_after"] <= summary["improved"][-1][0] < summary["time"]["total"]


class SlowReference(Gemm):
    """An operator whose reference is slow in Python, in the tuner's own process."""

    name: ClassVar[str] = "slow_gemm"

    def reference(self, inputs: Mapping[str, Array]) -> Mapping[str, Answer]:
        time.sleep(float(os.environ["SLOW_REFERENCE"]))
        return super().reference(inputs)


def test_the_process_does_not_wait_for_a_user_s_own_reference(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLOW_REFERENCE", str(HANGS))
    operator = SlowReference(16, 16, 16)
    engine = LocalEngine(jobs=2, cache=tmp_path / "cache")
    words: dict[str, Any] = {"target": "cpu", "engine": engine, "baselines": False, "out": tmp_path, "family": "c_gemm"}
    with Timed(), pytest.raises(DeepgenError, match="ended before a kernel was measured"):
        dg.tune(operator, time_budget=6.0, **words)


# The plan


WANTED = FinalsPlan(9, 7, 2, 30.0, True, 9, 20.0)


def test_what_is_left_out_first_and_last() -> None:
    """More time only removes something in favour of something more important."""
    before: tuple[object, ...] = ()
    rates = StepCosts()
    for spare in np.linspace(0.0, 60.0, 400):
        fits = plan_finals(float(spare), rates, WANTED)
        assert fits.finalists >= 2 and fits.sets >= 1 and (fits.seconds <= spare or fits.sets == 1)
        order = (fits.baselines, fits.sets, fits.finalists, fits.rounds, fits.closing, fits.strided, fits.shapes)
        assert order >= before
        before = order
    assert before == (2, 7, 9, 2, 0.8, True, 9) and fits.calm > 0
    assert plan_finals(float("inf"), rates, WANTED).calm == 20.0


def test_a_search_leaves_finals_what_they_need_and_no_more() -> None:
    quick, slow = StepCosts(dict.fromkeys(ASSUMED, 1e-4)), StepCosts(dict.fromkeys(ASSUMED, 1.0))
    assert for_finals(10.0, quick, WANTED) < 2.0
    assert for_finals(10.0, slow, WANTED) == 4.0, "more than its share, where the least takes longer"
    assert 20.0 < for_finals(100.0, slow, WANTED) <= 25.0


def test_rates_are_kept_between_runs(tmp_path: Path) -> None:
    assert costs.earlier(OPERATOR, SIM, tmp_path).of(costs.REFERENCE) == ASSUMED[costs.REFERENCE]
    first = StepCosts()
    first.hear(costs.REFERENCE, 2.0)
    first.hear(costs.END, 0.2)
    costs.keep(OPERATOR, SIM, first, tmp_path)
    assert costs.earlier(OPERATOR, SIM, tmp_path).of(costs.REFERENCE) == 2.0
    larger = costs.earlier(dg.gemm(512, 512, 512), SIM, tmp_path)
    assert larger.of(costs.REFERENCE) > 8.0 and larger.of(costs.END) == 0.2
    assert costs.earlier(OPERATOR, targets.resolve("cpu"), tmp_path).of(costs.REFERENCE) < 1.0
    assert 0.2 < costs.earlier(dg.gemm(64, 64, 64), SIM, tmp_path).of(costs.REFERENCE) < 1.0
    tiny = StepCosts()
    tiny.hear(costs.VERIFY, 0.01)
    costs.keep(dg.gemm(4, 4, 4), SIM, tiny, tmp_path / "tiny")
    assert costs.earlier(dg.gemm(512, 512, 512), SIM, tmp_path / "tiny").of(costs.VERIFY) < 1.0, "it is not a rate"
    larger.hear(costs.REFERENCE, 1.0)
    costs.keep(OPERATOR, SIM, larger, tmp_path)
    assert 1.0 < costs.earlier(OPERATOR, SIM, tmp_path).of(costs.REFERENCE) < 16.0, "a lucky run does not decide"


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"format": "deepgen rates 1"}', '{"format": "deepgen rates 1", "kinds": [1]}', "\x00",
     '{"format": "deepgen rates 1", "kinds": {"KIND": {"size": 1, "seconds": {"end": "1"}}}}',
     '{"format": "deepgen rates 1", "kinds": {"KIND": {"size": 0, "seconds": {"end": 1e9}}}}'],
)  # fmt: skip
def test_damaged_rates_are_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "rates.json").write_text(text.replace("KIND", costs._kind(OPERATOR, SIM)))
    assert costs.earlier(OPERATOR, SIM, tmp_path).of(costs.END) == ASSUMED[costs.END]
    costs.keep(OPERATOR, SIM, StepCosts({costs.END: 0.3}), tmp_path)
    assert costs.earlier(OPERATOR, SIM, tmp_path).of(costs.END) == 0.3


def test_a_call_that_takes_too_long_is_left_alone() -> None:
    late: list[int] = []
    assert within(10.0, lambda: 3, late.append) == 3 and within(float("inf"), lambda: 4) == 4
    with pytest.raises(ZeroDivisionError):
        within(10.0, lambda: 1 / 0)
    with pytest.raises(OutOfTime):
        within(0.0, lambda: pytest.fail("begun without time"))

    over = threading.Event()

    def slow() -> int:
        return 5 if over.wait(HANGS) else 0

    with pytest.raises(OutOfTime):
        within(0.05, slow, late.append)
    over.set()
    until = time.monotonic() + HANGS
    while not late and time.monotonic() < until:
        time.sleep(0.01)
    assert late == [5]


def test_a_task_of_a_plan_has_all_sets() -> None:
    from deepgen.tuning.finals import wanted_plan

    wanted = wanted_plan(Task(OPERATOR, SIM, neighbours=(dg.gemm(8, 8, 8),)), 9, 1)
    assert wanted.sets >= 3 and wanted.shapes == 1 and wanted.strided


class Ending:
    """An arena whose time ends during the comparison with that number."""

    def __init__(self, last: int) -> None:
        self.left = last

    def compare(self, contenders: list[Contender], rounds: int, seed: int) -> list[Measurement]:
        if not self.left:
            raise OutOfTime
        self.left -= 1
        return [Measurement(Verdict.CORRECT, samples=(1.0 + 0.1 * i,) * rounds) for i, _ in enumerate(contenders)]


def test_rounds_that_were_run_count_when_the_time_ends() -> None:
    contenders = [Contender("a"), Contender("b")]
    raced, lost = run_race(Ending(1), contenders, ["a", "b"], 0, 60.0, first=3)  # type: ignore[arg-type]
    assert raced is not None and raced.leader == "a" and len(raced.samples["b"]) == 3 and not lost
    with pytest.raises(OutOfTime):
        run_race(Ending(0), contenders, ["a", "b"], 0, 60.0, first=3)  # type: ignore[arg-type]
