"""Samples are taken until they suffice, and no longer."""

from __future__ import annotations

import numpy as np
import pytest

from deepgen.run.measure.base import Policy
from deepgen.run.measure.race import enough, is_beaten, rough_interval, unsettled

POLICY = Policy(min_samples=5, max_samples=100, max_seconds=10.0, precision=0.01, give_up=1.5)


def taken(samples: list[float], policy: Policy = POLICY, beat: float | None = None) -> int:
    """How many of these samples are taken before they suffice."""
    count = 0
    while count < len(samples) and not enough(samples[:count], policy, beat):
        count += 1
    return count


def test_steady_runs_need_few_samples_and_noisy_ones_more() -> None:
    rng = np.random.default_rng(0)
    steady, noisy = (list(0.01 * np.exp(s * rng.standard_normal(200))) for s in (0.0005, 0.03))
    assert taken(steady) == POLICY.min_samples
    assert POLICY.min_samples < taken(noisy) <= POLICY.max_samples


def test_the_clearly_beaten_are_given_up_early() -> None:
    slow = [0.016] * 100
    assert taken(slow, beat=0.01) == 3
    assert taken(slow, beat=0.001) == 1
    assert taken(slow, beat=0.0159) == POLICY.min_samples
    assert not is_beaten([], POLICY, 1.0)


def test_how_far_behind_a_kernel_is_need_not_be_known_well() -> None:
    rng = np.random.default_rng(0)
    noisy = list(0.01 * np.exp(0.03 * rng.standard_normal(200)))
    near, far = (taken(noisy, beat=beat) for beat in (0.0099, 0.0078))
    assert near == taken(noisy) == POLICY.max_samples and far <= 15


@pytest.mark.parametrize(("slower", "most"), [(1.05, 15), (1.1, 6), (1.3, 5)])
def test_a_search_spends_little_on_kernels_that_are_certainly_slower(slower: float, most: int) -> None:
    """A kernel that is a tenth slower was run 30 times where five runs had shown it."""
    counts = []
    for seed in range(40):
        noisy = list(0.01 * slower * np.exp(0.015 * np.random.default_rng(seed).standard_normal(200)))
        counts.append(taken(noisy, beat=0.01))
        low, _ = rough_interval(noisy[: counts[-1]])
        assert low > 0.01, "it is slower beyond doubt"
    assert np.mean(counts) <= most


def test_a_suspiciously_fast_sample_is_confirmed_by_more() -> None:
    assert taken([0.01] * 4 + [0.001] + [0.01] * 50) == 10


def test_time_is_bounded() -> None:
    rng = np.random.default_rng(0)
    assert taken(list(3.0 * np.exp(rng.standard_normal(50)))) < 10
    assert taken([20.0] * 10) == 3
    assert taken([0.001, 0.01] * 100) == POLICY.max_samples


@pytest.mark.parametrize("n", [5, 6, 11, 40, 100])
def test_the_interval_holds_the_median_as_often_as_it_says(n: int) -> None:
    rng = np.random.default_rng(n)
    held = 0
    for _ in range(1000):
        low, high = rough_interval(list(rng.lognormal(0.0, 0.2, n)))
        held += low <= 1.0 <= high
    assert held >= 920  # 93.8% is the most that five samples can give


def test_scattered_samples_settle_nothing_but_outliers_do_no_harm() -> None:
    assert unsettled([1.0, 4.0] * 10)
    assert not unsettled([1.0] * 9 + [50.0])
