"""The examples in Triton: right in Triton's interpreter, and described so that each can be built for both makers' GPUs.

Compiling all of them takes minutes: `python benchmarks/triton_calls.py --build cuda:sm_90 hip:gfx942` does.
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

PROGRAM = Path(triton_calls.__file__)


def test_all_are_right_in_tritons_interpreter() -> None:
    pytest.importorskip("torch")
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, str(PROGRAM)], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("right") == len(triton_calls.NAMES) == 10


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
