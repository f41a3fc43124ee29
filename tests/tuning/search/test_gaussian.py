from __future__ import annotations

import numpy as np
import pytest

from deepgen.tuning.search.gaussian import Covariance, Joined, Posterior
from deepgen.tuning.search.guide import log_improvement, standardised


def line(levels: int) -> np.ndarray:
    at = np.linspace(0.0, 1.0, levels)
    return np.abs(at[:, None] - at[None, :])


@pytest.fixture
def codes() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 6, size=(80, 4))


def test_observing_one_by_one_says_the_same_as_all_at_once(codes: np.ndarray) -> None:
    kernel = Covariance([line(6)] * 4)
    y = np.sin(codes[:30].sum(axis=1))
    whole, stepwise = Posterior(kernel, Joined(codes.T)), Posterior(kernel, Joined(codes.T))
    whole.start(range(30))
    stepwise.start(range(10))
    for place in range(10, 30):
        stepwise.add(place)
    for a, b in zip(whole.predict(y), stepwise.predict(y), strict=True):
        assert np.allclose(a, b, atol=1e-8)


def test_what_ends_as_predicted_changes_no_expectation(codes: np.ndarray) -> None:
    kernel = Covariance([line(6)] * 4)
    y = np.sin(codes[:20].sum(axis=1))
    posterior, other = Posterior(kernel, Joined(codes.T)), Posterior(kernel, Joined(codes.T))
    for one in (posterior, other):
        one.start(range(20))
    mean, _ = posterior.predict(y)
    other.add_all(range(40, 50))
    expected, spread = other.predict(np.concatenate([y, mean[40:50]]))
    posterior.imagine(range(40, 50))
    assert np.allclose(mean, expected)
    assert np.allclose(posterior.spread(), spread)


@pytest.mark.parametrize("most", [1, 8, 64])
def test_joined_columns_give_the_kernel_that_each_column_gives(codes: np.ndarray, most: int) -> None:
    kernel = Covariance([line(6), line(6) ** 0.5, line(6), line(7)])
    kernel.recall(np.random.default_rng(2).normal(size=9))
    expected = np.ones((80, 80))
    for i, table in enumerate(kernel.tables):
        expected *= table[codes[:, i]][:, codes[:, i]]
    joined = Joined(codes.T, order=[2, 0, 3, 1], most=most)
    assert np.allclose(kernel.between(codes, joined), expected)
    assert np.allclose(kernel.between(codes, joined.part(np.arange(5))), expected[:, :5])


def test_fitting_finds_the_column_that_matters(codes: np.ndarray) -> None:
    kernel = Covariance([line(6)] * 4)
    before = kernel.fit(codes, standardised(1.0 + codes[:, 2].astype(float) ** 2), 1)
    after = kernel.fit(codes, standardised(1.0 + codes[:, 2].astype(float) ** 2), 60)
    assert after < before
    assert int(np.argmax(kernel.importances())) == 2


def test_the_slope_that_fitting_follows_is_that_of_its_loss(codes: np.ndarray) -> None:
    kernel = Covariance([line(6)] * 4)
    y = standardised(np.exp(np.sin(codes[:, 0] + 2.0 * codes[:, 1])))
    observed = kernel._observed(codes)
    at = np.random.default_rng(1).normal(size=9) * 0.3
    _, slope = kernel._loss(at, observed, y)
    for i in range(9):
        step = np.zeros(9)
        step[i] = 1e-5
        up, down = kernel._loss(at + step, observed, y)[0], kernel._loss(at - step, observed, y)[0]
        assert slope[i] == pytest.approx((up - down) / 2e-5, abs=1e-4)


def test_improvement_is_ordered_also_where_it_is_next_to_nothing() -> None:
    means = np.array([0.0, 1.0, 5.0, 20.0, 35.0])
    gains = log_improvement(means, np.ones(5), 0.0)
    assert (np.diff(gains) < 0).all()
    assert gains[0] == pytest.approx(np.log(1.0 / np.sqrt(2.0 * np.pi)), abs=1e-3)


def test_standardised_times_keep_their_order_and_do_not_mind_equal_ones() -> None:
    seconds = np.array([3.0, 1.0, 100.0, 1.5])
    assert np.argsort(standardised(seconds)).tolist() == np.argsort(seconds).tolist()
    assert np.isfinite(standardised(np.ones(5))).all()


def test_observing_several_at_once_or_one_by_one_is_the_same() -> None:
    rng = np.random.default_rng(3)
    at = np.linspace(0.0, 1.0, 6)
    kernel = Covariance([np.abs(at[:, None] - at[None, :])] * 3)
    pool = rng.integers(0, 6, (3, 50))
    one, many = Posterior(kernel, Joined(pool)), Posterior(kernel, Joined(pool))
    for posterior in (one, many):
        posterior.start([0, 1, 2])
    for place in (5, 9, 14):
        one.add(place)
    many.add_all([5, 9, 14])
    y = rng.normal(size=6)
    for a, b in zip(one.predict(y), many.predict(y), strict=True):
        assert a == pytest.approx(b, rel=1e-9)
    places = np.array([4, 14, 30])
    part = many.part(places)
    assert part.spread() == pytest.approx(many.spread()[places])
    part.add(2)
    many.add(30)
    assert part.spread() == pytest.approx(many.spread()[places])
