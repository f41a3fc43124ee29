"""torch's calls in the benchmarks of rules give what the operators give, as far as shapes tell."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from rules_cases import cases
from rules_gpu_cases import gpu_cases

torch = pytest.importorskip("torch")

FOUND = {f"{case.group}: {case.name}": case for case in (*cases(), *(one.case for one in gpu_cases()))}


@pytest.mark.parametrize("group", sorted({case.group for case in FOUND.values()}))
def test_results_have_the_shape_of_the_operators(group: str) -> None:
    for name, case in FOUND.items():
        if case.group != group:
            continue
        tensors = case.made("f32").tensors()
        given = {t.name: torch.empty(t.shape, device="meta") for t in tensors if t.role == "input"}
        [output] = [t for t in tensors if t.role == "output"]
        assert tuple(case.torch(torch, given, case.words)().shape) == output.shape, name
