"""What limits a GPU kernel: parts are left out of its text, and what that shows is told in a sentence."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from deepgen.generators import by_name
from deepgen.operators import gemm
from deepgen.targets.cuda import parse_cuda
from deepgen.vocabulary import ScalarArg, TensorArg

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.syspath_prepend(str(BENCHMARKS / "h200"))
    for name in (
        "gpu_bench", "gpu_known", "gpu_summary", "ablate", "ablate_counters", "ablate_limiter", "sm90_bench",
        "sm90_candidates", "sm90_check",
    ):  # fmt: skip
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("benchmarks")
@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (64, 4096, 4096)])
def test_parts_can_be_left_out_of_the_kernels_at_hand(shape: tuple[int, int, int]) -> None:
    from ablate import EDITS, edited, told_at

    problem, target, family = gemm(*shape, dtype="bf16", layout="nt"), parse_cuda("h200"), by_name("sm90_gemm")
    kernel = family.emit(problem, target, family.default(problem, target))
    for name, edits in EDITS.items():
        changed = [a.name for a, b in zip(kernel.sources, edited(kernel, edits).sources, strict=True) if a != b]
        assert set(changed) == {edit[0] for edit in edits}, name
    args = told_at(kernel, 4096).plan.steps[0].args
    assert args[args.index(TensorArg("C")) + 1] == ScalarArg("i64", 4096), "where a kernel without bias has its address"


@pytest.mark.usefixtures("benchmarks")
def test_a_text_that_has_changed_is_said() -> None:
    from ablate import edited

    problem, target, family = gemm(512, 512, 512, dtype="bf16"), parse_cuda("h200"), by_name("sm90_gemm")
    kernel = family.emit(problem, target, family.default(problem, target))
    with pytest.raises(AssertionError, match="the ablation must follow the source"):
        edited(kernel, (("hopper.h", "no such text", ""),))


@pytest.mark.usefixtures("benchmarks")
def test_the_limiter_is_what_most_is_gained_without() -> None:
    from ablate_limiter import limiter

    drawn = {"whole": 100.0, "no_stores": 94.0, "products": 98.0, "copies": 80.0, "launch": 3.0, "cublaslt": 97.0}
    row: dict[str, Any] = {"us": {"drawn": drawn, "zeros": {"whole": 90.0, "cublaslt": 85.0}}}
    told = limiter(row, None)
    assert told.startswith("power 10%, storing results 6%; "), "fetching costs too little to be named"
    counted = {
        "ours": {"tensor_pct": 92.0, "hz": 1.6e9, "l2_reads": 120.0},
        "cublaslt": {"tensor_pct": 97.0, "hz": 1.5e9, "l2_reads": 100.0},
    }
    assert "busy 92% of cycles at 1600 MHz" in limiter(row, counted)


@pytest.mark.usefixtures("benchmarks")
def test_counters_are_paired_with_their_kernels() -> None:
    from ablate_counters import METRICS, paired, read

    names = ["ID", "Kernel Name", *METRICS.values()]
    lines = [names, ["", "", *("unit" for _ in METRICS)]]
    for kernel, ns in (("gemm", 5), ("nvjet_a", 4), ("reduce", 1), ("gemm", 7), ("nvjet_b", 8)):
        lines.append(["0", kernel, str(ns), *("1,000" for _ in list(METRICS)[1:])])
    text = "==PROF== told aside\n" + "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines)
    found = paired(read(text))
    assert [(f["ours"]["ns"], f["cublaslt"]["kernel"]) for f in found] == [(5.0, "nvjet_a"), (7.0, "nvjet_b")]
    assert found[0]["ours"]["cycles"] == 1000.0


@pytest.mark.usefixtures("benchmarks")
def test_results_say_what_the_ablation_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ablate_limiter import main

    results = BENCHMARKS / "h200"
    for file in [*results.glob("gemm_*.json"), *results.glob("ablate*.json")]:
        shutil.copy(file, tmp_path)
    monkeypatch.setattr(sys, "argv", ["ablate_limiter.py", "--results", str(tmp_path)])
    main()
    for file in results.glob("gemm_*.json"):
        assert (tmp_path / file.name).read_text() == file.read_text(), "run benchmarks/h200/ablate_limiter.py"


@pytest.mark.usefixtures("benchmarks")
def test_every_check_of_the_family_is_another_one() -> None:
    from sm90_check import checks, key_of

    made = checks()
    assert len({key_of(op, config) for op, config in made}) == len(made) > 0, "as many are checked as are counted"
