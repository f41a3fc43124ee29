"""The GEMM benchmark: a race is measured and stored, and those that miss their bar are shown and rerun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gemm_results

    return gemm_results


def race(ratio: float, m: int = 8, batch: int = 1, share: float = 0.5, **other: Any) -> dict[str, Any]:
    operator = {"a": "f32", "layout": "nn", "batch": batch, "m": m, "n": 4096, "k": 4096}
    kept = {"isa": "avx512", "constant_b": False, "threads": 1, "caches": "cold", "tuning_seconds": 0.0}
    return {"operator": operator, **kept, "ratio": ratio, "share_of_bound": share, **other}


def run(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "gemm.py"), *words]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, **options)


@pytest.mark.slow
def test_a_race_is_measured_and_kept_with_all_that_is_needed_to_judge_it(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    words = ["--shape", "8x8x8", "--caches", "warm", "--threads", "1", "--seconds", "0", "--json", str(out)]
    done = run(*words, stdout=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    assert "8x8x8" in done.stdout and "floor" in done.stdout
    [kept] = json.loads(out.read_text())["races"]
    assert kept["ratio"] > 0 and kept["share_of_bound"] > 0 and kept["tuning_seconds"] == 0
    numpy = kept["contenders"]["numpy"]
    assert numpy["low"] <= numpy["ratio"] <= numpy["high"] and kept["contenders"]["deepgen"]["seconds"] > 0
    assert kept["conditions"]["command"].startswith("python benchmarks/gemm.py --shape")


def test_a_race_takes_the_place_of_an_earlier_one_and_of_no_other(results: Any, tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    others = [race(2.0, caches="warm"), race(2.0, threads=2), race(2.0, isa="avx2"), race(2.0, constant_b=True)]
    for each in (race(1.0), *others, race(3.0)):
        results.merge(out, each)
    assert sorted(r["ratio"] for r in results.read(out)) == [2.0, 2.0, 2.0, 2.0, 3.0]
    assert sum('"ratio"' in line for line in out.read_text().splitlines()) == 5, "one line a race"


def test_the_summary_shows_what_misses_and_a_retry_takes_just_that(results: Any) -> None:
    low, near = race(0.5, m=1), race(0.6, m=2, share=0.95)  # the second is at its bound
    batch, apart = race(1.6, batch=64), race(0.1, constant_b=True)
    races = [low, near, race(4.0, m=3), race(1.3, m=4), batch, apart]
    shown = results.summary(races).splitlines()
    assert all(len(line) <= 80 for line in shown)
    assert [line for line in shown if line.startswith("  !")] == ["  ! 1x4096x4096 0.50, 50% of the bound, the default"]
    assert results.wanting(races) == [low], "the mean is reached, so only what is under its floor is run again"
    assert results.wanting([low, near, race(1.3, m=4)]) == [low, near], "the mean needs all that is below it"
    told = results.tables(races).splitlines()
    assert "1x4096x4096 0.50" in next(line for line in told if line.startswith("| f32")), "misses are told beside means"
    assert "| 1x4096x4096 | 0.50 (0.50) |" in told
    assert "### f32 nn (avx512), constant B" in told, "a B packed ahead of time is kept apart"


def test_a_file_of_something_else_is_said_and_left_alone(results: Any, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    for text in ('{"mine": 1}', "[]", "no JSON"):
        other.write_text(text)
        with pytest.raises(SystemExit, match=r"other\.json contains no results"):
            results.merge(other, race(1.0))
        assert other.read_text() == text


def test_what_cannot_be_raced_is_said_in_a_sentence(tmp_path: Path) -> None:
    words = ["--shape", "8x8x8", "--json", str(tmp_path / "results.json")]
    for more, told in (
        (["--dtype", "f32", "--no-amx"], "tiles do not multiply f32"),
        (["--dtype", "f16", "--constant-b"], "no family"),
    ):
        done = run(*words, *more)
        assert done.returncode == 1 and told in done.stderr and "Traceback" not in done.stderr


def test_a_reader_that_goes_away_ends_it_without_a_word(results: Any, tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    out.write_text(json.dumps({"races": [race(1.0, m=m) for m in range(5000)]}))  # more than a pipe holds
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = run("--tables", "--json", str(out), stdout=writing)
    finally:
        os.close(writing)
    assert done.returncode == 1 and done.stderr == ""


def test_the_page_shows_the_results_as_they_are(results: Any) -> None:
    page = (BENCHMARKS.parent / "docs" / "x86.md").read_text()
    assert results.tables(results.read(BENCHMARKS / "results" / "cpu_gemm.json")) in page, (
        "docs/x86.md differs from the results: put there what `python benchmarks/gemm.py --tables` prints"
    )


def test_results_of_the_program_before_are_races_too(results: Any) -> None:
    races = results.read(BENCHMARKS / "h200" / "gemm_f8e4m3_nt_fast.json")
    assert len(races) == 26 and {results.Group.of(one).fast_sums for one in races} == {True}
    assert {"deepgen", "cublaslt", "torch-gpu", "default"} <= set(races[0]["contenders"])
    assert "f8e4m3 sm_90a nt fast sums" in results.summary(races)


@pytest.mark.parametrize(
    ("label", "file"),
    [
        ("bf16 nt", "gemm_bf16_nt"),
        ("bf16 nn", "gemm_bf16_nn"),
        ("f16 nt", "gemm_f16_nt"),
        ("f8e4m3 nt, fast sums", "gemm_f8e4m3_nt_fast"),
        ("f8e4m3 nt, sums in f32", "gemm_f8e4m3_nt_exact"),
        ("i8 nt", "gemm_i8_nt"),
        ("tf32 nt", "gemm_tf32_nt"),
    ],
)
def test_the_page_of_tensor_cores_has_the_means_of_the_results(results: Any, label: str, file: str) -> None:
    races = results.read(BENCHMARKS / "h200" / f"{file}.json")
    least = min(race["ratio"] for race in races)
    page = (BENCHMARKS.parent / "docs" / "tensor-cores.md").read_text()
    assert f"| {label} | **{results.mean(races):.3f}** | {least:.3f} (" in page
