from __future__ import annotations

from dataclasses import replace
from statistics import mean

import numpy as np
import pytest

from deepgen.space import Space
from deepgen.tuning import search
from deepgen.tuning.search import Past, Setting
from deepgen.tuning.search.model import Model
from deepgen.tuning.search.recorded import Contest, RecordedSpace, replay
from deepgen.vocabulary import Trial


def model(recorded: RecordedSpace, *history: Past) -> Model:
    made = search.make("model", Setting(recorded.space, 0, history=history))
    assert isinstance(made, Model)
    return made


def run(strategy: Model, recorded: RecordedSpace, trials: int) -> None:
    for number in range(trials):
        (config,) = strategy.ask(1)
        strategy.tell(Trial(number, recorded.space.rank(config), config, "", recorded.measure(config)))


@pytest.fixture(scope="module")
def cold(recorded: RecordedSpace) -> list[float]:
    """The score of a search without any earlier study, for several seeds."""
    return [mean(replay(recorded, Contest("model", 15), seed)) for seed in range(4)]


def test_the_first_configs_come_from_the_earlier_study(recorded: RecordedSpace, partner: RecordedSpace) -> None:
    strategy = model(recorded, partner.past)
    assert strategy.learned_from == ["partner"]
    (first,) = strategy.ask(1)
    seconds = partner.measure(first).seconds
    assert seconds is not None
    assert partner.best / seconds > 0.99


def test_an_earlier_study_saves_trials(recorded: RecordedSpace, partner: RecordedSpace, cold: list[float]) -> None:
    warm = [mean(replay(recorded, Contest("model", 15, history=[partner.past]), seed)) for seed in range(len(cold))]
    assert mean(warm) > mean(cold)


def test_a_study_of_another_space_is_ignored(recorded: RecordedSpace) -> None:
    other = Space("other")
    other.knob("X", [1, 2, 3])
    trials = [replace(t, config={"X": 1 + i % 3}) for i, t in enumerate(recorded.past.trials[:30])]
    strategy = model(recorded, Past("other", other, trials))
    assert strategy.learned_from == []
    assert strategy.ask(5) == model(recorded).ask(5)


def test_an_earlier_study_that_misleads_is_dropped(recorded: RecordedSpace) -> None:
    turned = [
        replace(t, measurement=replace(t.measurement, samples=(1e-6 / t.seconds,)))
        for t in recorded.past.trials
        if t.seconds is not None
    ]
    strategy = model(recorded, Past("upside down", recorded.space, turned))
    assert strategy.learned_from == ["upside down"]
    run(strategy, recorded, 40)
    assert strategy.learned_from == []


def test_a_study_that_failed_everywhere_has_nothing_to_say(recorded: RecordedSpace) -> None:
    failed = [t for t in recorded.past.trials if not t.ok]
    assert failed
    assert model(recorded, Past("failed", recorded.space, failed)).learned_from == []


def test_a_study_with_other_values_and_a_knob_less_still_helps(
    recorded: RecordedSpace, partner: RecordedSpace, cold: list[float]
) -> None:
    some = [
        replace(t, config={k: v for k, v in t.config.items() if k != "PAD"})
        for t in partner.past.trials
        if t.config["BLOCK"] != 128 and t.config["PAD"] == 0
    ]
    past = Past("narrower", Space.from_points("narrower", [t.config for t in some]), some)
    warm = [mean(replay(recorded, Contest("model", 15, history=[past]), seed)) for seed in range(3)]
    assert mean(warm) > mean(cold[:3])
    assert np.isfinite(warm).all()
