"""Every strategy on spaces of alternatives, and on spaces that are too wide to be counted."""

from __future__ import annotations

from typing import Any

import pytest

from deepgen.space import Space, relax, union
from deepgen.space.engine import TooWide
from deepgen.tuning import search
from deepgen.tuning.search import Setting
from deepgen.vocabulary import Measurement, Trial, Verdict

TRIALS = 18


def tiles(name: str, stages: list[int]) -> Space:
    space = Space(name)
    m, n, k = (space.knob(axis, [1, 2, 4, 8, 16, 32]) for axis in "mnk")
    if len(stages) > 1:
        stage = space.knob("stages", stages)
        space.require(space.derive("bytes", (m * k + k * n) * stage) <= 512, "tiles fit")
    else:
        space.require(space.derive("bytes", m * k + k * n) <= 256, "tiles fit")
    return space


@pytest.fixture(params=["union", "wide", "wide union"])
def space(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Space:
    if "wide" in request.param:

        def compile_space(*_: object) -> None:
            raise TooWide("asked for by the test")

        monkeypatch.setattr(union, "compile_space", compile_space)
        monkeypatch.setattr(relax._Relaxation, "_add", lambda *_: False)
        monkeypatch.setattr(relax, "TABLE_CELLS", 0)
    if "union" in request.param:
        return Space.union("both", {"plain": tiles("plain", [1]), "staged": tiles("staged", [1, 2, 3])})
    return tiles("staged", [1, 2, 3])


def searched(name: str, space: Space) -> list[dict[str, Any]]:
    strategy = search.make(name, Setting(space, 3, starts=[space.first()]))
    found: list[dict[str, Any]] = []
    while len(found) < TRIALS:
        for config in strategy.ask(6):
            seconds = 1.0 + abs(config["m"] - 8) + abs(config["n"] - 4) + 0.1 * config.get("stages", 0)
            measured = Measurement(Verdict.CORRECT, samples=(seconds,))
            strategy.tell(Trial(len(found), space.rank(config), config, "", measured))
            found.append(config)
    return found


@pytest.mark.parametrize("name", search.STRATEGIES.names())
def test_a_strategy_proposes_valid_configs_each_once_and_the_same_again(name: str, space: Space) -> None:
    found = searched(name, space)
    assert all(space.explain(config) == [] for config in found)
    assert len({space.rank(config) for config in found}) == len(found)
    assert searched(name, space) == found
    if "sketch" in found[0] and name != "exhaustive":
        assert {config["sketch"] for config in found} == {"plain", "staged"}
