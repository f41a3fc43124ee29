"""A whole run on three hosts over real SSH: processes are killed repeatedly, and nothing is lost or measured twice."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster_processes import marked, of_node

from deepgen.tuning import Study
from deepgen.tuning.study.rows import unpack
from deepgen.vocabulary import Trial
from deepgen_cluster.folder import RunFolder
from deepgen_cluster.model import Host

TRIALS = 60
SECONDS = 600.0  # limit for anything: for hangs, not for slowness
IN_FLIGHT = 12  # two calls per device, three devices: lost with the driver, or with a device
TASK = f"""
operator = "gemm"
shapes = {{ MNK = %d }}
[budget]
trials = {TRIALS}
"""
GROUPS = """
[[groups]]
name = "one"
target = "sim:build_seconds=0.02,measure_seconds=0.04"
build_host = "builder"
measure_host = "tester"
jobs = 2
devices = [4, 7]
strategy = "random"
tasks = [{ config = "tasks/first.toml", results = "first" }]

[[groups]]
name = "two"
target = "sim:build_seconds=0.02,measure_seconds=0.05"
build_host = "both"
measure_host = "both"
jobs = 2
devices = [3]
strategy = "random"
tasks = [{ config = "a.toml", results = "a" }, { config = "b.toml", results = "b" }]
"""


@pytest.fixture
def hosts(servers) -> dict[str, Host]:
    made = {name: servers.host(f"127.0.0.{n}", name) for n, name in ((2, "builder"), (3, "tester"), (4, "both"))}
    for host in made.values():
        count_measurements(Path(host.folder))
        slow(host).touch()
    return made


@pytest.fixture
def deepgen(tmp_path: Path) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """The command line in a separate process."""
    ran: list[str] = []

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "deepgen", "cluster", *argv]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False)
        ran.append(f"{' '.join(argv)} -> {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    yield run
    print("\n".join(ran))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """The command line in the foreground, as in a terminal."""
    started: list[subprocess.Popen[str]] = []

    def run(*argv: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "deepgen", "cluster", *argv]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_a_run_survives_what_happens_to_clusters(hosts, own_file, deepgen, start, tmp_path: Path) -> None:
    write_tasks(hosts)
    file = own_file(hosts, GROUPS)
    folder = RunFolder(tmp_path / "run")
    command = ("run", str(file), "--study-folder", str(folder.path), "--keep-up")
    before = marked()
    try:
        viewer = start(*command)
        wait_until(lambda: ended(folder, "one") >= 8 and ended(folder, "two") >= 8, folder)
        kill(viewer.pid)  # as when the connection is lost: the driver continues
        driver = folder.driver()
        assert driver is not None
        (tester, *_) = [pid for pid in of_node(hosts["tester"], "one") if b"Tester" in cmdline(pid)]
        kill(tester)
        for pid in of_node(hosts["both"], "two"):
            kill(pid)
        at = ended(folder, "two")
        wait_until(lambda: ended(folder, "two") > at + 3, folder)
        assert "is back" in folder.log.read_text()

        in_the_way = deepgen("down", str(file))
        assert in_the_way.returncode == 1 and "deepgen cluster stop run" in in_the_way.stderr
        kill(driver)
        wait_until(lambda: folder.driver() is None, folder)
        killed = {study.folder: study.trials() for study in studies(folder)}
        assert sum(map(len, killed.values())) < 3 * TRIALS, "the driver was killed too late to show anything"

        # Attached, it continues; Ctrl-C there ends only the view, and in `run` the run.
        look = start("attach", str(folder.path))
        wait_until(lambda: ended(folder, "two") > len_of(killed, "two") + 3, folder)
        assert "the run continues" in interrupted(look) and folder.driver() is not None
        assert "Resume with: deepgen cluster attach run" in interrupted(start(*command))
        assert folder.driver() is None and folder.progress().state == "stopped"
        stopped = {study.folder: study.trials() for study in studies(folder)}

        for host in hosts.values():
            slow(host).unlink()
        again = deepgen(*command[:-1], "--json")  # this time without --keep-up
        assert again.returncode == 0, again.stdout + again.stderr + folder.log.read_text()
        assert marked() <= before, "a run takes down what it brought up"
    finally:
        if pid := folder.driver():
            kill(pid)
        down = deepgen("down", str(file))
    assert down.returncode == 0 and down.stdout.count("nothing was running") == 4
    assert json.loads(again.stdout)["state"] == "done"
    finished = studies(folder)
    assert len(finished) == 3
    for study in finished:
        trials = study.trials()
        assert [trial.id for trial in trials] == list(range(TRIALS))
        assert len({trial.rank for trial in trials}) == TRIALS
    for moment in (killed, stopped):
        check_kept(moment, finished)
    check_measured_once(finished, [Path(host.folder) for host in hosts.values()])
    check_results(folder, hosts)


def write_tasks(hosts: dict[str, Host]) -> None:
    tasks = Path(hosts["builder"].folder) / "tasks"
    tasks.mkdir()
    (tasks / "first.toml").write_text(TASK % 64)
    for size, name in ((64, "a.toml"), (128, "b.toml")):
        (Path(hosts["both"].folder) / name).write_text(TASK % size)


def check_kept(kept: dict[Path, list[Trial]], now: list[Study]) -> None:
    """Everything recorded at some moment is still there, unchanged."""
    later = {study.folder: study.trials() for study in now}
    for folder, trials in kept.items():
        assert [later[folder][trial.id] for trial in trials] == trials


def check_measured_once(finished: list[Study], places: list[Path]) -> None:
    """No device started to measure a recorded trial, and only what was in flight at a kill was started twice."""
    begun = [json.loads(line) for place in places for line in log_of(place)]
    recorded = [row for study in finished for row in rows_of(study)]
    last: dict[str, float] = {}
    for entry in begun:
        what = json.dumps(entry["what"], sort_keys=True)
        last[what] = max(last.get(what, 0.0), entry["at"])
    assert set(last) == {what for what, _ in recorded}
    assert all(last[what] <= done_at for what, done_at in recorded)
    assert 0 <= len(begun) - len(recorded) <= IN_FLIGHT


def check_results(folder: RunFolder, hosts: dict[str, Host]) -> None:
    names = {
        "builder": ("one", ["first_card4.json", "first_card7.json"]),
        "both": ("two", ["a_card3.json", "b_card3.json"]),
    }
    for host, (group, files) in names.items():
        for name in files:
            text = (folder.path / group / name).read_text()
            assert json.loads(text)["results"][0]["correct"] is True
            assert (Path(hosts[host].folder) / "_cluster_run" / name).read_text() == text


def count_measurements(place: Path) -> None:
    """A Python in the host's folder with the hook on its path."""
    (place / ".venv").unlink()
    hook, python = place / "hook/sitecustomize.py", place / ".venv/bin/python"
    hook.parent.mkdir()
    python.parent.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("measure_log.py"), hook)
    python.write_text(f'#!/bin/sh\nPYTHONPATH={hook.parent} exec {sys.executable} "$@"\n')
    python.chmod(0o755)


