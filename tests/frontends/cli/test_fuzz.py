"""Whatever an external file holds, its reader ends with a message, writes nowhere else and stays small.

A few cases of each kind; `python benchmarks/fuzz.py` generates thousands.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[3] / "benchmarks" / "fuzz.py"
COUNT = int(os.environ.get("DEEPGEN_FUZZ_COUNT", "28"))


@pytest.mark.slow
def test_changed_files_do_no_harm(tmp_path: Path) -> None:
    command = [sys.executable, str(FUZZ), "--count", str(COUNT), "--seed", "7", "--json", str(tmp_path / "fuzz.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "fuzz.json").read_text())["results"]
    assert sum(row["cases"] for row in rows) == COUNT
    assert sum(row["refused"] for row in rows) > COUNT / 3, "most changes are noticed"
    assert all(row["megabytes"] < 300 and not row["problems"] for row in rows)
