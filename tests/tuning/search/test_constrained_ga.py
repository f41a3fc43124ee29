from __future__ import annotations

from statistics import mean

import numpy as np
import pytest

from deepgen.tuning import search
from deepgen.tuning.search import Setting, constrained_ga
from deepgen.tuning.search.constrained_ga import VARIANTS, RestrictionSolver
from deepgen.tuning.search.encoding import Encoding
from deepgen.tuning.search.recorded import Contest, RecordedSpace, from_trials, replay
from deepgen.vocabulary import BadInput

SMALL = {"population": 30, "history": 8, "round": 8, "generations": 2}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_searches_the_whole_space(recorded: RecordedSpace, variant: str) -> None:
    few = from_trials("few", recorded.past.trials[::8])
    contest = Contest("constrained_ga", few.space.count(), {**SMALL, "variant": variant})
    assert replay(few, contest, 1)[-1] == 1.0


def test_the_full_algorithm_is_better_than_constrained_chance(recorded: RecordedSpace) -> None:
    def score(variant: str) -> float:
        contest = Contest("constrained_ga", 60, {**SMALL, "variant": variant})
        return mean(mean(replay(recorded, contest, seed)) for seed in range(4))

    assert score("full") > score("random")


def test_an_unknown_variant_is_refused(recorded: RecordedSpace) -> None:
    with pytest.raises(BadInput, match="random_keys"):
        search.make("constrained_ga", Setting(recorded.space, options={"variant": "best"}))


def test_solving_keeps_to_the_restrictions_by_table_and_by_restriction(
    recorded: RecordedSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoding = Encoding(recorded.space)
    rng = np.random.default_rng(0)
    by_table = RestrictionSolver(encoding)
    monkeypatch.setattr(constrained_ga, "_LISTED", 0)
    by_restriction = RestrictionSolver(encoding)
    for solver in (by_table, by_restriction):
        ranks = [solver.draw({0: {2, 5}, 1: {1}}, rng) for _ in range(20)]
        codes = encoding.codes([rank for rank in ranks if rank is not None])
        assert len(codes) == 20
        assert set(codes[:, 0].tolist()) == {2, 5}
        assert set(codes[:, 1].tolist()) == {1}


def test_restrictions_that_leave_nothing_give_none(recorded: RecordedSpace) -> None:
    encoding = Encoding(recorded.space)
    largest = {0: {len(encoding.knobs[0].values) - 1}, 1: {len(encoding.knobs[1].values) - 1}}
    assert RestrictionSolver(encoding).draw(largest, np.random.default_rng(0)) is None
