"""Random programs agree with Triton's interpreter. DEEPGEN_TRITON_PROGRAMS=300 draws more of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton")
pytest.importorskip("torch")
import random_programs
from compiled_kernels import Case, Compiled

COUNT = int(os.environ.get("DEEPGEN_TRITON_PROGRAMS", "8"))
SEED = int(os.environ.get("DEEPGEN_TRITON_SEED", "1"))
CLOSE = 2e-4  # relative to the largest number, at least 1: sums are added in another order


@pytest.mark.slow
def test_they_agree_with_tritons_interpreter(tmp_path: Path) -> None:
    file = tmp_path / "programs.py"
    shapes = random_programs.write(file, SEED, COUNT)
    command = [sys.executable, random_programs.__file__, str(file), str(SEED), str(COUNT)]
    interpreter = subprocess.Popen(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, stderr=subprocess.PIPE, text=True
    )
    module = random_programs.load(file)
    cases = [
        Case(
            getattr(module, f"program_{number}"),
            (1,),
            random_programs.inputs(shape, number),
            dict,
            {"R": shape[0], "C": shape[1]},
        )
        for number, shape in enumerate(shapes)
    ]
    compiled = Compiled(cases, tmp_path)
    _, said = interpreter.communicate()
    assert interpreter.returncode == 0, said
    expected = np.load(file.with_suffix(".npz"))
    wrong = []
    for number, case in enumerate(cases):
        found = compiled.run(case)
        out, want = found["out"], expected[f"out{number}"]
        scale = max(1.0, float(np.abs(want[np.isfinite(want)]).max(initial=0)))
        same = np.isclose(out, want, rtol=CLOSE, atol=CLOSE * scale, equal_nan=True).all()
        if not same or (found["whole"] != expected[f"whole{number}"]).any():
            wrong.append(number)
    assert not wrong, f"programs {wrong} of seed {SEED}"
