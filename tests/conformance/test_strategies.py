"""What every strategy must satisfy. A new strategy is tested here as soon as it is registered."""

from __future__ import annotations

from typing import Any

import pytest

from deepgen import search, targets
from deepgen.generators.sim import SimTiles
from deepgen.operators import gemm
from deepgen.search import STRATEGIES, Setting, Strategy
from deepgen.space import Space
from deepgen.targets import Sim
from deepgen.targets.sim import fault, true_seconds
from deepgen.vocabulary import BadInput, Measurement, Trial, Verdict

SIM = Sim("sim", faults=0.2)


def small_space() -> Space:
    space = Space("small")
    a = space.knob("A", [1, 2, 3, 4, 5])
    b = space.knob("B", [1, 2, 4, 8])
    space.knob("C", ["x", "y"])
    space.require(a * b <= 16, "product is small")
    return space


def sim_space() -> Space:
    return SimTiles().space(gemm(64, 64, 64), targets.resolve("sim"))


def judge(space: Space, number: int, config: dict[str, Any]) -> Trial:
    verdict = fault(SIM, config)
    seconds = true_seconds(SIM, 10**6, config)
    measured = Measurement(verdict or Verdict.CORRECT, samples=() if verdict else (seconds,))
    return Trial(number, space.rank(config), config, f"kernel-{number}", measured)


def drive(strategy: Strategy, space: Space, asks: list[int], first: int = 0) -> list[dict[str, Any]]:
    given: list[dict[str, Any]] = []
    for n in asks:
        configs = strategy.ask(n)
        for config in configs:
            strategy.tell(judge(space, first + len(given), config))
            given.append(config)
    return given


@pytest.fixture(params=sorted(STRATEGIES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_proposals_are_valid_and_never_repeated(name: str) -> None:
    space = sim_space()
    given = drive(search.make(name, Setting(space, seed=1)), space, [1, 7, 32, 60])
    assert len(given) == 100
    assert all(space.contains(c) for c in given)
    assert len({space.rank(c) for c in given}) == 100


def test_the_same_seed_gives_the_same_search(name: str) -> None:
    space = sim_space()
    runs = [drive(search.make(name, Setting(space, seed=3)), space, [8] * 6) for _ in range(2)]
    assert runs[0] == runs[1]


def test_a_small_space_is_exhausted_and_then_nothing_more_comes(name: str) -> None:
    space = small_space()
    strategy = search.make(name, Setting(space, seed=2))
    given = drive(strategy, space, [7] * 20)
    assert len(given) == space.count()
    assert {space.rank(c) for c in given} == set(range(space.count()))
    assert strategy.ask(5) == []


def test_replay_of_any_prefix_continues_the_same_search(name: str) -> None:
    space = sim_space()
    whole = drive(search.make(name, Setting(space, seed=5)), space, [4] * 10)
    for cut in range(10):
        strategy = search.make(name, Setting(space, seed=5))
        prefix = drive(strategy, space, [4] * cut)
        assert prefix + drive(strategy, space, [4] * (10 - cut), first=len(prefix)) == whole


def test_several_asks_before_any_tell(name: str) -> None:
    space = sim_space()
    strategy = search.make(name, Setting(space, seed=6))
    batches = [strategy.ask(5) for _ in range(4)]
    ranks = [space.rank(c) for batch in batches for c in batch]
    assert len(ranks) == len(set(ranks)) == 20


def test_failures_are_information_not_errors(name: str) -> None:
    space = small_space()
    strategy = search.make(name, Setting(space, seed=7))
    for number, config in enumerate(strategy.ask(10)):
        strategy.tell(Trial(number, space.rank(config), config, "k", Measurement(Verdict.CRASHED, "boom")))
    assert strategy.ask(3)


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
