"""What every strategy must satisfy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

import pytest

from deepgen import targets
from deepgen.kernels.sim import SimTiles
from deepgen.operators import gemm
from deepgen.space import Space
from deepgen.targets import Sim
from deepgen.targets.sim import fault, true_seconds
from deepgen.tuning import search
from deepgen.tuning.search import Setting, Strategy, StrategyKind
from deepgen.tuning.search.base import Restorable
from deepgen.vocabulary import Measurement, Missing, Trial, Verdict

try:
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st
except ImportError as error:
    raise Missing(
        "hypothesis",
        blocks="the suite of strategies draws its cases with it",
        remedy="Install it with `pip install hypothesis`.",
    ) from error

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
    """Knobs of every kind: words, permutations, booleans, and one that exists only under a condition."""
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


# A study has two more kinds of failure than the simulated device.
OTHER_ENDS = {Verdict.TIMED_OUT: Verdict.NOT_RUN, Verdict.CRASHED: Verdict.UNSTABLE}


def judge(space: Space, number: int, config: dict[str, Any]) -> Trial:
    failure = fault(SIM, config)
    verdict = OTHER_ENDS.get(failure, failure) if failure else Verdict.CORRECT
    seconds = true_seconds(SIM, 10**6, config)
    timed = verdict in (Verdict.CORRECT, Verdict.UNSTABLE)
    measured = Measurement(verdict, samples=(seconds,) if timed else ())
    return Trial(number, space.rank(config), config, f"kernel-{number}", measured)


def drive(strategy: Strategy, space: Space, asks: list[int], first: int = 0) -> list[dict[str, Any]]:
    proposed: list[dict[str, Any]] = []
    for n in asks:
        configs = strategy.ask(n)
        for config in configs:
            strategy.tell(judge(space, first + len(proposed), config))
            proposed.append(config)
    return proposed


class StrategySuite:
    """Tests of strategies. A subclass lists names or classes."""

    strategies: ClassVar[Sequence[str | StrategyKind]]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "strategy_kind" in metafunc.fixturenames:
            metafunc.parametrize("strategy_kind", self.strategies, ids=search.name_of)

    def test_proposals_are_valid_and_never_repeated(self, strategy_kind: str | StrategyKind) -> None:
        space = sim_space()
        proposed = drive(search.make(strategy_kind, Setting(space, seed=1)), space, [1, 7, 32, 60])
        assert len(proposed) == 100
        assert all(space.contains(c) for c in proposed)
        assert len({space.rank(c) for c in proposed}) == 100

    def test_knobs_of_every_kind_are_searched(self, strategy_kind: str | StrategyKind) -> None:
        space = odd_space()
        proposed = drive(search.make(strategy_kind, Setting(space, seed=1)), space, [3] * 20)
        assert all(space.contains(c) for c in proposed)
        assert len({space.rank(c) for c in proposed}) == len(proposed) == 60

    def test_the_same_seed_gives_the_same_search(self, strategy_kind: str | StrategyKind) -> None:
        space = sim_space()
        runs = [drive(search.make(strategy_kind, Setting(space, seed=3)), space, [8] * 6) for _ in range(2)]
        assert runs[0] == runs[1]

    def test_a_small_space_is_exhausted_and_then_nothing_more_comes(self, strategy_kind: str | StrategyKind) -> None:
        space = small_space()
        strategy = search.make(strategy_kind, Setting(space, seed=2))
        proposed = drive(strategy, space, [7] * 20)
        assert len(proposed) == space.count()
        assert {space.rank(c) for c in proposed} == set(range(space.count()))
        assert strategy.ask(5) == []

    @settings(
        max_examples=6,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    )
    @given(
        seed=st.integers(0, 9), moves=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6)), min_size=3, max_size=9)
    )
    def test_a_search_resumed_after_any_event_goes_on_the_same(
        self, strategy_kind: str | StrategyKind, seed: int, moves: list[tuple[int, int]]
    ) -> None:
        """Asks and tells in any order, as studies record them: after any prefix the next proposals are the same."""
        space = small_space()
        events: list[tuple[str, Any]] = []
        states: dict[int, Any] = {}  # after that many events, if the strategy can save its state
        strategy = search.make(strategy_kind, Setting(space, seed=seed))
        asked: list[dict[str, Any]] = []
        reported = 0
        for wanted, ended in moves:
            configs = strategy.ask(wanted)
            events.append(("ask", (wanted, configs)))
            if isinstance(strategy, Restorable) and (state := strategy.state()) is not None:
                states[len(events)] = json.loads(json.dumps(state))
            asked += configs
            for config in asked[reported : reported + ended]:
                trial = judge(space, reported, config)
                strategy.tell(trial)
                events.append(("tell", trial))
                reported += 1
        ranks = [space.rank(c) for c in asked]
        assert len(ranks) == len(set(ranks))
        for end, state in states.items():  # the fast way: from the state saved after the previous ask
            before = events[:end]
            proposed = [space.rank(c) for kind, what in before if kind == "ask" for c in what[1]]
            again = search.make(strategy_kind, Setting(space, seed=seed))
            assert isinstance(again, Restorable)
            again.restore(state, proposed, [what for kind, what in before if kind == "tell"])
            for kind, what in events[end:]:
                if kind == "tell":
                    again.tell(what)
                else:
                    assert again.ask(what[0]) == what[1]
        for end in range(1, len(events) + 1):
            again = search.make(strategy_kind, Setting(space, seed=seed))
            for kind, what in events[:end]:
                if kind == "tell":
                    again.tell(what)
                else:
                    assert again.ask(what[0]) == what[1]

    def test_several_asks_before_any_tell(self, strategy_kind: str | StrategyKind) -> None:
        space = sim_space()
        strategy = search.make(strategy_kind, Setting(space, seed=6))
        batches = [strategy.ask(5) for _ in range(4)]
        ranks = [space.rank(c) for batch in batches for c in batch]
        assert len(ranks) == len(set(ranks)) == 20

    def test_failures_are_information_not_errors(self, strategy_kind: str | StrategyKind) -> None:
        space = small_space()
        strategy = search.make(strategy_kind, Setting(space, seed=7))
        for number, config in enumerate(strategy.ask(10)):
            strategy.tell(Trial(number, space.rank(config), config, "k", Measurement(Verdict.CRASHED, "boom")))
        assert strategy.ask(3)
