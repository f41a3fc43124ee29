"""The benchmark of verdicts, times in all and references runs to its end, and tells what is bad."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

import pytest

from deepgen.targets import gpu_driver, resolve

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS / "h200"))
import fake_gpu  # noqa: E402
import open_spine  # noqa: E402


def test_searches_are_timed_and_their_verdicts_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    for name in ("WRONG_BEFORE", "LARGE"):
        monkeypatch.setattr(open_spine, name, getattr(open_spine, name)[:1])
    assert open_spine.main(["--target", "sim", "--search", "2", "--out", str(out)]) == 0
    parts = json.loads(out.read_text())["parts"]
    assert [len(parts[name]) for name in ("verdicts", "totals")] == [1, 1]
    assert all(row["trials"]["correct"] and row["total_seconds"] > 0.0 for rows in parts.values() for row in rows)
    assert open_spine.main(["--target", "sim", "--seconds", "0", "--out", str(out)]) == 1
    assert "left out" in capsys.readouterr().out


@pytest.mark.parametrize(("more", "bad"), [("", 0), ("want[0] += 1;", 1)])
def test_references_of_the_device_are_compared_with_numpys(
    more: str, bad: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = resolve("cuda:sm_90a")
    operator = open_spine.gemm(40, 50, 16, layout="nt")
    built = fake_gpu.build_or_skip(open_spine.Task(operator, target), tmp_path)
    helpers = {**built, "reference": fake_gpu.reference(operator, tmp_path, more=more)}
    monkeypatch.setattr(gpu_driver, "_open", lambda api: ctypes.CDLL(str(tmp_path / "libcuda.so.1")))
    monkeypatch.setattr(open_spine, "build_helpers", lambda task, build: helpers)
    for name, value in {"ODD": (40, 50, 16), "FORMATS": ("f32",), "LARGE": ()}.items():
        monkeypatch.setattr(open_spine, name, value)
    out = tmp_path / "out.json"
    code = open_spine.main(["--target", "cuda:sm_90a", "--only", "references", "--out", str(out)])
    [row] = json.loads(out.read_text())["parts"]["references"]
    assert (code, row["ok"]) == (bad, not bad)
    assert set(row["references"]) == set(operator.probes())
