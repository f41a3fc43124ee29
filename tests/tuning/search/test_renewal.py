"""A guide is renewed in the background while the previous one keeps proposing: results must not depend on thread
timing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from deepgen.tuning.search import Setting, Strategy, make
from deepgen.tuning.search import model as model_module
from deepgen.tuning.search.base import Restorable
from deepgen.tuning.search.gaussian import Covariance, Joined, Posterior
from deepgen.tuning.search.recorded import RecordedSpace
from deepgen.vocabulary import Measurement, Trial, Verdict

TRIALS = 60


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat the space as a large one, from which a pool is drawn."""
    for name, value in {"WHOLE": 100, "DRAWN": 200}.items():
        monkeypatch.setattr(model_module, name, value)


class Lazily(Future[Any]):
    """Work that is done when its result is needed: the slowest possible thread."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self.work = work

    def result(self, timeout: float | None = None) -> Any:
        return self.work()


def at_once(work: Callable[[], Any]) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(work())
    return future


def trial(recorded: RecordedSpace, number: int, rank: int) -> Trial:
    config = recorded.space.at(rank)
    # Nothing is learned from some trials: they must not be proposed again either.
    unsettled = Measurement(Verdict.UNSTABLE, "no two runs agree") if number % 7 == 6 else None
    return Trial(number, rank, config, "", unsettled or recorded.measure(config))


def windowed(
    strategy: Strategy, recorded: RecordedSpace, again: Callable[..., Strategy] = lambda old, *_: old
) -> list[int]:
    """The ranks of a search that has up to six trials in flight and asks for three; `again` may replace it after an
    ask.
    """
    ranks: list[int] = []
    trials: list[Trial] = []
    while len(trials) < TRIALS:
        if len(ranks) - len(trials) <= 3:
            ranks += [recorded.space.rank(config) for config in strategy.ask(3)]
            strategy = again(strategy, ranks, trials)
        else:
            trials.append(trial(recorded, len(trials), ranks[len(trials)]))
            strategy.tell(trials[-1])
    return ranks


def test_a_search_is_the_same_however_long_its_renewals_take(
    recorded: RecordedSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting(recorded.space, seed=3)
    by_thread = windowed(make("model", setting), recorded)
    begun: list[Lazily] = []
    monkeypatch.setattr(model_module, "in_background", lambda work: begun.append(Lazily(work)) or begun[-1])
    lazily = windowed(make("model", setting), recorded)
    monkeypatch.setattr(model_module, "in_background", at_once)
    assert by_thread == lazily == windowed(make("model", setting), recorded)
    assert len(begun) >= 5 and len(set(by_thread)) == len(by_thread)


def test_proposals_do_not_wait_for_a_renewal(recorded: RecordedSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy: Any = make("model", Setting(recorded.space, seed=3))
    waited: list[int] = []

    class Never(Lazily):
        def result(self, timeout: float | None = None) -> Any:
            waited.append(strategy._renewal[0].due - len(strategy._learned))
            return self.work()

    monkeypatch.setattr(model_module, "in_background", Never)
    windowed(strategy, recorded)
    assert waited and max(waited) <= 0  # only once it is due


def test_with_nothing_under_way_a_renewal_is_made_at_once(
    recorded: RecordedSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_module, "in_background", lambda work: pytest.fail("there is nothing to do meanwhile"))
    strategy = make("model", Setting(recorded.space, seed=3))
    for number in range(TRIALS):
        (config,) = strategy.ask(1)
        strategy.tell(trial(recorded, number, recorded.space.rank(config)))


def test_a_search_goes_on_from_a_state_in_which_a_renewal_is_under_way(recorded: RecordedSpace) -> None:
    setting = Setting(recorded.space, seed=3)
    renewing = 0

    def again(strategy: Any, ranks: list[int], trials: list[Trial]) -> Strategy:
        nonlocal renewing
        state = strategy.state()
        if state is None:
            return strategy  # type: ignore[no-any-return]
        renewing += state["renewal"] is not None
        fresh = make("model", setting)
        assert isinstance(fresh, Restorable)
        fresh.restore(json.loads(json.dumps(state)), ranks, trials)
        return fresh

    assert windowed(make("model", setting), recorded, again) == windowed(make("model", setting), recorded)
    assert renewing >= 5


@pytest.mark.parametrize("change", [{"after": 10**6}, {"due": 0}, {"pending": [10**9]}, {"fit": 1}])
def test_a_renewal_that_cannot_be_its_own_is_refused(recorded: RecordedSpace, change: dict[str, Any]) -> None:
    setting = Setting(recorded.space, seed=3)
    refused = 0

    def again(strategy: Any, ranks: list[int], trials: list[Trial]) -> Strategy:
        nonlocal refused
        state = strategy.state()
        if state is not None and state["renewal"] is not None:
            fresh = make("model", setting)
            assert isinstance(fresh, Restorable)
            with pytest.raises(ValueError):
                fresh.restore({**state, "renewal": {**state["renewal"], **change}}, ranks, trials)
            refused += 1
        return strategy  # type: ignore[no-any-return]

    windowed(make("model", setting), recorded, again)
    assert refused


def test_what_an_error_says_in_the_thread_reaches_the_search(
    recorded: RecordedSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("in the thread")

    strategy = make("model", Setting(recorded.space, seed=3))

    def again(strategy: Any, ranks: list[int], trials: list[Trial]) -> Strategy:
        if len(trials) > 20:
            monkeypatch.setattr(model_module, "draw_pool", broken)
        return strategy  # type: ignore[no-any-return]

    with pytest.raises(ZeroDivisionError, match="in the thread"):
        windowed(strategy, recorded, again)


def test_a_pool_that_grew_is_predicted_as_if_it_had_been_whole() -> None:
    rng = np.random.default_rng(0)
    columns = rng.integers(0, 5, size=(4, 60))
    distances = [np.abs(np.subtract.outer(np.arange(5), np.arange(5))) / 4.0] * 4
    kernel, y, observed = Covariance(distances), rng.normal(size=8), [0, 3, 7, 9, 12, 20, 33, 39]
    whole, grown = Posterior(kernel, Joined(columns)), Posterior(kernel, Joined(columns[:, :40]))
    whole.start(observed)
    grown.start(observed)
    grown.widen(Joined(columns), observed)
    for posterior in (whole, grown):
        posterior.add(55)
    for one, other in zip(whole.predict(np.append(y, 0.3)), grown.predict(np.append(y, 0.3)), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)
