"""A lock names its holder; a signal goes only to the process that holds it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deepgen.frontends.cli import serve, status
from deepgen.tuning.study import lock
from deepgen.vocabulary import DeepgenError
from deepgen_cluster import run as cluster_run
from deepgen_cluster.folder import RunFolder

HOLDER = """
import sys, time
from pathlib import Path
from deepgen.tuning.study import lock
held = lock.take(Path(sys.argv[1]))
if len(sys.argv) > 2:
    Path(sys.argv[1]).write_text(sys.argv[2])
print("ready", flush=True)
time.sleep(600)
"""
BYSTANDER = "import time; time.sleep(600)"


@contextmanager
def process(*argv: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", *argv], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        if argv[0] is HOLDER:
            running.stdout.readline()
        try:
            yield running
        finally:
            running.kill()


def _stop_study(folder: Path) -> None:
    status.end_study(folder, 5)


def _stop_run(folder: Path) -> None:
    cluster_run.stop(RunFolder(folder))


WAYS = {"lock": [_stop_study, serve.stop], "driver.lock": [_stop_run]}
CASES = [(name, way) for name, ways in WAYS.items() for way in ways]


@pytest.mark.parametrize(("name", "way"), CASES)
def test_a_wrong_number_in_a_lock_costs_nobody_a_process(tmp_path: Path, name: str, way: object) -> None:
    assert callable(way)
    with process(BYSTANDER) as bystander:
        forged = (f"{bystander.pid}", f"{bystander.pid} {lock.start_of(bystander.pid)} - - here")
        for text in forged:
            with process(HOLDER, str(tmp_path / name), text):
                assert lock.holder(tmp_path / name) == bystander.pid
                with pytest.raises(DeepgenError, match=f"process {bystander.pid}, which does not hold this lock"):
                    way(tmp_path)
        assert bystander.poll() is None


@pytest.mark.parametrize(("name", "way"), CASES)
@pytest.mark.parametrize(
    ("namespace", "boot", "words"),
    [("pid:[1]", "", "in another container"), ("", "another-boot", "on far-away, another machine")],
)
def test_a_tuner_elsewhere_is_not_looked_for_here(
    tmp_path: Path, name: str, way: object, namespace: str, boot: str, words: str
) -> None:
    assert callable(way)
    here = lock._here()
    with process(BYSTANDER) as bystander:
        text = f"{bystander.pid} 1 {namespace or here.namespace} {boot or here.boot} far-away"
        with process(HOLDER, str(tmp_path / name), text), pytest.raises(DeepgenError, match=words) as refused:
            way(tmp_path)
        assert "stop it there" in str(refused.value)
        assert bystander.poll() is None


@pytest.mark.parametrize(("name", "way"), CASES)
def test_the_holder_itself_is_stopped(tmp_path: Path, name: str, way: object) -> None:
    assert callable(way)
    with process(HOLDER, str(tmp_path / name)) as held:
        way(tmp_path)
        assert held.wait(60) == -signal.SIGTERM
    with pytest.raises(DeepgenError, match="is not running"):
        way(tmp_path)


def test_a_lock_of_an_older_deepgen_is_proven_by_the_kernel(tmp_path: Path) -> None:
    with process(HOLDER, str(tmp_path / "lock")) as held:
        (tmp_path / "lock").write_text(str(held.pid))
        proof = lock.proven(tmp_path / "lock")
        assert proof is not None and proof.started == lock.start_of(held.pid)


def test_who_only_reads_or_waits_does_not_hold_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    refused = pytest.raises(DeepgenError, match="does not hold this lock")
    with process(HOLDER, str(path), str(os.getpid())), path.open("a"), refused:
        lock.proven(path)


def test_a_signal_goes_to_no_later_process_of_the_same_number() -> None:
    with process(BYSTANDER) as bystander:
        lock.signal_process(bystander.pid, "1", signal.SIGKILL)
        assert lock.Holder(bystander.pid, "1").signal(signal.SIGKILL) is None
        with pytest.raises(subprocess.TimeoutExpired):
            bystander.wait(0.2)


STRANGE = [
    "",
    "x",
    "-1",
    "99999999999999999999",
    "1 2",
    "0",
    "\u0663",
    "1 " * 300,
    "12 \x1b[2J a b c",
    "1 2 a b \x1b[2J",
]


@pytest.mark.parametrize("text", STRANGE)
def test_any_text_in_a_lock_is_read(tmp_path: Path, text: str) -> None:
    with process(HOLDER, str(tmp_path / "lock"), text):
        held = lock.who(tmp_path / "lock")
        assert held is not None and "\x1b" not in str(held)
        with pytest.raises(DeepgenError):
            lock.proven(tmp_path / "lock")


@pytest.mark.parametrize(("name", "way"), CASES)
def test_the_lock_of_another_program_is_not_taken_through_a_link(tmp_path: Path, name: str, way: object) -> None:
    """Programs hold a lock on the file with their number: a link to it names a process that proves to hold it."""
    assert callable(way)
    (study := tmp_path / "study").mkdir()
    with process(HOLDER, str(tmp_path / "daemon.pid")) as daemon:
        (study / name).symlink_to(tmp_path / "daemon.pid")
        with pytest.raises(DeepgenError, match="is not running"):
            way(study)
        assert daemon.poll() is None


@pytest.mark.parametrize("kind", ["link", "link to nowhere", "pipe"])
def test_what_a_lock_leads_to_is_not_overwritten(tmp_path: Path, kind: str) -> None:
    (mine := tmp_path / "mine.txt").write_text("years of work")
    path = tmp_path / "lock"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(mine if kind == "link" else tmp_path / "nowhere")
    with pytest.raises(DeepgenError, match="lock: is "):
        lock.take(path)
    assert mine.read_text() == "years of work" and not (tmp_path / "nowhere").exists()
