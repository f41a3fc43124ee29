"""The GPU benchmarks from candidates to the tables of their page, on a chip that is made up but builds for real."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="its tensors are the device's memory")

from fake_h200 import BENCHMARKS, Library, install

import needs
from deepgen.targets.cuda import parse_cuda
from deepgen.vocabulary import DeepgenError

FEW = ["--known", "1", "--modelled", "1", "--near", "2", "--cores", "2"]


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Library:
    needs.toolchain(parse_cuda("h200"), "cuda")
    return install(monkeypatch, tmp_path)


def read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_a_run_goes_from_candidates_to_tables(
    h200: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import gpu_gemm
    import gpu_report

    for file in (BENCHMARKS / "h200").glob("*.json"):
        shutil.copy(file, tmp_path)
    for layout in ("nt", "nn"):
        gpu_gemm.main(["--dtype", "bf16", "--layout", layout, "--only", "17", *FEW, "--out", str(tmp_path)])
    nt, nn = read(tmp_path / "gemm_bf16_nt.json"), read(tmp_path / "gemm_bf16_nn.json")
    assert [row["shape"] for row in nt["rows"]] == [[1, 384, 384, 4096]]
    for row in (*nt["rows"], *nn["rows"]):
        assert all(row["correct"].values()) and not row["wrong"], "what NVRTC builds is launched as the driver asks for"
        assert {"ours", "cublaslt", "torch", "default"} <= set(row["us"])
    assert all("nt" in row["us"] and "nt" not in nt["rows"][0]["us"] for row in nn["rows"]), "nn stands beside nt"
    assert nt["conditions"]["end"]["name"] == "NVIDIA H200"
    monkeypatch.setattr(gpu_report, "RESULTS", tmp_path)
    capsys.readouterr()
    gpu_report.main([])
    assert "| bf16 nt |" in capsys.readouterr().out
    page = tmp_path / "page.md"
    shutil.copy(BENCHMARKS.parent / "docs/tensor-cores.md", page)
    gpu_report.main(["--page", str(page)])
    assert "Interleaved, nn takes " in page.read_text()


@pytest.mark.usefixtures("h200")
def test_the_page_holds_what_the_results_say() -> None:
    import gpu_report

    page = (BENCHMARKS.parent / "docs/tensor-cores.md").read_text(encoding="utf-8")
    assert gpu_report.written(page) == page, "python benchmarks/gpu_report.py --page docs/tensor-cores.md"


def test_what_is_wrong_is_told_and_not_timed(h200: Library, tmp_path: Path) -> None:
    import gpu_gemm

    images: list[bytes] = []

    def wrong(image: bytes) -> bool:
        images.append(image)
        return image == images[0]

    h200.wrong = wrong
    gpu_gemm.main(["--dtype", "f8e4m3", "--exact-sums", "--only", "0", *FEW, "--near", "0", "--out", str(tmp_path)])
    (row,) = read(tmp_path / "gemm_f8e4m3_nt_exact.json")["rows"]
    assert [w.rpartition(": ")[2] for w in row["wrong"]] == ["a wrong result"]
    assert not row["operator"]["fast_sums"], "sums are those that were asked for"


def test_a_run_that_is_short_of_time_tries_less_and_still_ends(h200: Library, tmp_path: Path) -> None:
    import gpu_gemm

    gpu_gemm.main(["--dtype", "bf16", "--only", "0", *FEW, "--seconds", "0", "--out", str(tmp_path)])
    (row,) = read(tmp_path / "gemm_bf16_nt.json")["rows"]
    assert row["tried"] == 1 and row["untried"] > 1 and row["correct"]["ours"]


def test_the_check_of_features_builds_and_launches_them(
    h200: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sm90_check

    some = sm90_check.checks()[::70]
    monkeypatch.setattr(sm90_check, "checks", lambda: some)
    sm90_check.Worker(tmp_path, 2).run()
    rows = sm90_check.read(tmp_path / sm90_check.JOURNAL)
    assert len(rows) == len(some) and not [row for row in rows.values() if row["why"]]


def put_ncu(folder: Path, kernels: list[str], metrics: list[str]) -> None:
    """A profiler that runs nothing and counts 1 of everything."""
    cells = [["ID", "Kernel Name", *metrics], ["", "", *("" for _ in metrics)]]
    cells += [["0", kernel, *("1" for _ in metrics)] for kernel in kernels]
    table = "\n".join(",".join(f'"{cell}"' for cell in line) for line in cells)
    (folder / "ncu").write_text(f"#!/bin/sh\ncat <<'END'\n{table}\nEND\n")
    (folder / "ncu").chmod(0o755)


def test_an_ablation_goes_from_results_to_what_limits(
    h200: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ablate
    import ablate_counters
    import ablate_limiter

    run = read(BENCHMARKS / "h200/gemm_bf16_nt.json")
    run["rows"] = [row for row in run["rows"] if row["shape"] == [1, 1536, 3072, 768]]
    run["rows"][0]["ratio"]["cublaslt"] = 0.9
    (tmp_path / "gemm_bf16_nt.json").write_text(json.dumps(run))
    words = ["--results", str(tmp_path), "--cache", str(tmp_path / "cache"), "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["ablate.py", *words, "--cores", "2", "--most", "1"])
    ablate.main()
    (row,) = read(tmp_path / "ablate.json")["rows"]
    assert set(row["us"]["drawn"]) == {"whole", "cublaslt", *ablate.EDITS}, "every part can be left out"
    cases = ablate.under_par(tmp_path, 1.0)
    before = len(h200.launched)
    ablate_counters.inside(cases, tmp_path / "cache")
    assert len(h200.launched) > before, "ours runs between the marks"
    put_ncu(tmp_path, ["gemm", "nvjet"], list(ablate_counters.METRICS.values()))
    monkeypatch.setattr(sys, "argv", ["ablate_counters.py", *words])
    ablate_counters.main()
    monkeypatch.setattr(sys, "argv", ["ablate_limiter.py", "--results", str(tmp_path)])
    ablate_limiter.main()
    (told,) = read(tmp_path / "gemm_bf16_nt.json")["rows"]
    assert "tensor cores busy 1% of cycles" in told["limiter"]


@pytest.mark.usefixtures("h200")
def test_orders_of_tiles_are_timed_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ablate_counters
    import ablate_order

    from gpu_known import found_before

    monkeypatch.setattr(ablate_order, "SHAPE", (512, 768, 256))
    every = ablate_order.orders(parse_cuda("h200"))
    assert {c["GROUP"] for c in every} == {1, 2, 4, 8, 12, 16} and any(c["HILBERT"] for c in every)
    monkeypatch.setattr(ablate_order, "orders", lambda target: every[:2])
    put_ncu(tmp_path, ["gemm", "nvjet"] * 2, list(ablate_counters.METRICS.values()))
    monkeypatch.setattr(sys, "argv", ["ablate_order.py", "--out", str(tmp_path / "out")])
    ablate_order.main()
    found = found_before(tmp_path / "out")
    assert [f.place for f in found] == [0, 1] and found[0].config in every, "a benchmark begins with the best of them"


def test_steps_of_an_ablation_do_not_wait_for_one_that_fails(
    h200: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import ablation

    (tmp_path / "good.py").write_text("print('here')")
    (tmp_path / "bad.py").write_text("raise SystemExit('no counters')")
    monkeypatch.setattr(ablation, "HERE", tmp_path)
    assert all((BENCHMARKS / "h200" / name).exists() for name, _ in ablation.steps(tmp_path, tmp_path, tmp_path, 3))
    with (tmp_path / "log").open("w") as log:
        failed = ablation.run([("bad.py", ()), ("good.py", ())], 60.0, log)
    assert failed == ["bad.py: ended with 1"] and "done" in capsys.readouterr().out
    assert "no counters" in (tmp_path / "log").read_text() and "here" in (tmp_path / "log").read_text()


GEMM = """
import json, sys, time, pathlib
words = sys.argv[1:]
named = dict(zip(words, words[1:]))
dtype, layout, few = named["--dtype"], named.get("--layout", "nt"), "--only" in words
if dtype == "f16" and "--near" in words and named["--near"] != "0":
    sys.exit("a fault")
