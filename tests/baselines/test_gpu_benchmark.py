"""The GPU benchmarks from candidates to the tables of their page, on a chip that is made up but builds for real."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from fake_h200 import BENCHMARKS, Library, install

FEW = ["--known", "1", "--modelled", "1", "--near", "2", "--cores", "2"]


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Library:
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
    gpu_report.main()
    assert "| bf16 nt |" in capsys.readouterr().out


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
    assert row["family"] != "sm90_gemm" or row["config"]["PROMOTE"], "sums are those that were asked for"
