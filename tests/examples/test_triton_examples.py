"""The Triton examples: correct in Triton's interpreter, and described so that each builds for NVIDIA and AMD GPUs.

Compiling all of them takes minutes: `python benchmarks/triton_calls.py --build cuda:sm_90 hip:gfx942` does that.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import triton_calls
from deepgen import targets

AUTOTUNED = Path(__file__).parents[1] / "kernels" / "triton_autotuned.py"
# One process for both: importing torch takes longer than everything else.
PROGRAM = f"""
import runpy, sys
sys.path.insert(0, {str(Path(triton_calls.__file__).parent)!r})
import triton_calls
status = triton_calls.main([])
runpy.run_path({str(AUTOTUNED)!r}, run_name="__main__")
sys.exit(status)
"""


@pytest.mark.slow
def test_all_are_right_in_tritons_interpreter() -> None:
    pytest.importorskip("torch")
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    *examples, autotuned = done.stdout.splitlines()
    assert len(examples) == len(triton_calls.NAMES) == 10 and all(line.endswith("right") for line in examples)
    assert autotuned.startswith("autotuned right BLOCK: 128"), "calls of an autotuned kernel stay as they were"


@pytest.mark.parametrize("name", triton_calls.NAMES)
def test_each_has_a_space_and_kernels_for_both(name: str) -> None:
    own, function = triton_calls.example(name)
    operator = own.operator()
    for target in map(targets.resolve, ("cuda:sm_90", "hip:gfx942")):
        space = own.family.space(operator, target)
        default = own.family.default(operator, target)
        assert space.count() >= 8 and space.rank(dict(default)) >= 0
        kernel = own.family.emit(operator, target, default)
        assert f"def {function.fn.__name__}" in kernel.sources[0].text
        assert "deepgen" not in kernel.sources[0].text and "numpy" not in kernel.sources[0].text
