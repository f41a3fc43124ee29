from __future__ import annotations

import math
from typing import Any

from deepgen.space import Space
from deepgen.tuning import search
from deepgen.tuning.search import Setting
from deepgen.vocabulary import Measurement, Trial, Verdict

KNOBS = 14


def trillions() -> Space:
    space = Space("trillions")
    knobs = [space.knob(f"K{i}", [1, 2, 4, 8, 16, 32, 64, 128]) for i in range(KNOBS)]
    space.require(knobs[0] * knobs[1] * knobs[2] <= 4096, "a block fits")
    space.derive("work", knobs[0] * knobs[1])
    return space


def slowness(config: dict[str, Any]) -> float:
    return 1.0 + sum(0.1 * (math.log2(config[f"K{i}"]) - i % 7) ** 2 for i in range(KNOBS))


def best_of(name: str, space: Space, trials: int) -> float:
    strategy = search.make(name, Setting(space, 0))
    best = math.inf
    for number in range(0, trials, 3):
        for i, config in enumerate(strategy.ask(3)):
            best = min(best, slowness(config))
            measured = Measurement(Verdict.CORRECT, samples=(slowness(config),))
            strategy.tell(Trial(number + i, space.rank(config), config, "", measured))
    return best


def test_a_space_too_large_to_be_listed_is_searched_well() -> None:
    space = trillions()
    assert space.count() > 10**12
    assert best_of("model", space, 90) < 0.5 * best_of("random", space, 90)
