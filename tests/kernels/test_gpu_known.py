"""Where GPU benchmarks begin: configs of earlier results, as far as a problem's space has them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from deepgen.generators import by_name
from deepgen.operators import gemm
from deepgen.targets.cuda import parse_cuda

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(("dtype", "layout"), [("bf16", "nt"), ("f8e4m3", "nt"), ("bf16", "nn")])
def test_known_configs_are_points_of_the_space(dtype: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("gpu_bench", "gpu_known"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    from gpu_known import found_before, known

    target, before = parse_cuda("h200"), found_before()
    problem = gemm(2048, 2048, 2048, dtype=dtype, layout=layout, **({"c": "bf16"} if dtype == "f8e4m3" else {}))
    family = by_name("sm90_gemm")
    configs = known(problem, family, target, before, 4)
    assert 1 < len(configs) <= 5, "what was found for this shape in some format, and what needs no search"
    assert not any(family.space(problem, target).explain(c) for c in configs)
