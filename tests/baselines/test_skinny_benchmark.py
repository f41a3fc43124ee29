"""The benchmark of thin operands, on a chip that is made up but builds for real; its page shows what it measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="its tensors are the device's memory")

from fake_h200 import BENCHMARKS, install

import needs
from deepgen.targets.cuda import parse_cuda


def test_every_family_that_serves_is_timed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needs.toolchain(parse_cuda("h200"), "cuda")
    install(monkeypatch, tmp_path)
    import skinny_bench

    from gpu_bench import operator

    monkeypatch.setattr(skinny_bench, "problems", lambda: [operator((1, 5, 1024, 512), "bf16")])
    skinny_bench.main(["--out", str(tmp_path), "--few", "1", "--cores", "2"])
    (row,) = json.loads((tmp_path / skinny_bench.FILE).read_text())["rows"]
    assert not row["wrong"] and row["tried"] == 6
    assert row["best"].keys() == row["default"].keys() == {"skinny_gemm", "mma_gemm", "sm90_gemm"}
    assert all(row["best"][name] <= row["default"][name] for name in row["best"])
    skinny_bench.main(["--out", str(tmp_path), "--few", "0", "--beside", str(tmp_path / skinny_bench.FILE)])
    (again,) = json.loads((tmp_path / skinny_bench.FILE).read_text())["rows"]
    assert again["best"] == row["best"], "the best of an earlier run are there again"
    shown = capsys.readouterr().out
    skinny_bench.main(["--show", "--out", str(tmp_path)])
    assert capsys.readouterr().out in shown and "| 1024x512 bf16 nt |" in shown


def test_the_page_shows_what_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path)
    import skinny_bench

    rows = json.loads((BENCHMARKS / "h200" / skinny_bench.FILE).read_text())["rows"]
    page = BENCHMARKS.parent / "docs/kernels/skinny_gemm.md"
    assert skinny_bench.table(rows) in page.read_text(), "python benchmarks/h200/skinny_bench.py --show"
