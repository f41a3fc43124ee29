"""The benchmarks of search run as their pages show them, here on little."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from recordings import made_up

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def run(name: str, *words: str | Path) -> str:
    command = [sys.executable, str(BENCHMARKS / name), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def results(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_scores_are_the_same_when_an_interrupted_benchmark_goes_on(tmp_path: Path) -> None:
    (tmp_path / "made_up.json.gz").write_bytes(gzip.compress(json.dumps(made_up()).encode()))
    words = [tmp_path, "--strategies", "random", "--out"]
    run("search.py", *words, tmp_path / "part.json", "--seeds", "1", "--kept", tmp_path / "kept")
    run("search.py", *words, tmp_path / "rest.json", "--seeds", "3", "--kept", tmp_path / "kept")
    run("search.py", *words, tmp_path / "whole.json", "--seeds", "3")
    rest, whole = (results(tmp_path / f"{name}.json")["strategies"]["random"] for name in ("rest", "whole"))
    assert rest["curve"] == whole["curve"] and len(whole["curve"]) == 200
    assert whole["command"] == "python benchmarks/search.py FOLDER --strategies random --seeds 3"


def test_the_second_look_is_compared_with_none(tmp_path: Path) -> None:
    shown = run("second_look.py", "--seeds", "1", "--budget", "50", "--json", tmp_path / "look.json")
    rows = results(tmp_path / "look.json")["results"]["rows"]
    assert [row["strategy"] for row in rows] == ["model", "random"] and "sim" in shown
    assert all(0.0 <= row["runs_saved"] < 1.0 and row["best"] > 0.9 for row in rows)


def test_the_strategys_own_time_is_shown_beside_the_tuners(tmp_path: Path) -> None:
    run("tuner_overhead.py", "--strategy", "model", "--trials", "60", "--json", tmp_path / "overhead.json")
    found = results(tmp_path / "overhead.json")["results"]
    assert found["strategy"] == "model" and len(found["bins"]) == 10
    assert all(row["strategy_ms"] >= 0.0 for row in found["bins"])


def test_transfer_is_compared_with_a_cold_search_over_kernels(tmp_path: Path) -> None:
    for card, best in (("a", 7.0), ("b", 6.4)):
        recording = gzip.compress(json.dumps(made_up(best_block=best)).encode())
        (tmp_path / f"made_up_{card}.json.gz").write_bytes(recording)
    shown = run("transfer.py", tmp_path, "--seeds", "1", "--study-trials", "30", "--out", tmp_path / "transfer.json")
    found = results(tmp_path / "transfer.json")["results"]
    assert [(row["source"], row["target"]) for row in found["pairs"]] == [
        ("made_up_a", "made_up_b"),
        ("made_up_b", "made_up_a"),
    ]
    assert "2 pairs of 1 kernels: made_up" in shown
    middle, low, high = found["summary"]["study - cold"]["25"]
    assert low <= middle <= high


def test_the_models_own_time_is_told_by_family(tmp_path: Path) -> None:
    run("model_time.py", "--trials", "10", "--families", "mma_gemm", "--json", tmp_path / "time.json")
    rows = results(tmp_path / "time.json")["results"]["rows"]
    assert [row["family"] for row in rows] == ["mma_gemm"] and rows[0]["ms_a_trial"] > 0.0
