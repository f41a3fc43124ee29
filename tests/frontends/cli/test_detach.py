"""Work in the background: it survives, can be inspected, and stops with everything that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deepgen.frontends.cli import processes
from deepgen.frontends.cli.processes import foreground
from deepgen.tuning import Study
from deepgen.tuning.study.journal import holder

SLOW = ("gemm", "MNK=64", "--target", "sim:measure_seconds=0.1", "--strategy", "random", "--trials", "500")


@pytest.fixture(autouse=True)
def nothing_left(project: Path) -> Iterator[None]:
    """Whatever a test does, no study of its project keeps running."""
    yield
    for folder in project.glob("deepgen-studies/*"):
        if (pid := holder(folder)) is not None:
            with contextlib.suppress(ProcessLookupError):  # it may be exiting by itself
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("how", [["--detach"], ["O=0"]])
def test_detach_status_stop_resume(deepgen: Callable, how: list[str]) -> None:
    started = deepgen("tune", *SLOW, *how, "--json")
    assert started.code == 0
    pid, folder = started.json()["pid"], started.json()["study"]
    assert os.getsid(pid) == pid  # a separate session: closing the terminal does not end it
    study = Study.open(folder)
    assert study.running() == pid

    again = deepgen("tune", *SLOW, *how)
    assert again.code == 1
    assert f"deepgen stop deepgen-studies/{study.folder.name}" in again.err
    assert deepgen("clean", study.folder.name, "--yes").code == 1
    assert deepgen("resume", study.folder.name, "--trials", "7").code == 1

    (row,) = deepgen("status", "--json").json()["studies"]
    assert (row["state"], row["pid"], row["budget"]) == ("running", pid, 500)
    family = {pid: processes.look(pid), **processes.descendants(pid)}
    stopped = deepgen("stop", study.folder.name, "--json").json()
    assert (stopped["pid"], stopped["clean"], stopped["killed"]) == (pid, True, 0)
    assert not any(process and process.running for process in family.values())
    assert study.running() is None

    kept = study.trials()
    assert "stopped after" in Path(started.json()["log"]).read_text()
    assert deepgen("resume", study.folder.name, "--trials", str(len(kept) + 2), "--json").code == 0
    after = {trial.id: trial for trial in study.trials()}
    assert [after[trial.id] for trial in kept] == kept


def test_stop_ends_compilers_and_workers_too(deepgen: Callable) -> None:
    started = deepgen("tune", "gemm", "MNK=64", "--target", "cpu", "--seed", "77", "--detach", "--json").json()
    deadline = time.monotonic() + 60
    family: dict[int, processes.Process] = {}
    while len(family) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
        family = processes.descendants(started["pid"])
    assert len(family) >= 2
    stopped = deepgen("stop", started["study"], "--grace", "0", "--json").json()
    assert stopped["clean"] is False
    assert not any(process.running for process in family.values())
    assert Study.open(started["study"]).running() is None


@pytest.mark.slow
def test_detaching_tells_how_to_follow_and_stop(deepgen: Callable, project: Path) -> None:
    (project / "numpy.py").write_text("raise RuntimeError('a file of the user, not to be imported')")
    said = deepgen("tune", *SLOW, "--detach")
    (folder,) = (project / "deepgen-studies").iterdir()
    for part in ("tail -f", "deepgen status", f"deepgen stop deepgen-studies/{folder.name}"):
        assert part in said.out
    assert deepgen("stop", "deepgen-studies").code == 0


def test_bad_input_is_told_before_anything_detaches(deepgen: Callable, project: Path) -> None:
    assert deepgen("tune", "gemm", "MNK=64", "--target", "abacus", "--detach").code == 2
    assert not (project / "deepgen-studies").exists()


def test_a_background_process_that_fails_at_once_is_told(deepgen: Callable, project: Path) -> None:
    said = deepgen("tune", "gemm", "MNK=64", "--target", "sim:faults=1.0", "t=3", "--detach")
    # It may fail before or after we stop watching; if before, the reason is given.
    assert said.code == 0 or "computed a correct result" in said.err


def test_a_log_that_leads_elsewhere_is_not_written(deepgen: Callable, project: Path, tmp_path: Path) -> None:
    (mine := tmp_path / "mine").write_text("export PATH\n")
    words = ("tune", "gemm", "MNK=64", "--target", "sim")
    folder = Path(deepgen(*words, "t=3", "--json").json()["study"])
    (folder / processes.LOG).symlink_to(mine)
    said = deepgen(*words, "t=9", "--detach")
    assert said.code == 2 and "log.txt: is a link" in said.err
    assert mine.read_text() == "export PATH\n"


def test_the_background_command_is_the_same_without_what_detached_it() -> None:
    argv = ["tune", "gemm", "MNK=64", "O=0", "t=5", "--detach", "--json", "--seed", "3"]
    assert foreground(argv) == ["tune", "gemm", "MNK=64", "t=5", "--seed", "3"]


STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleeper = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", sleeper], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
print("ready", flush=True)
time.sleep(600)
"""


def test_what_does_not_end_is_killed_with_its_children_in_other_sessions() -> None:
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        family = processes.descendants(process.pid)
        assert len(family) == 1
        ended = processes.end(process.pid, grace=0.3)
        assert (ended.by_itself, ended.killed, ended.left) == (False, 2, 0)
        assert not any(member.running for member in family.values())


HEADLESS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print("ready", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_runs_as_long_as_one_of_its_threads_does() -> None:
    with subprocess.Popen([sys.executable, "-c", HEADLESS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        deadline = time.monotonic() + 60
        while (found := processes.look(process.pid)) and found.state != "Z" and time.monotonic() < deadline:
            time.sleep(0.01)
        assert found is not None
        assert (found.state, found.running) == ("Z", True)  # only its first thread is a zombie
        found.signal(signal.SIGKILL)
        process.wait()
        assert not found.running


def test_a_process_number_taken_over_by_another_process_is_left_alone() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        found = processes.look(process.pid)
        assert found is not None
        earlier = processes.Process(process.pid, started="1", parent=1, state="S")
        assert not earlier.running
        earlier.signal(signal.SIGKILL)
        time.sleep(0.1)
        assert found.running
        found.signal(signal.SIGKILL)
    assert processes.end(process.pid, grace=0.1) == processes.TreeEnd(True, 0, 0)
