"""A compiler process that is reused for further builds is as safe as one started for each build."""

from __future__ import annotations

import os
import signal
import sys
import threading
from concurrent.futures import CancelledError
from pathlib import Path

import pytest
from build_helpers import alive, until

from deepgen.toolchains import BuildLimits, Group
from deepgen.toolchains.process import End, Finished, run_resident

# Executes the Python it is sent, and replies like a compiler.
PROGRAM = r"""
import os, sys, time
while size := sys.stdin.buffer.readline():
    folder, text, code = sys.stdin.buffer.read(int(size)).decode().split("\0")
    os.chdir(folder)
    exec(text)
    sys.stdout.flush()
    sys.stdout.buffer.write(b"\0%d %f\n" % (int(code), time.process_time()))
    sys.stdout.flush()
"""
PID = "print(os.getpid())"
SPIN = "end = time.process_time() + 0.7\nwhile time.process_time() < end: pass"


def ask(text: str, folder: Path, group: Group, code: int = 0, **limits: float) -> Finished:
    command = (sys.executable, "-I", "-S", "-c", PROGRAM)
    return run_resident(command, (text, str(code)), folder=folder, limits=BuildLimits(**limits), group=group)  # type: ignore[arg-type]


def test_one_process_does_many_builds_each_in_its_folder(tmp_path: Path, group: Group) -> None:
    first = ask(PID + "; open('made', 'w')", tmp_path, group)
    other = tmp_path / "other"
    other.mkdir()
    second = ask(PID + "; open('made', 'w')", other, group)
    assert (first.code, first.end) == (0, End.ITSELF) and first.log == second.log
    assert (tmp_path / "made").exists() and (other / "made").exists()


def test_one_that_failed_is_not_asked_again(tmp_path: Path, group: Group) -> None:
    failed = ask(PID, tmp_path, group, code=1)
    assert failed.code == 1 and not alive(int(failed.log))
    assert ask(PID, tmp_path, group).log != failed.log


def test_a_crash_costs_one_build(tmp_path: Path, group: Group) -> None:
    crashed = ask("print('so far', flush=True); os.kill(os.getpid(), 11)", tmp_path, group)
    assert (crashed.code, crashed.log) == (-signal.SIGSEGV, "so far\n")
    assert ask(PID, tmp_path, group).code == 0


def test_one_that_ends_by_itself_is_told_by_its_exit_code(tmp_path: Path, group: Group) -> None:
    finished = ask("raise OSError(28, 'No space left on device')", tmp_path, group)
    assert finished.code == 1 and "No space left on device" in finished.log


def test_one_that_was_killed_while_it_rested_is_replaced(tmp_path: Path, group: Group) -> None:
    pid = int(ask(PID, tmp_path, group).log)
    os.kill(pid, signal.SIGKILL)
    until(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None)
    assert ask(PID, tmp_path, group).code == 0 and not alive(pid)


@pytest.mark.slow
def test_limits_count_for_each_build(tmp_path: Path, group: Group) -> None:
    pids = {ask(f"{SPIN}\n{PID}", tmp_path, group, cpu_seconds=1).log for _ in range(3)}
    assert len(pids) == 1  # although the process took more than a second in total
    assert ask("while True: pass", tmp_path, group, cpu_seconds=1).code == -signal.SIGXCPU
    hung = ask("time.sleep(1000)", tmp_path, group, wall_seconds=0.3)
    assert (hung.end, hung.code) == (End.WALL_CLOCK, -signal.SIGKILL)
    loud = ask("while True: print('x' * 9999)", tmp_path, group, output_bytes=100_000)
    assert loud.end is End.OUTPUT


def test_none_works_while_builds_are_paused(tmp_path: Path, group: Group) -> None:
    ask(PID, tmp_path, group)
    group.pause()
    asked = threading.Thread(target=ask, args=("open('made', 'w')", tmp_path, group))
    asked.start()
    asked.join(0.3)
    assert asked.is_alive() and not (tmp_path / "made").exists()
    group.resume()
    asked.join(300.0)
    assert (tmp_path / "made").exists()


def test_none_outlives_the_group(tmp_path: Path) -> None:
    with Group() as group:
        pid = int(ask(PID, tmp_path, group).log)
        assert alive(pid)
    assert not alive(pid)
    with pytest.raises(CancelledError):
        ask(PID, tmp_path, group)
