"""Every strategy passes the suite. A new one is tested here as soon as it is registered."""

from __future__ import annotations

import pytest

from deepgen.testing import StrategySuite
from deepgen.testing.strategies import sim_space, small_space
from deepgen.tuning import search
from deepgen.tuning.search import STRATEGIES, Setting
from deepgen.vocabulary import BadInput


class TestStrategies(StrategySuite):
    strategies = sorted(STRATEGIES.names())


def test_starts_come_first_where_the_order_is_free() -> None:
    space = sim_space()
    start = space.at(1234)
    strategy = search.make("random", Setting(space, seed=1, starts=[start]))
    given = strategy.ask(50)
    assert given[0] == start
    assert given.count(start) == 1


def test_exhaustive_starts_where_it_is_told() -> None:
    space = small_space()
    strategy = search.make("exhaustive", Setting(space, options={"start_from": 5}))
    assert [space.rank(c) for c in strategy.ask(3)] == [5, 6, 7]
    with pytest.raises(BadInput):
        search.make("exhaustive", Setting(space, options={"start_from": 10**6}))


def test_an_unknown_strategy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadInput, match="exhaustive"):
        search.check("psychic")
