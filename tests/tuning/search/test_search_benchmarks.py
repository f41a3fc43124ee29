"""The search benchmark runs as its page shows it, here on a small recording."""

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
    words = [tmp_path, "--strategies", "random", "--json"]
    run("search.py", *words, tmp_path / "part.json", "--seeds", "1", "--kept", tmp_path / "kept")
    run("search.py", *words, tmp_path / "rest.json", "--seeds", "3", "--kept", tmp_path / "kept")
    run("search.py", *words, tmp_path / "whole.json", "--seeds", "3")
    rest, whole = (results(tmp_path / f"{name}.json")["strategies"]["random"] for name in ("rest", "whole"))
    assert rest["curve"] == whole["curve"] and len(whole["curve"]) == 200
    assert whole["command"] == "python benchmarks/search.py FOLDER --strategies random --seeds 3"
