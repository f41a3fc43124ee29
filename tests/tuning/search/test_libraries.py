from __future__ import annotations

import importlib.util

import pytest

from deepgen.tuning import search
from deepgen.tuning.search import Setting, regressors
from deepgen.tuning.search.recorded import Contest, RecordedSpace, replay
from deepgen.tuning.search.regressors import LIBRARIES
from deepgen.vocabulary import BadInput, Missing


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    return name


@pytest.mark.slow
def test_every_library_is_better_than_chance_and_repeats_itself(recorded: RecordedSpace, library: str) -> None:
    contest = Contest("model", 25, {"library": library})
    guided = [replay(recorded, contest, seed)[-1] for seed in range(2)]
    chance = [replay(recorded, Contest("random", 25), seed)[-1] for seed in range(2)]
    assert sum(guided) > sum(chance)
    assert replay(recorded, contest, 0)[-1] == guided[0]


def test_batches_of_every_library_hold_no_config_twice(recorded: RecordedSpace, library: str) -> None:
    strategy = search.make("model", Setting(recorded.space, options={"library": library}))
    ranks = [recorded.space.rank(c) for _ in range(3) for c in strategy.ask(9)]
    assert len(set(ranks)) == 27


@pytest.mark.parametrize("strategy", ["model", "constrained_ga"])
def test_a_library_that_is_missing_is_named_and_not_replaced(
    recorded: RecordedSpace, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regressors.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Missing, match="pip install scikit-learn"):
        search.make(strategy, Setting(recorded.space, options={"library": "sklearn"}))
    assert search.make(strategy, Setting(recorded.space)).ask(1)


def test_a_study_records_all_options_with_the_library(recorded: RecordedSpace) -> None:
    assert search.settle("model", {}) == {"library": "numpy"}
    assert search.settle("evolution", {"population": 7})["population"] == 7
    with pytest.raises(BadInput, match="abacus"):
        search.settle("model", {"library": "abacus"})
    for name in search.STRATEGIES.own:
        search.make(name, Setting(recorded.space, options=search.settle(name, {})))
