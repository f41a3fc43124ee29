"""Recordings of the Hopper family: they are read like any other, and the default search does well on them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from statistics import mean

import pytest

from deepgen.tuning.search.recorded import Contest, read, replay

FOLDER = Path(__file__).parents[3] / "benchmarks/h200/recorded"
FILES = sorted(FOLDER.glob("*.json.gz"))


def test_three_problems_were_recorded() -> None:
    assert len(FILES) == 3


def test_the_results_page_is_made_of_the_results() -> None:
    page = (FOLDER.parents[2] / "docs/tensor-cores.md").read_text(encoding="utf-8")
    command = [sys.executable, str(FOLDER.parents[1] / "gpu_report.py")]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    missing = [line for line in report.splitlines() if line.startswith("|") and line not in page]
    assert not missing, "python benchmarks/gpu_report.py prints the tables of the page"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_hundred_trials_come_near_the_best_of_thousands(file: Path) -> None:
    recorded = read(file)
    assert recorded.space.count() >= 2000
    scores = [replay(recorded, Contest("model", 100), seed)[-1] for seed in range(2)]
    assert mean(scores) >= 0.95, "20 seeds are in benchmarks/h200/recorded/replay.json"
