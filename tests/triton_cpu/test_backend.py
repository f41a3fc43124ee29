"""Plain `kernel[grid](...)` on a processor after one import, in a process of its own: the import changes Triton."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
HERE = Path(__file__).parent
ARRAYS = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import numpy as np
import deepgen.triton_cpu
import kernels
x, y, z = np.arange(50.0, dtype=np.float32), np.ones(50, np.float32), np.zeros(50, np.float32)
kernels.add[(4,)](x, y, z, 50, B=16)
assert (z == x + y).all(), z
a = np.arange(20 * 28, dtype=np.float32).reshape(20, 28)
b = np.zeros((28, 20), np.float32)
made = kernels.described[(2, 2)](a, b, 20, 28, B=16, num_warps=8)
assert (b == a.T + 1).all() and "deepgen_triton" in made.asm["c"]
assert "torch" not in sys.modules
try:
    kernels.assembled[(1,)](x, z, B=16)
except Exception as error:
    print(error)
"""


def _run(*command: str, cache: Path) -> str:
    env = {**os.environ, "TRITON_CACHE_DIR": str(cache)}
    done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_arrays_are_taken_and_what_is_not_served_is_named(tmp_path: Path) -> None:
    assert "tt.elementwise_inline_asm is not served" in _run("-c", ARRAYS, cache=tmp_path)


def test_programs_like_tritons_tutorials_run_unchanged(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    said = _run(str(HERE / "tutorials.py"), cache=tmp_path)
    assert said.count("right on cpu") == 6, said
