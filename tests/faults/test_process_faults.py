"""Kernels that change their process, leave processes running or attack the tuner are detected; the study continues."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Collection
from pathlib import Path

import pytest
from process_faults import DEEDS, ProcessFaults

import deepgen as dg
from deepgen.frontends.cli.processes import descendants
from deepgen.run.measure.base import Policy
from deepgen.run.measure.process_state import read
from deepgen.targets import host

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

LEFT = f"left-{os.getpid()}"


def left_running(before: Collection[int]) -> list[str]:
    """Processes of kernels that are still there, and our workers.

    `before`: processes of other tests, since torch's compiler and multiprocessing keep helpers.
    """
    names = [p.read_text() for p in Path("/proc").glob("[0-9]*/comm") if p.exists()]
    ours = [words(pid) for pid, one in descendants(os.getpid()).items() if pid not in before and one.running]
    return [*(name for name in names if LEFT in name), *ours]


def words(pid: int) -> str:
    """A process's command line, to identify it in a failure."""
    try:
        return f"{pid}: {Path(f'/proc/{pid}/cmdline').read_bytes().replace(bytes(1), b' ').decode()}"
    except OSError:
        return f"{pid}: gone by now"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> dg.Study:
    folder = tmp_path_factory.mktemp("processes")
    before, handler = read(), signal.getsignal(signal.SIGINT)
    others = descendants(os.getpid()).keys()
    study = dg.tune(
        dg.gemm(17, 13, 11),
        target="cpu",
        trials=len(DEEDS),
        strategy="exhaustive",
        keep_top=1,
        generator=ProcessFaults(LEFT),
        policy=Policy(min_samples=3, max_samples=5, timeout_seconds=2.0),
        baselines=False,
        out=folder / "studies",
        engine=dg.LocalEngine(jobs=2),
    )
    assert read().cores == before.cores and signal.getsignal(signal.SIGINT) is handler
    assert left_running(others) == []
    return study


@pytest.mark.parametrize("name", DEEDS)
def test_each_is_told_what_it_did_and_the_next_one_is_not(study: dg.Study, name: str) -> None:
    if name == "one core" and host.usable_cores() == 1:
        pytest.skip("there is one core only")
    deed = DEEDS[name]
    [measured] = [t.measurement for t in study.trials() if t.config["DEED"] == name]
    assert measured.verdict is deed.verdict, measured.detail
    assert deed.says in measured.detail
    assert bool(measured.samples) == measured.ok


def test_a_kernel_that_leaves_all_as_it_was_wins(study: dg.Study) -> None:
    assert DEEDS[study.best().trial.config["DEED"]].verdict is dg.Verdict.CORRECT
