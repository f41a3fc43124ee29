from __future__ import annotations

import pytest

from deepgen.tuning.search.recorded import Contest, RecordedSpace, interval, replay
from deepgen.vocabulary import BadInput


def test_the_score_rises_to_one_when_all_was_tried(recorded: RecordedSpace) -> None:
    count = recorded.space.count()
    scores = replay(recorded, Contest("random", count + 10), seed=1)
    assert len(scores) == count + 10
    assert scores == sorted(scores)
    assert scores[count - 1] == scores[-1] == 1.0


def test_a_failed_config_is_an_evaluation(recorded: RecordedSpace) -> None:
    scores = replay(recorded, Contest("exhaustive", 40), seed=0)
    assert len(scores) == 40


def test_the_same_seed_gives_the_same_scores_and_another_gives_others(recorded: RecordedSpace) -> None:
    contest = Contest("model", 15)
    assert replay(recorded, contest, 3) == replay(recorded, contest, 3)
    assert replay(recorded, contest, 3) != replay(recorded, contest, 4)


def test_the_model_is_better_than_chance(recorded: RecordedSpace) -> None:
    seeds = range(6)
    guided = [replay(recorded, Contest("model", 30), seed)[-1] for seed in seeds]
    chance = [replay(recorded, Contest("random", 30), seed)[-1] for seed in seeds]
    assert sum(guided) > sum(chance) + 0.3
    assert min(guided) > 0.9


def test_a_batch_is_still_better_than_chance(recorded: RecordedSpace) -> None:
    seeds = range(4)
    guided = [replay(recorded, Contest("model", 40, batch=8), seed)[-1] for seed in seeds]
    chance = [replay(recorded, Contest("random", 40), seed)[-1] for seed in seeds]
    assert sum(guided) > sum(chance)


def test_unknown_options_are_refused(recorded: RecordedSpace) -> None:
    with pytest.raises(BadInput, match="library"):
        replay(recorded, Contest("model", 5, {"libary": "numpy"}), 0)
    with pytest.raises(BadInput, match="numpy"):
        replay(recorded, Contest("model", 5, {"library": "abacus"}), 0)


def test_the_interval_holds_the_mean_and_narrows() -> None:
    low, high = interval([0.9, 1.0, 0.8, 0.95])
    assert low < 0.9125 < high
    assert interval([0.5] * 20) == (0.5, 0.5)
    few, many = interval([0.0, 1.0] * 2), interval([0.0, 1.0] * 20)
    assert many[1] - many[0] < few[1] - few[0]
