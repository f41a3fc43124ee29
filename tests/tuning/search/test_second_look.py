from __future__ import annotations

import numpy as np

from deepgen.space import Space
from deepgen.tuning.search.second_look import SecondLook
from deepgen.vocabulary import Measurement, Trial, Verdict


def tiles() -> Space:
    space = Space("tiles")
    space.knob("TILE", [1, 2, 4, 8, 16, 32])
    space.knob("UNROLL", [1, 2, 4, 8])
    space.knob("STAGES", [1, 2, 3, 4])
    return space


def spilled(number: int) -> int:
    return 400 if number % 3 == 0 else 0


def trial(space: Space, number: int) -> Trial:
    config = space.at(number)
    seconds = (1.0 + 0.02 * config["TILE"]) * (6.0 if spilled(number) else 1.0)
    facts = {"spilled_bytes": spilled(number), "registers": 64 + number % 8, "build_seconds": 0.1 * number}
    return Trial(number, number, config, "", Measurement(Verdict.CORRECT, samples=(seconds,)), facts)


def test_kernels_that_spill_are_seen_to_be_hopeless_and_good_ones_are_run() -> None:
    space = tiles()
    order = np.random.default_rng(0).permutation(space.count())
    look = SecondLook(space)
    for number in order[:60].tolist():
        look.hear(trial(space, number))
    rest = order[60:].tolist()
    hopeless = [n for n in rest if look.opinions([n])[0].hopeless(trial(space, n).build_facts)]
    assert all(spilled(n) for n in hopeless)
    assert len(hopeless) > 0.5 * sum(spilled(n) > 0 for n in rest)


def test_everything_is_run_while_little_is_known() -> None:
    space = tiles()
    look = SecondLook(space)
    for number in range(20):
        look.hear(trial(space, number))
    assert not any(look.opinions([n])[0].hopeless(trial(space, n).build_facts) for n in range(20, 60))
