"""Plain `kernel[grid](...)` on a CPU after one import, in a separate process, as the import changes Triton."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
HERE = Path(__file__).parent
ARRAYS = f"""
import os, sys
sys.path.insert(0, {str(HERE)!r})
import numpy as np
import deepgen.triton_cpu
import kernels
x, y, z = np.arange(50.0, dtype=np.float32), np.ones(50, np.float32), np.zeros(50, np.float32)
threads = len(os.listdir("/proc/self/task"))
kernels.add[(4,)](x, y, z, 50, B=16, num_threads=2)
assert (z == x + y).all(), z
a = np.arange(20 * 28, dtype=np.float32).reshape(20, 28)
b = np.zeros((28, 20), np.float32)
made = kernels.described[(2, 2)](a, b, 20, 28, B=16, num_warps=8, num_threads=2)
assert (b == a.T + 1).all() and "deepgen_triton" in made.asm["c"]
try:
    made.asm["ttgir"]
except KeyError as error:
    assert "it has c, so, source, ttir" in str(error), error
assert "torch" not in sys.modules
assert len(os.listdir("/proc/self/task")) == threads + 1, "two kernels share their threads"
try:
    kernels.assembled[(1,)](x, z, B=16)
except Exception as error:
    print(error)
"""

TUNED = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import torch, triton
import deepgen as dg
import deepgen.triton_cpu
import kernels
x, y, z = torch.arange(50.0), torch.ones(50), torch.zeros(50)
configs = [triton.Config({{"B": 16}}), triton.Config({{"B": 32}}, num_warps=2)]
tuned = dg.autotune(configs, key=["n"], rep=1, cache_results=False)(kernels.add)
tuned[lambda config: (triton.cdiv(50, config["B"]),)](x, y, z, 50)
assert (z == x + y).all(), z
print(tuned.deepgen.note)
"""

INSTALLED = """
import triton
from triton.runtime import driver
from triton.backends import backends
if any(b.driver.is_active() for name, b in backends.items() if name != "deepgen_cpu"):
    print("a GPU")
else:
    triton.__version__ = "3.6.0"
    try:
        driver.active
    except RuntimeError as error:
        assert "0 active drivers" in str(error)
    triton.__version__ = "3.9.0"
    print(driver.active.get_current_target().backend)
"""


def _run(*command: str, cache: Path) -> str:
    env = {**os.environ, "TRITON_CACHE_DIR": str(cache)}
    done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_arrays_are_taken_and_what_is_not_served_is_named(tmp_path: Path) -> None:
    assert "tt.elementwise_inline_asm is not supported on CPUs" in _run("-c", ARRAYS, cache=tmp_path)


@pytest.mark.slow
def test_autotune_follows_the_active_backend(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert "agrees with config 0" in _run("-c", TUNED, cache=tmp_path)


@pytest.mark.slow
def test_where_no_gpu_is_found_the_installed_backend_is_the_device_of_the_release_it_serves(tmp_path: Path) -> None:
    told = tmp_path / "installed-0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: installed\nVersion: 0\n")
    (told / "entry_points.txt").write_text("[triton.backends]\ndeepgen_cpu = deepgen_triton_cpu.backend\n")
    said = _run("-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{INSTALLED}", cache=tmp_path)
    assert said.split() in (["deepgen_cpu"], ["a", "GPU"])


@pytest.mark.slow
@pytest.mark.parametrize(("file", "checks"), [("tutorials.py", 6), ("later_tutorials.py", 4)])
def test_programs_like_tritons_tutorials_run_unchanged(file: str, checks: int, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    said = _run(str(HERE / file), cache=tmp_path)
    assert said.count("right on cpu") == checks, said
