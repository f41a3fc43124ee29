"""A study's first kernel is built while the tuner is still importing; its session takes that build over."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import deepgen as dg
from deepgen import settings, targets
from deepgen.run.measure import Policy, Task
from deepgen.toolchains import BuildPool, pool
from deepgen.tuning import Request
from deepgen.tuning.engines import local_engine
from deepgen.tuning.request import begin_first_build, on_threads, plan
from deepgen.vocabulary import Verdict

CPU = targets.resolve("cpu")


@pytest.fixture(autouse=True)
def nothing_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_begun", [])


def request_in(folder: Path) -> tuple[Request, settings.Settings]:
    policy = Policy(min_samples=3, max_samples=5)
    request = Request(operator=dg.gemm(37, 29, 23), target=CPU, out=folder / "studies", policy=policy)
    return request, settings.Settings(cache=folder / "cache")


@pytest.mark.parametrize("threads", [None, 1])
def test_a_session_takes_over_what_was_begun(
    threads: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, current = request_in(tmp_path)
    request = request if threads is None else on_threads(request, threads)
    begin_first_build(request, current)
    begun = pool._begun[0]
    planned = plan(request)
    kernel = planned.emit(request, planned.starts[0])
    assert begun.kernel == kernel, "the study begins with it"
    monkeypatch.setattr(BuildPool, "submit", lambda self, kernel: pytest.fail("built twice"))
    with local_engine(current).open(Task(request.operator, CPU, policy=request.policy)) as session:
        session.submit(0, kernel, first=True)
        [outcome] = session.results(timeout=120.0)
    assert outcome.measurement.ok and not pool._begun


def test_a_build_that_fails_is_the_trials_own_failure(tmp_path: Path) -> None:
    request, current = request_in(tmp_path)
    planned = plan(request)
    good = planned.emit(request, planned.starts[0])
    bad = replace(good, sources=(replace(good.sources[0], text="#error no\n"), *good.sources[1:]))
    pool.begin(bad, CPU, current.cache, {}, current.build_limits())
    with local_engine(current).open(Task(request.operator, CPU, policy=request.policy)) as session:
        session.submit(0, bad, first=True)
        [outcome] = session.results(timeout=120.0)
    assert outcome.measurement.verdict is Verdict.BUILD_FAILED


def test_only_what_fits_is_taken(tmp_path: Path) -> None:
    request, current = request_in(tmp_path)
    begin_first_build(request, current)
    begun = pool._begun[0]
    folder = begun.cache
    assert pool.take(begun.kernel, CPU, tmp_path / "another") is None
    assert pool.take(replace(begun.kernel, flags=("-O1",)), CPU, folder) is None
    assert pool.take(begun.kernel, CPU, folder) is begun
    assert pool.take(begun.kernel, CPU, folder) is None, "it is taken once"
    for one in (begun, *pool._begun):
        one.group.close()


def test_where_it_cannot_be_kept_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    request, current = request_in(tmp_path)
    begin_first_build(request, current)
    begin_first_build(replace(request, target=targets.resolve("sim")), current)
    assert not pool._begun


def test_a_study_does_not_import_what_takes_long_and_is_not_needed(tmp_path: Path) -> None:
    """numpy imports its masked arrays when it is asked for distinct values or a median: 0.17 s without bytecode."""
    study = f"dg.tune(dg.gemm(256, 256, 256), target='sim', trials=30, out={str(tmp_path)!r})"
    program = f"import sys, deepgen as dg; {study}; sys.exit('numpy.ma' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
