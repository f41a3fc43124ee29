"""Kernel Tuner scripts run unchanged except for the import, and return results with the same keys.

tests/golden/kernel_tuner/keys.json has the keys of Kernel Tuner's own results: see kernel_tuner_keys.py in this folder.
"""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).parents[2]
GOLDEN = json.loads((REPO / "tests" / "golden" / "kernel_tuner" / "keys.json").read_text())


@pytest.mark.parametrize("name", GOLDEN)
def test_a_script_gives_the_same_keys(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (REPO / "examples" / "kernel_tuner" / f"{name}.py").read_text()
    assert text.count("from kernel_tuner import") == 1
    script = tmp_path / f"{name}.py"
    script.write_text(text.replace("from kernel_tuner import", "from deepgen_formats.kernel_tuner import"))
    held: dict[str, Any] = runpy.run_path(str(script))
    results, env = held["results"], held["env"]
    assert sorted({key for row in results for key in row}) == GOLDEN[name]["results"]
    assert sorted(env) == GOLDEN[name]["env"]
    assert env["best_config"] in results and len(results) == 4
    # One run is enough to see that a config is hopelessly slow.
    assert all(1 <= len(row["times"]) <= env["iterations"] for row in results)
    assert [path.name for path in tmp_path.iterdir()] == [script.name], "without a cache nothing is kept"