row = {"shape": [1, 1, 1, 1], "correct": {"ours": True}, "wrong": [], "absent": ABSENT, "tried": 3, "untried": 0}
over = {"geomean": 1.1, "least": 1.0, "shapes": 26}
told = {"rows": [row] * (2 if few else 26), "summary": {"cublaslt": over, "reached": True, "all_correct": True}}
sums = {True: "_exact", False: "_fast"}["--exact-sums" in words] if dtype.startswith("f8") else ""
pathlib.Path(named["--out"], f"gemm_{dtype}_{layout}{sums}.json").write_text(json.dumps(told))
if dtype == "tf32":
    time.sleep(60)
"""


@pytest.fixture
def stub(h200: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In place of gpu_gemm.py: f16 fails unless it tries known configs only, and tf32 does not end."""
    import whole

    (tmp_path / "gemm.py").write_text(GEMM.replace("ABSENT", "{}"))
    (tmp_path / "triton.py").write_text("")
    monkeypatch.setattr(whole, "GEMM", tmp_path / "gemm.py")
    monkeypatch.setattr(whole, "TRITON", tmp_path / "triton.py")
    monkeypatch.setattr(whole, "LEAST", 0.0)
    monkeypatch.setattr(whole, "HARD", 1.0)
    return tmp_path / "gemm.py"


