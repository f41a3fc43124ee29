"""A winner on disk is complete, and remnants from a killed process are removed by the next one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

WRITER = """
import os, sys
from pathlib import Path
from deepgen.tuning.study import trust, winner
from deepgen.vocabulary import Artifact, Kernel, LaunchPlan, Source
folder = Path(sys.argv[1])
binary = folder / "built"
binary.write_bytes(b"code")
if sys.argv[2] == "killed":
    trust.sign = lambda data: os._exit(9)
kernel = Kernel("k", "c", (Source("k.c", "int k;"),), (), LaunchPlan(()))
artifact = Artifact(kernel.id, str(binary), "so", "gcc 12", {}, 0.1)
winner.write_winner(folder / "winner", kernel, artifact, "{}")
binary.unlink()
"""


def written(folder: Path, how: str) -> int:
    return subprocess.run([sys.executable, "-c", WRITER, str(folder), how], check=False).returncode


def test_nothing_is_left_of_a_winner_that_was_cut_off(tmp_path: Path) -> None:
    assert written(tmp_path, "killed") == 9
    assert written(tmp_path, "whole") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["winner"]
