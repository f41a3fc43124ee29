"""What every strategy must satisfy. A new strategy is tested here as soon as it is registered."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepgen import targets
from deepgen.kernels.sim import SimTiles
from deepgen.operators import gemm
from deepgen.space import Space
from deepgen.targets import Sim
from deepgen.targets.sim import fault, true_seconds
from deepgen.tuning import search
from deepgen.tuning.search import STRATEGIES, Setting, Strategy
from deepgen.tuning.search.base import Restorable
from deepgen.vocabulary import BadInput, Measurement, Trial, Verdict

SIM = Sim("sim", faults=0.2)


@lru_cache
def small_space() -> Space:
    space = Space("small")
    a = space.knob("A", [1, 2, 3, 4, 5])
    b = space.knob("B", [1, 2, 4, 8])
    space.knob("C", ["x", "y"])
    space.require(a * b <= 16, "product is small")
    return space


@lru_cache
def sim_space() -> Space:
    whole = SimTiles().space(gemm(64, 64, 64), targets.resolve("sim"))
    return whole.restrict({"STAGES": [1, 2], "SWIZZLE": [0, 1], "BLOCK_K": [4, 8, 16]})


@lru_cache
def odd_space() -> Space:
    """Knobs of every kind: words, orders, truths, and one that exists only under a condition."""
    space = Space("odd")
    tile = space.knob("TILE", [1, 3, 8, 48, 64])
    space.permutation("ORDER", ("m", "n", "k"))
    split = space.knob("SPLIT", [False, True])
    space.knob("PARTS", [2, 4, 8], when=split)
    space.knob("HOW", ["a", "b"])
    space.knob("SCALE", [0.5, 1.0, 2.0])
    space.derive("double", tile * 2)
    space.require(tile >= 1, "a tile has elements")
    return space


# A study knows two more ends of a trial than the simulated device.
OTHER_ENDS = {Verdict.TIMED_OUT: Verdict.NOT_RUN, Verdict.CRASHED: Verdict.UNSTABLE}


def judge(space: Space, number: int, config: dict[str, Any]) -> Trial:
    found = fault(SIM, config)
    verdict = OTHER_ENDS.get(found, found) if found else Verdict.CORRECT
    seconds = true_seconds(SIM, 10**6, config)
    timed = verdict in (Verdict.CORRECT, Verdict.UNSTABLE)
    measured = Measurement(verdict, samples=(seconds,) if timed else ())
    return Trial(number, space.rank(config), config, f"kernel-{number}", measured)


def drive(strategy: Strategy, space: Space, asks: list[int], first: int = 0) -> list[dict[str, Any]]:
    given: list[dict[str, Any]] = []
    for n in asks:
        configs = strategy.ask(n)
        for config in configs:
            strategy.tell(judge(space, first + len(given), config))
            given.append(config)
    return given


@pytest.fixture(params=sorted(STRATEGIES.names()))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_proposals_are_valid_and_never_repeated(name: str) -> None:
    space = sim_space()
    given = drive(search.make(name, Setting(space, seed=1)), space, [1, 7, 32, 60])
    assert len(given) == 100
    assert all(space.contains(c) for c in given)
    assert len({space.rank(c) for c in given}) == 100


def test_knobs_of_every_kind_are_searched(name: str) -> None:
    space = odd_space()
    given = drive(search.make(name, Setting(space, seed=1)), space, [3] * 20)
    assert all(space.contains(c) for c in given)
    assert len({space.rank(c) for c in given}) == len(given) == 60


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


@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 9), moves=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6)), min_size=3, max_size=9))
def test_a_search_resumed_after_any_event_goes_on_the_same(name: str, seed: int, moves: list[tuple[int, int]]) -> None:
    """Asks and tells in any rhythm, as a study records them: any prefix of the events gives the same next proposals."""
    space = small_space()
    events: list[tuple[str, Any]] = []
    states: dict[int, Any] = {}  # after so many events, where a strategy tells it
    strategy = search.make(name, Setting(space, seed=seed))
    asked: list[dict[str, Any]] = []
    told = 0
    for wanted, ended in moves:
        configs = strategy.ask(wanted)
        events.append(("ask", (wanted, configs)))
        if isinstance(strategy, Restorable) and (state := strategy.state()) is not None:
            states[len(events)] = json.loads(json.dumps(state))
        asked += configs
        for config in asked[told : told + ended]:
            trial = judge(space, told, config)
            strategy.tell(trial)
            events.append(("tell", trial))
            told += 1
    ranks = [space.rank(c) for c in asked]
    assert len(ranks) == len(set(ranks))
    for end, state in states.items():  # the quick way: from the state that the ask before left
        before = events[:end]
        proposed = [space.rank(c) for kind, what in before if kind == "ask" for c in what[1]]
        again = search.make(name, Setting(space, seed=seed))
        assert isinstance(again, Restorable)
        again.restore(state, proposed, [what for kind, what in before if kind == "tell"])
        for kind, what in events[end:]:
            if kind == "tell":
                again.tell(what)
            else:
                assert again.ask(what[0]) == what[1]
    for end in range(1, len(events) + 1):
        again = search.make(name, Setting(space, seed=seed))
        for kind, what in events[:end]:
            if kind == "tell":
                again.tell(what)
            else:
                assert again.ask(what[0]) == what[1]


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
