from __future__ import annotations

import json
from pathlib import Path

import typer
from recordings import write
from typer.testing import CliRunner

from deepgen.frontends.cli.replay import replay

APP = typer.Typer()
APP.command()(replay)


def test_json_gives_a_score_a_repeat_and_their_mean(recording: Path) -> None:
    done = CliRunner().invoke(
        APP, [str(recording), "--strategy", "random", "--budget", "20", "--repeats", "3", "--json"]
    )
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert len(result["scores"]) == 3
    assert result["mean"] == sum(result["scores"]) / 3
    assert result["interval"][0] <= result["mean"] <= result["interval"][1]


def test_it_learns_from_other_recordings(recording: Path, tmp_path: Path) -> None:
    other = write(tmp_path, "other.json", best_block=6.4)
    words = [str(recording), "--budget", "5", "--repeats", "2", "--learn-from", str(other)]
    warm = CliRunner().invoke(APP, [*words, "--json"])
    cold = CliRunner().invoke(APP, [*words[:5], "--json"])
    assert json.loads(warm.stdout)["learned_from"] == ["other"]
    assert json.loads(warm.stdout)["mean"] > json.loads(cold.stdout)["mean"]


def test_a_person_reads_the_score_and_what_was_replayed(recording: Path) -> None:
    done = CliRunner().invoke(
        APP, [str(recording), "--strategy", "evolution", "--budget", "12", "--repeats", "2", "--option", "population=6"]
    )
    assert "made_up" in done.stdout
    assert "after 12 evaluations, 2 runs" in done.stdout