@pytest.mark.usefixtures("stub")
def test_all_runs_are_made_in_time_whatever_one_of_them_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import whole

    whole.main(["--out", str(tmp_path / "out"), "--seconds", "20"])
    shown = capsys.readouterr().out
    assert sorted(file.stem for file in (tmp_path / "out").glob("*.json")) == sorted(job.file for job in whole.JOBS)
    assert len(list((tmp_path / "out").iterdir())) == 8, "as many files come back as a machine may be asked for"
    assert "gemm_f16_nt" in shown and "no results: ended with 1" in shown and "again gemm_f16_nt" in shown
    assert "stopped after" in shown, "what has written its shapes by then keeps them"
    assert "a fault" in (tmp_path / "out/whole.log").read_text()


def test_nothing_is_begun_where_the_check_fails(stub: Path, tmp_path: Path) -> None:
    import whole

    stub.write_text(GEMM.replace("ABSENT", "{'cublaslt': 'it is not here'}"))
    with pytest.raises(DeepgenError, match="no cublaslt: it is not here"):
        whole.main(["--out", str(tmp_path / "out")])
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["whole.log"]


@pytest.mark.usefixtures("h200")
def test_defaults_are_raced_beside_those_of_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import sm90_defaults

    before, only = tmp_path / "before.json", ["--formats", "gemm_f8e4m3_nt_exact", "--only", "17"]
    sm90_defaults.main(["--write", str(before), *only])
    words = [*only, "--before", str(before), "--more", "0", "--cores", "2", "--out", str(tmp_path)]
    sm90_defaults.main(words)
    (row,) = read(tmp_path / "sm90_defaults.json")["formats"]["gemm_f8e4m3_nt_exact"]
    assert row["us"]["default"] == row["us"]["before"], "what is the same is raced once"
    assert {"best", "best, sizes open", "cublaslt"} <= set(row["us"]) and not row["wrong"]
    assert "before 1.0000" in capsys.readouterr().out


@pytest.mark.usefixtures("h200")
def test_sums_of_8_bit_floats_are_compared_with_float64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sm90_sums

    monkeypatch.setattr(sm90_sums, "DTYPES", ("f8e4m3",))
    sm90_sums.main(["--depths", "256", "--cores", "2", "--out", str(tmp_path)])
    drawn, positive = read(tmp_path / "sm90_sums.json")["rows"]
    ways = {"fast", "f32", "warp-wide products", "cuBLASLt", "cuBLASLt, fast"}
    assert ways <= set(drawn["errors"]) and drawn["errors"]["fast"]["norm"] < 1e-6  # this chip is exact
    assert positive["errors"]["fast"]["norm"] > 0.5  # it gives the answer of before, which is noticed
