"""Studies that are killed, suspended, starved of disk space and given wrong clocks: nothing is lost or duplicated.

`benchmarks/chaos.py` does this for any length of time; here there are a few faults on each engine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]


def disturbed(tmp_path: Path, settings: str, *options: str) -> dict[str, Any]:
    """The report of a chaos run. Its races and calls take no longer than those of other tests."""
    out, limits = tmp_path / "chaos.json", tmp_path / "limits.toml"
    limits.write_text(settings)
    command = [
        sys.executable,
        "benchmarks/chaos.py",
        "--study",
        "half-bad",
        "--seed",
        "3",
        *options,
        "--json",
        str(out),
    ]
    environment = {**os.environ, "DEEPGEN_SETTINGS": str(limits)}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    if "there can be no chaos run" in done.stderr or "unshare" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(out.read_text())["results"])


def kinds(*names: str) -> list[str]:
    return [word for name in names for word in ("--kind", name)]


@pytest.mark.slow
def test_on_this_machine(tmp_path: Path, settings_text: str) -> None:
    """Each restart of the command costs seconds, so only one fault may end it."""
    struck = kinds("kill everything", "studies full", "clock jump")
    size = ("--faults", "3", "--minutes", "0.15", "--trials", "4")
    results = disturbed(tmp_path, settings_text, "--engine", "local", *size, *struck)
    assert results["violations"] == []
    assert results["faults"] >= 2, "on a busy machine some find nobody to strike in time"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray")
def test_on_a_ray_cluster(tmp_path: Path, settings_text: str) -> None:
    """One node, and few faults: every process that Ray starts costs seconds."""
    struck = kinds("kill tuner", "kill tester", "clock jump")
    size = ("--nodes", "1", "--faults", "3", "--minutes", "0.2", "--trials", "3")
    results = disturbed(tmp_path, settings_text, "--engine", "ray", *size, *struck)
    assert results["violations"] == []
    assert results["faults"] >= 2
