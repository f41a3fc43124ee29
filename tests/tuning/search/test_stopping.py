from __future__ import annotations

import pytest

from deepgen.tuning.progress import Goals, Stopping
from deepgen.vocabulary import BadInput, Measurement, Trial, Verdict


def trial(number: int, seconds: float | None) -> Trial:
    right = Measurement(Verdict.CORRECT, samples=(seconds,)) if seconds else Measurement(Verdict.CRASHED)
    return Trial(number, number, {}, "", right)


def after(stopping: Stopping, times: list[float | None]) -> str | None:
    for number, seconds in enumerate(times):
        stopping.hear(trial(number, seconds))
    return stopping.reason()


def test_nothing_stops_a_search_without_goals() -> None:
    assert after(Stopping(Goals()), [1.0] * 500) is None


def test_it_stops_at_the_target_speedup_over_the_first_right_trial() -> None:
    goals = Goals(target_speedup=2.0)
    assert after(Stopping(goals), [None, 1.0, 0.6]) is None
    reason = after(Stopping(goals), [None, 1.0, 0.6, 0.5])
    assert reason is not None and "2.00 times" in reason


def test_a_reference_that_is_given_counts_instead() -> None:
    assert after(Stopping(Goals(target_speedup=2.0), reference=0.8), [1.0, 0.5]) is None
    assert after(Stopping(Goals(target_speedup=2.0), reference=0.8), [1.0, 0.4]) is not None


def test_it_stops_when_it_has_converged_and_tiny_gains_do_not_count() -> None:
    assert after(Stopping(Goals(patience=3)), [1.0, 0.9, 0.9, 0.9]) is None
    assert after(Stopping(Goals(patience=3)), [1.0, 0.9, 0.8999, None, 0.8998]) is not None
    assert after(Stopping(Goals(patience=3)), [1.0, 0.9, 1.0, 0.8, 1.0]) is None


def test_failures_alone_are_not_convergence() -> None:
    assert after(Stopping(Goals(patience=3)), [None] * 10) is None


@pytest.mark.parametrize("goals", [{"target_speedup": 0.0}, {"patience": 0}])
def test_goals_without_sense_are_refused(goals: dict[str, float]) -> None:
    with pytest.raises(BadInput, match=r"positive|at least"):
        Goals(**goals)  # type: ignore[arg-type]
