"""Annealing, evolution and exhaustive search on a small recording."""

from __future__ import annotations

from statistics import mean

import pytest

from deepgen.tuning import search
from deepgen.tuning.search import Setting
from deepgen.tuning.search.base import parse_options
from deepgen.tuning.search.recorded import Contest, RecordedSpace, replay
from deepgen.vocabulary import BadInput


@pytest.mark.parametrize("strategy", ["annealing", "evolution"])
def test_searching_around_good_configs_is_better_than_chance(recorded: RecordedSpace, strategy: str) -> None:
    def score(name: str) -> float:
        return mean(mean(replay(recorded, Contest(name, 80), seed)) for seed in range(8))

    assert score(strategy) > score("random")


def test_exhaustive_search_may_be_shuffled(recorded: RecordedSpace) -> None:
    space = recorded.space
    strategy = search.make("exhaustive", Setting(space, 1, options={"shuffled": True}))
    ranks = [space.rank(c) for c in strategy.ask(space.count() + 5)]
    assert sorted(ranks) == list(range(space.count()))
    assert ranks != sorted(ranks)


def test_options_are_read_from_words() -> None:
    words = ["library=lightgbm", "population=100", "mutation=0.5", "shuffled=true"]
    assert parse_options(words) == {"library": "lightgbm", "population": 100, "mutation": 0.5, "shuffled": True}
    with pytest.raises(BadInput, match="name=value"):
        parse_options(["library"])


def test_an_option_of_the_wrong_type_is_refused(recorded: RecordedSpace) -> None:
    with pytest.raises(BadInput, match="population"):
        search.make("evolution", Setting(recorded.space, options={"population": "many"}))
