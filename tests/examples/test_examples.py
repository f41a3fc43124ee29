"""Every example runs unchanged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# The example of a user's own operator is run by test_own_operator.py, which continues with its studies.
EXAMPLES = [p for p in sorted((Path(__file__).parents[2] / "examples").glob("*.py")) if p.stem != "own_operator"]


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(example: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
