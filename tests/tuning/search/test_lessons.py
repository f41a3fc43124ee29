"""What a model learns from trials without a clear result."""

from __future__ import annotations

import pytest

from deepgen.tuning.search.guide import Lesson, Lessons
from deepgen.vocabulary import Measurement, Trial, Verdict


def trial(rank: int, verdict: Verdict, *samples: float) -> Trial:
    return Trial(rank, rank, {}, "", Measurement(verdict, "why", samples))


def test_a_kernel_that_was_not_run_counts_as_slow_and_not_as_failed() -> None:
    lessons = Lessons()
    assert lessons.of(trial(0, Verdict.CORRECT, 3.0)) == [Lesson(0, 3.0)]
    assert lessons.of(trial(1, Verdict.CORRECT, 2.0)) == [Lesson(1, 2.0)]
    assert lessons.of(trial(2, Verdict.NOT_RUN)) == [Lesson(2, 4.0)]


@pytest.mark.parametrize("verdict", [Verdict.CRASHED, Verdict.BUILD_FAILED, Verdict.WRONG, Verdict.REFUSED])
def test_a_failure_is_a_lesson_of_its_own(verdict: Verdict) -> None:
    assert Lessons().of(trial(0, verdict)) == [Lesson(0, None)]


def test_an_unsettled_time_counts_but_sets_no_record() -> None:
    lessons = Lessons()
    assert lessons.of(trial(0, Verdict.UNSTABLE, 1.0)) == [], "there is nothing to hold it against"
    assert lessons.of(trial(1, Verdict.CORRECT, 2.0)) == [Lesson(1, 2.0)]
    assert lessons.of(trial(2, Verdict.UNSTABLE, 5.0)) == [Lesson(2, 5.0)]
    assert lessons.of(trial(3, Verdict.UNSTABLE, 1e-9)) == [Lesson(3, 2.0)]
    assert lessons.of(trial(4, Verdict.UNSTABLE)) == []
    assert lessons.of(trial(5, Verdict.NOT_RUN)) == [Lesson(5, 4.0)], "the record is still the settled one"
