"""A long search by `model`: with many trials, configs are chosen in batches, ahead of time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deepgen.tuning.search import Setting, Strategy, make
from deepgen.tuning.search import model as model_module
from deepgen.tuning.search.base import Restorable
from deepgen.tuning.search.recorded import RecordedSpace
from deepgen.vocabulary import Measurement, Trial, Verdict

ASKS = [3, 1, 4, 2, 16, 20, 1, 3] * 3


@pytest.fixture(autouse=True)
def soon_late(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LATE": 30, "LATE_DRAWN": 128, "LATE_DRAW": 20, "AHEAD": 8}.items():
        monkeypatch.setattr(model_module, name, value)


def trial(recorded: RecordedSpace, number: int, config: dict[str, Any]) -> Trial:
    measured = Measurement(Verdict.NOT_RUN, "slow") if number % 11 == 10 else recorded.measure(config)
    return Trial(number, recorded.space.rank(config), config, "", measured)


def test_a_long_search_goes_on_from_its_state_as_if_it_had_not_ended(recorded: RecordedSpace) -> None:
    setting = Setting(recorded.space, seed=4)
    strategy = make("model", setting)
    ranks: list[int] = []
    trials: list[Trial] = []
    restored = 0
    for n in ASKS[:20]:
        assert isinstance(strategy, Restorable)
        given = strategy.ask(n)
        ranks += [recorded.space.rank(c) for c in given]
        if state := strategy.state():
            strategy = make("model", setting)  # the next ask uses the restored state
            assert isinstance(strategy, Restorable)
            strategy.restore(json.loads(json.dumps(state)), ranks, trials)
            restored += 1
        while len(trials) < len(ranks) - 3:
            number = len(trials)
            trials.append(trial(recorded, number, recorded.space.at(ranks[number])))
            strategy.tell(trials[-1])
    whole = drive(make("model", setting), recorded, ASKS[:20])
    assert ranks == [recorded.space.rank(c) for batch in whole for c in batch] and restored >= 10


@pytest.mark.parametrize(
    "change",
    [{"heard": []}, {"heard": [10**6]}, {"general": [0.0]}, {"planned": [-1]}, {"first": "6"}, {"drawn": None}],
)
def test_a_state_that_cannot_be_its_own_is_refused(change: dict[str, Any], recorded: RecordedSpace) -> None:
    setting = Setting(recorded.space, seed=4)
    strategy, again = make("model", setting), make("model", setting)
    assert isinstance(strategy, Restorable) and isinstance(again, Restorable)
    given = [c for batch in drive(strategy, recorded, [20, 4]) for c in batch]
    state = {**(strategy.state() or {}), **change}
    trials = [trial(recorded, i, config) for i, config in enumerate(given[:17])]
    with pytest.raises(ValueError):
        again.restore(state, [recorded.space.rank(c) for c in given], trials)


def drive(strategy: Strategy, recorded: RecordedSpace, asks: list[int]) -> list[list[dict[str, Any]]]:
    """Each ask comes while the last three configs of the previous ones are still pending."""
    given: list[list[dict[str, Any]]] = []
    waiting: list[dict[str, Any]] = []
    told = 0
    for n in asks:
        given.append(strategy.ask(n))
        waiting += given[-1]
        while len(waiting) > 3:
            strategy.tell(trial(recorded, told, waiting.pop(0)))
            told += 1
    return given


def test_configs_that_are_chosen_ahead_are_new_and_the_same_again_after_every_prefix(recorded: RecordedSpace) -> None:
    whole = drive(make("model", Setting(recorded.space, seed=4)), recorded, ASKS)
    ranks = [recorded.space.rank(c) for batch in whole for c in batch]
    assert len(ranks) == len(set(ranks)) == sum(ASKS)
    for end in range(8, len(ASKS), 3):
        again = drive(make("model", Setting(recorded.space, seed=4)), recorded, ASKS[:end])
        assert again == whole[:end]


def test_a_late_search_still_ends_at_the_best(recorded: RecordedSpace) -> None:
    given = drive(make("model", Setting(recorded.space, seed=1)), recorded, [4] * 25)
    times = [recorded.measure(c).seconds for batch in given for c in batch]
    assert min(t for t in times if t is not None) <= 1.02 * recorded.best


def test_a_space_is_searched_to_its_end(recorded: RecordedSpace) -> None:
    given = drive(make("model", Setting(recorded.space, seed=2)), recorded, [50] * 20)
    assert sum(map(len, given)) == recorded.space.count()
