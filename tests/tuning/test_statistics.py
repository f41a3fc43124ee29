"""Comparison: real differences are detected, noise is not mistaken for one."""

from __future__ import annotations

import numpy as np
import pytest
from disturbed_races import HOLDS, KINDS, WIDTH, coverage

from deepgen.run.measure.race import paired_ratio


def samples(mean: float, seed: int, rounds: int = 30) -> list[float]:
    rng = np.random.default_rng(seed)
    return list(mean * np.exp(0.02 * rng.standard_normal(rounds)))


def test_a_three_percent_gap_is_seen_through_two_percent_noise() -> None:
    seen = [paired_ratio(samples(1.03, 2 * s), samples(1.0, 2 * s + 1)) for s in range(100)]
    assert sum(r.low > 1.0 for r in seen) >= 95


def test_equals_are_called_a_tie() -> None:
    seen = [paired_ratio(samples(1.0, 2 * s), samples(1.0, 2 * s + 1)) for s in range(100)]
    assert sum(r.no_slower for r in seen) >= 90


@pytest.mark.parametrize("rounds", [8, 10, 31, 60, 240])
def test_an_interval_holds_the_truth_as_often_as_it_says(rounds: int) -> None:
    seen = [paired_ratio(samples(1.03, 2 * s, rounds), samples(1.0, 2 * s + 1, rounds)) for s in range(500)]
    assert 0.98 <= sum(r.low <= 1.03 <= r.high for r in seen) / 500 <= 0.999
    assert all(r.low <= r.estimate <= r.high for r in seen)


def test_few_rounds_leave_everything_open_that_they_saw() -> None:
    for rounds in range(1, 8):
        found = paired_ratio([1.0 + i for i in range(rounds)], [1.0] * rounds)
        assert (round(found.low, 9), round(found.high, 9)) == (1.0, rounds)


def test_a_slow_round_that_hits_both_changes_little() -> None:
    a, b = samples(1.1, 1), samples(1.0, 2)
    for i in (3, 4, 5):
        a[i] *= 10
        b[i] *= 10
    assert 1.07 < paired_ratio(a, b).estimate < 1.13


def test_a_wide_interval_around_a_large_difference_is_not_a_tie() -> None:
    noisy = [1.0, 3.0, 0.5, 2.0, 1.4]
    assert not paired_ratio(noisy, [1.0] * 5).no_slower


@pytest.mark.parametrize("kind", KINDS)
def test_intervals_of_disturbed_finals_hold_and_are_narrow(kind: str) -> None:
    """In 1,000 finals of each kind they held in 98% to 99%."""
    row = coverage(kind, 100)
    assert row.hold >= HOLDS and row.median_width <= WIDTH
