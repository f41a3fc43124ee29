"""A study on RISC-V under qemu: tuned, resumed, and carried away and back; counts are never shown as times."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import deepgen
import needs
from deepgen import targets
from deepgen.cli.main import main
from deepgen.measure import Task, open_runner
from deepgen.operators import gemm
from deepgen.tuning import Study
from deepgen.vocabulary import Missing

TARGET = "riscv:rv64gcv_zvl256b"
OPERATOR = gemm(9, 20, 12)
LABEL = "weighted instruction counts under qemu, not times"


@pytest.fixture(autouse=True)
def _emulated() -> None:
    needs.qemu(TARGET)


def tuned(out: Path, trials: int) -> Study:
    return deepgen.tune(
        OPERATOR, target=TARGET, trials=trials, out=out, keep_top=1, strategy="random", transfer=False, progress=False
    )


def costs(study: Study) -> dict[int, tuple[float, ...]]:
    return {trial.id: trial.measurement.samples for trial in study.trials()}


def test_a_study_resumes_and_a_bundle_gives_the_same_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = tuned(tmp_path / "here", 2)
    study = tuned(tmp_path / "here", 3)
    assert study.folder == short.folder and len(costs(study)) == 3
    assert study.summary()["proxy"] == LABEL and LABEL in repr(study.best())
    for command in ("show", "status", "top"):
        assert main([command, str(study.folder)]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert LABEL in said, command

    monkeypatch.chdir(tmp_path)
    words = ["gemm", "M=9", "N=20", "K=12", "--target", TARGET, "--trials", "3", "--strategy", "random"]
    packed = ["bundle", "pack", *words, "--keep-top", "1", "--out", "there", "-o", "b.tar.gz"]
    assert main(packed) == 0
    with tarfile.open("b.tar.gz") as archive:
        archive.extractall(filter="data")
    done = subprocess.run(
        [sys.executable, "b/run.py", "-o", "b.results.jsonl"], capture_output=True, text=True, check=True
    )
    assert LABEL in done.stderr
    away = next((tmp_path / "there").iterdir())
    assert main(["bundle", "merge", str(away), "b.results.jsonl"]) == 0
    assert costs(Study.open(away)) == costs(study)


def test_a_machine_without_qemu_says_what_is_missing() -> None:
    with pytest.raises(Missing, match=r"qemu-riscv64.*cannot be run here.*/nowhere/qemu"):
        open_runner(Task(OPERATOR, targets.resolve(TARGET)), toolchains={"qemu-riscv64": "/nowhere/qemu"})