def slow(host: Host) -> Path:
    """While this file exists, the host's devices are slow, so that a test's actions hit the middle of the run."""
    return Path(host.folder, "hook/slow")


def log_of(place: Path) -> list[str]:
    log = place / "hook/measured.jsonl"
    return log.read_text().splitlines() if log.exists() else []


def rows_of(study: Study) -> list[tuple[str, float]]:
    with contextlib.closing(sqlite3.connect(study.folder / "journal.sqlite")) as journal:
        rows = journal.execute("SELECT config, done_at FROM trials").fetchall()
    about = [study.target.name, study.operator.to_json()]
    return [(json.dumps([*about, unpack(config)], sort_keys=True), at) for config, at in rows]


def studies(folder: RunFolder) -> list[Study]:
    return [Study.open(path.parent) for path in sorted(folder.path.glob("*/*/journal.sqlite"))]


def ended(folder: RunFolder, group: str) -> int:
    count = 0
    for path in folder.path.glob(f"{group}/*/journal.sqlite"):
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as journal:
            try:
                count += journal.execute("SELECT COUNT(*) FROM trials WHERE verdict IS NOT NULL").fetchone()[0]
            except sqlite3.OperationalError:
                continue
    return count


def wait_until(true: Callable[[], bool], folder: RunFolder) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        text = folder.log.read_text() if folder.log.exists() else ""
        alive = time.monotonic() < deadline and folder.progress().state in ("starting", "running")
        assert alive, f"it did not happen; the log:\n{text}"
        time.sleep(0.1)


def interrupted(view: subprocess.Popen[str]) -> str:
    """The output of a command when Ctrl-C reaches it, once it shows a group."""
    assert view.stderr is not None
    said = ""
    while not said.rpartition("\n")[2].startswith(("one", "two")):
        said = f"{said}\n{view.stderr.readline()}".rstrip()
        assert view.poll() is None, said
    view.send_signal(signal.SIGINT)
    said += view.communicate(timeout=SECONDS)[1]
    assert view.returncode == 130, said
    return said


def len_of(kept: dict[Path, list[Trial]], group: str) -> int:
    return sum(len(trials) for path, trials in kept.items() if path.parent.name == group)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
