"""A doubted peak is remeasured once per family of impossible times, and again when the machine may be quieter."""

from __future__ import annotations

import shutil

import pytest
from faulty_kernels import TARGET, build, kernel

from deepgen.operators import gemm
from deepgen.run.measure import limits
from deepgen.run.measure.base import Policy, RunnerOptions, Task
from deepgen.run.measure.supervisor import Supervisor
from deepgen.vocabulary import Verdict

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

IMPOSSIBLE, POSSIBLE = 100.0, 1e-9  # seconds a run at the peak
TASK = Task(gemm(37, 29, 23), TARGET, policy=Policy(min_samples=5, max_samples=6))


def verdicts(peaks: list[float], count: int) -> list[Verdict]:
    """The verdicts of `count` measurements of one correct kernel; `peaks` are the results of remeasuring the peak,
    consumed in order.
    """
    made = kernel()
    runner = Supervisor(TASK, RunnerOptions(least_seconds=IMPOSSIBLE, least_again=lambda: peaks.pop(0)))
    try:
        return [runner.measure(made, build(made)).verdict for _ in range(count)]
    finally:
        runner.close()


def test_a_family_of_impossible_times_costs_one_measured_peak() -> None:
    peaks = [IMPOSSIBLE, POSSIBLE]
    assert verdicts(peaks, 2) == [Verdict.UNSTABLE] * 2
    assert peaks == [POSSIBLE], "the first one was confirmed, so the second did not ask"


def test_a_calmer_phase_later_still_shows_the_higher_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PEAK_HOLDS", 0.0)
    peaks = [IMPOSSIBLE, POSSIBLE]
    assert verdicts(peaks, 2) == [Verdict.UNSTABLE, Verdict.CORRECT]
    assert not peaks
