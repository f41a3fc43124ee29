"""A user's own operator is tuned on a Ray cluster whose nodes have none of its code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("ray") is None:  # not imported here: all workers collect this file, and importing Ray takes a second
    pytest.skip("Ray is not installed: pip install ray", allow_module_level=True)
EXAMPLE = Path(__file__).parents[2] / "examples" / "own_operator.py"
TUNE = """
import sys
sys.path.insert(0, {folder!r})
import own_operator
import deepgen as dg

study = dg.tune(own_operator.RowSoftmax(16, 33), target="cpu", generator=own_operator.RowSoftmaxFamily(), trials=3)
print(study.folder)
"""


@pytest.mark.slow
def test_the_command_line_goes_on_with_it_on_ray(tmp_path: Path) -> None:
    script = TUNE.format(folder=str(EXAMPLE.parent))
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    words = ("resume", done.stdout.strip(), "--trials", "6", "--engine", "ray", "--json")
    # Ray's workers must not find the example's folder through this process.
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    ray = subprocess.run(
        [sys.executable, "-m", "deepgen", *words], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert ray.returncode == 0, ray.stderr
    result = json.loads(ray.stdout)
    assert result["trials"] == {"correct": 6} and result["winner"]
