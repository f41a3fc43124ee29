"""Studies that are killed, suspended, starved of disk and misled about the time: nothing is lost, and nothing is twice.

`benchmarks/chaos.py` does this for as long as one likes; here it strikes a few times on each engine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]


def disturbed(tmp_path: Path, engine: str, *, faults: int, minutes: float, trials: int) -> dict[str, Any]:
    """What a chaos run says of itself."""
    out = tmp_path / "chaos.json"
    given = {"engine": engine, "faults": faults, "minutes": minutes, "trials": trials, "seed": 3}
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "benchmarks/chaos.py", "--study", "half-bad", *words, "--out", str(out)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=600)
    if "there can be no chaos run" in done.stderr or "unshare" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(out.read_text())["results"])


@pytest.mark.slow
def test_on_this_machine(tmp_path: Path) -> None:
    results = disturbed(tmp_path, "local", faults=12, minutes=0.25, trials=8)
    assert results["violations"] == []
    assert results["faults"] >= 4, "on a busy machine some find nobody to strike in time"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray")
def test_on_a_ray_cluster(tmp_path: Path) -> None:
    results = disturbed(tmp_path, "ray", faults=6, minutes=0.2, trials=4)
    assert results["violations"] == []
    assert results["faults"] >= 2
