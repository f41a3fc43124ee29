"""The measuring worker is isolated: it ignores files in the user's folder, and rejects impossible times."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from faulty_family import FaultyGemm

import deepgen as dg
from deepgen import targets
from deepgen.run.measure.base import Policy, Task
from deepgen.tuning.engines import local
from deepgen.vocabulary import Verdict

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

OPERATOR = dg.gemm(33, 31, 29)


@pytest.fixture(scope="module")
def cache(shared_cache: Path) -> Path:
    """One cache for all: the machine's peak is measured once."""
    return shared_cache / "deepgen"


def measure(cache: Path) -> dg.Measurement:
    task = Task(OPERATOR, targets.resolve("cpu"), policy=Policy(max_samples=5))
    kernel = FaultyGemm().emit(OPERATOR, task.target, {"PLACE": 0, "LANE": 0})
    with dg.LocalEngine(cache=cache).open(task) as session:
        session.submit(0, kernel)
        while not (outcomes := session.results(timeout=1.0)):
            pass
    return outcomes[0].measurement


@pytest.mark.parametrize("name", ["numpy", "deepgen", "json", "socket"])
def test_nothing_in_the_current_folder_is_imported(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of the user was taken for a library')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    assert measure(cache).ok


def test_a_time_that_the_machine_cannot_reach_is_not_believed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert measure(cache).ok
    monkeypatch.setattr(local, "peak_gflops", lambda *_, **__: 1e-6)
    measured = measure(cache)
    assert (measured.verdict, "machine's peak allows" in measured.detail) == (Verdict.UNSTABLE, True)


def test_a_peak_that_was_measured_on_a_busy_machine_condemns_no_kernel(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "peak_gflops", lambda *_, again, **__: 1e6 if again else 1e-6)
    assert measure(cache).ok


def test_without_a_known_peak_nothing_is_doubted(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "peak_gflops", lambda *_, **__: None)
    assert measure(cache).ok
