"""Recordings of the Hopper family: they are read like any other, and the default search performs well on them."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest

from deepgen.tuning.search.recorded import Contest, read, replay

FOLDER = Path(__file__).parents[3] / "benchmarks/h200/recorded"
FILES = sorted(FOLDER.glob("*.json.gz"))


def test_three_problems_were_recorded() -> None:
    assert len(FILES) == 3


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_hundred_trials_come_near_the_best_of_thousands(file: Path) -> None:
    recorded = read(file)
    assert recorded.space.count() >= 2000
    scores = [replay(recorded, Contest("model", 100), seed)[-1] for seed in range(2)]
    assert mean(scores) >= 0.95, "20 seeds are in benchmarks/h200/recorded/replay.json"
