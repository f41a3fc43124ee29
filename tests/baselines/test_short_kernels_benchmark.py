"""The benchmark of short kernels runs to its end on a chip that is made up, and tells where finals disagree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="its tensors are the device's memory")

from fake_h200 import CALL_MS, install

import needs
from deepgen.targets.cuda import parse_cuda
from deepgen.vocabulary import DeepgenError


def test_all_states_are_timed_and_disagreements_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needs.toolchain(parse_cuda("h200"), "cuda")
    library = install(monkeypatch, tmp_path)
    import short_kernels

    def searched(operator: Any, *_: Any) -> tuple[Any, dict[str, Any]]:
        if operator.batch > 1:
            raise DeepgenError("no kernel of this family")
        said = {"ours": 6.8, "torch": 36.0, "cublaslt": CALL_MS * 1e3}
        row = {"said": said, "empty_launch_us": 2.8, "late_samples": 0}
        return lambda a, b, out: library.answer(out.data_ptr()), row

    monkeypatch.setattr(short_kernels, "searched", searched)
    monkeypatch.setattr(short_kernels, "FLUSH_BYTES", 4096)
    monkeypatch.setattr(short_kernels, "at_places", lambda *_: {"ours": [6.5, 6.7]})  # the chip knows one place
    library.idle = tuple(f"take{size}" for size in short_kernels.BYTES)
    out = tmp_path / "out.json"
    assert short_kernels.main(["--rounds", "3", "--out", str(out)]) == 1, "one problem was not measured"
    record = json.loads(out.read_text())
    (row,) = record["problems"]
    assert not row["absent"] and row["called"].keys() == {"ours", "torch", "cublaslt"}
    assert all(called.keys() == short_kernels.STATES.keys() for called in row["called"].values())
    assert record["arguments"].keys() == {f"{size} bytes" for size in short_kernels.BYTES}
    told = [line for line in record["disagreements"] if "torch" in line]
    assert told == ["gemm bf16 nt 768x768x768: finals say 36.00 us of torch, events around its call 7.00 us"]
    shown = capsys.readouterr().out
    assert (
        told[0] in shown
        and "no kernel of this family" in shown
        and "2048 bytes" in shown
        and "6.50 to 6.70 us" in shown
    )
