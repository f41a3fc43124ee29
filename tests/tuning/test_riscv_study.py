"""A study on RISC-V under qemu: tuned, resumed, moved to another machine and back; counts are never shown as times."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

import needs
from deepgen import targets
from deepgen.frontends.cli.main import main
from deepgen.operators import gemm
from deepgen.run.measure import RunnerOptions, Task, open_runner
from deepgen.toolchains import build_once
from deepgen.tuning import Study
from deepgen.vocabulary import Missing

TARGET = "riscv:rv64gcv_zvl256b"
OPERATOR = gemm(9, 20, 12)
LABEL = "weighted instruction counts under qemu, not times"


@pytest.fixture(autouse=True)
def _emulated() -> None:
    needs.qemu(TARGET)


@pytest.mark.slow
def test_a_bundle_counts_as_this_machine_does_and_its_study_goes_on_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["gemm", "M=9", "N=20", "K=12", "--target", TARGET, "--strategy", "random", "--keep-top", "1"]
    assert main(["bundle", "pack", *words, "--trials", "2", "--out", "studies", "-o", "b.tar.gz"]) == 0
    subprocess.run(["tar", "-xf", "b.tar.gz"], check=True)
    done = subprocess.run(
        [sys.executable, "b/run.py", "-o", "b.results.jsonl"], capture_output=True, text=True, check=True
    )
    assert LABEL in done.stderr
    folder = next((tmp_path / "studies").iterdir())
    assert main(["bundle", "merge", str(folder), "b.results.jsonl"]) == 0
    away = Study.open(folder).trials()

    assert main(["tune", *words, "--trials", "3", "--out", "studies"]) == 0
    study = Study.open(folder)
    assert study.trials()[:2] == away and len(study.trials()) == 3
    runner = open_runner(Task(OPERATOR, targets.resolve(TARGET)))
    kernel = study.kernel(away[0])
    assert runner.measure(kernel, build_once(kernel, study.target)).samples == away[0].measurement.samples
    runner.close()
    assert study.summary()["proxy"] == LABEL and LABEL in repr(study.best())
    capsys.readouterr()
    assert main(["export", str(folder), "--as-perf-stats"]) == 0
    stats = next(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert stats["Kernel Time (s)"] == "N/A" and 0 < int(stats["vector_load_inst"]) < int(stats["vector_inst"])
    assert main(["export", str(folder), "--as-t4", "-o", "t4.json"]) == 0
    [told] = json.loads(Path("t4.json").read_text())["results"][0]["measurements"]
    assert told["unit"] == LABEL and told["value"] == pytest.approx(away[0].measurement.conditions["cycles"])
    capsys.readouterr()
    for command in ("show", "status", "top"):
        assert main([command, str(folder)]) == 0
        assert LABEL in " ".join(capsys.readouterr().out.split()), command


def test_a_machine_without_qemu_says_what_is_missing() -> None:
    with pytest.raises(Missing, match=r"qemu-riscv64.*cannot be run here.*/nowhere/qemu"):
        open_runner(
            Task(OPERATOR, targets.resolve(TARGET)), RunnerOptions(toolchains={"qemu-riscv64": "/nowhere/qemu"})
        )
