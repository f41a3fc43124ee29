"""Two processes and one study: the second is refused with a message, the first is unaffected, readers are allowed."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deepgen.tuning import Study
from deepgen.tuning.study.journal import FILE
from deepgen.vocabulary import DeepgenError

TUNE = ["tune", "gemm", "MNK=128", "--target", "sim:measure_seconds=0.1,faults=0.2", "--json",
        "--strategy", "random"]  # fmt: skip
LONG = ["--trials", "5000"]  # longer than any test: the first is still running however slow the machine is


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "deepgen", *words]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate()
    return process.returncode, out, err


def run(folder: Path, *words: str) -> tuple[int, str, str]:
    return end(start(folder, *words))


@pytest.fixture
def first(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A running study that already has some trials."""
    process = start(tmp_path, *TUNE, *LONG)
    while process.poll() is None and ended(tmp_path) < 10:
        time.sleep(0.05)
    yield process
    process.kill()
    process.communicate()


def ended(folder: Path) -> int:
    try:
        return len(study_in(folder).trials())
    except (DeepgenError, IndexError):
        return 0


def study_in(folder: Path) -> Study:
    return Study.open(sorted((folder / "deepgen-studies").glob("*"))[0])


@pytest.mark.slow
def test_the_second_is_refused_and_the_first_goes_on(tmp_path: Path, first: subprocess.Popen[str]) -> None:
    folder = study_in(tmp_path).folder
    writers = [start(tmp_path, *words) for words in ([*TUNE, *LONG], ["resume", str(folder)], ["retest", str(folder)])]
    top, status = (start(tmp_path, word, str(folder), "--json") for word in ("top", "status"))
    for code, out, err in map(end, writers):
        assert (code, out) == (1, "")
        assert f"is being written by process {first.pid}" in err
        assert "Traceback" not in err
        assert len(err.strip().splitlines()) == 1
    assert len(json.loads(end(top)[1])["top"]) >= 5
    [row] = json.loads(end(status)[1])["studies"]
    assert (row["state"], row["pid"]) == ("running", first.pid)
    before = ended(tmp_path)
    while first.poll() is None and ended(tmp_path) < before + 5:
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    code, out, err = end(first)
    assert code == 130, err
    trials = study_in(tmp_path).trials()
    assert len({t.id for t in trials}) == len({t.rank for t in trials}) == len(trials) >= before + 5
    with contextlib.closing(sqlite3.connect(folder / FILE)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.slow
def test_the_second_takes_over_when_the_first_is_killed(tmp_path: Path, first: subprocess.Popen[str]) -> None:
    assert run(tmp_path, *TUNE, *LONG)[0] == 1
    first.kill()
    first.wait()
    kept = [(t.id, t.rank, t.measurement) for t in study_in(tmp_path).trials()]
    assert len(kept) >= 10
    code, _, err = run(tmp_path, *TUNE, "--trials", str(len(kept) + 20))
    assert code == 0, err
    trials = [(t.id, t.rank, t.measurement) for t in study_in(tmp_path).trials()]
    assert [t for t in trials if t[0] in {k[0] for k in kept}] == kept
    assert len(trials) >= len(kept) + 20
