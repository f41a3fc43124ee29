"""A compiler may crash, hang, print for ever or leave children behind: that leads to a verdict and never harms the
machine.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path

import pytest
from build_helpers import alive, until

from deepgen.frontends.cli.processes import descendants
from deepgen.toolchains import BuildLimits, Group
from deepgen.toolchains.process import End, Finished, run

# Limits are set on a process from outside, a moment after it started.
LIMITED = "while [ $(ulimit -f) = unlimited ] || [ $(ulimit -c) != 0 ]; do sleep 0.01; done;"


def sh(script: str, folder: Path, group: Group, **limits: float) -> Finished:
    return run(["/bin/sh", "-c", script], folder=folder, limits=BuildLimits(**limits), group=group)  # type: ignore[arg-type]


def test_what_a_command_prints_and_how_it_ends_is_told(tmp_path: Path, group: Group) -> None:
    finished = sh("echo out; echo err >&2; exit 3", tmp_path, group)
    assert (finished.code, finished.end, finished.log) == (3, End.ITSELF, "out\nerr\n")


def test_a_crash_is_told_by_its_signal(tmp_path: Path, group: Group) -> None:
    assert sh("kill -SEGV $$", tmp_path, group).code == -signal.SIGSEGV


def test_a_hang_ends_at_the_wall_clock_limit(tmp_path: Path, group: Group) -> None:
    finished = sh("sleep 1000", tmp_path, group, wall_seconds=0.3)
    assert finished.end is End.WALL_CLOCK
    assert finished.code == -signal.SIGKILL


def test_a_command_that_closes_its_output_and_hangs_is_ended_too(tmp_path: Path, group: Group) -> None:
    finished = sh("exec >/dev/null 2>&1; sleep 1000", tmp_path, group, wall_seconds=0.3)
    assert finished.end is End.WALL_CLOCK


def test_an_endless_loop_ends_at_the_cpu_limit(tmp_path: Path, group: Group) -> None:
    finished = sh("while :; do :; done", tmp_path, group, cpu_seconds=1)
    assert finished.code == -signal.SIGXCPU


def test_children_forked_before_the_limits_came_are_limited_too(tmp_path: Path, group: Group) -> None:
    script = f"({LIMITED} ulimit -v; sh -c 'ulimit -v'); exit"
    assert sh(script, tmp_path, group, memory_bytes=1 << 30, wall_seconds=60).log.split() == ["1048576"] * 2


def test_no_file_may_grow_past_its_limit_and_no_core_is_dumped(tmp_path: Path, group: Group) -> None:
    finished = sh(f"{LIMITED} head -c 10000000 /dev/zero > big", tmp_path, group, file_bytes=1 << 20)
    assert finished.code != 0
    assert (tmp_path / "big").stat().st_size <= 1 << 20
    assert sh(f"{LIMITED} ulimit -c", tmp_path, group).log == "0\n"


def test_children_that_outlive_their_parent_are_killed_and_do_not_delay(tmp_path: Path, group: Group) -> None:
    script = "for i in 1 2 3 4 5; do (sleep 1000 & sleep 1000) & echo $!; done"
    finished = sh(script, tmp_path, group)
    children = [int(pid) for pid in finished.log.split()]
    assert finished.end is End.ITSELF
    assert len(children) == 5
    assert until(lambda: not any(map(alive, children)))


def test_two_gigabytes_of_output_fill_neither_memory_nor_disk(tmp_path: Path, group: Group) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    finished = sh("echo first words; head -c 2000000000 /dev/zero | tr '\\0' x", tmp_path, group)
    assert finished.end is End.OUTPUT
    assert finished.log.startswith("first words\n")
    assert len(finished.log) < 70_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # in KiB
    assert list(tmp_path.iterdir()) == []


def test_of_a_long_log_the_first_and_the_last_part_are_kept(tmp_path: Path, group: Group) -> None:
    log = sh("echo first; head -c 100000 /dev/zero | tr '\\0' x; echo last", tmp_path, group, log_bytes=1000).log
    assert log.startswith("first\n")
    assert log.endswith("x" * 100 + "last\n")
    assert "99011 bytes left out" in log


def test_killing_the_group_ends_a_running_command_and_allows_no_other(tmp_path: Path, group: Group) -> None:
    threading.Timer(0.2, group.kill).start()
    with pytest.raises(CancelledError):
        sh("sleep 1000", tmp_path, group)
    with pytest.raises(CancelledError):
        sh("true", tmp_path, group)


def test_the_clock_stands_still_during_a_pause(group: Group) -> None:
    group.pause()
    before, paused = group.clock(), time.monotonic()
    time.sleep(0.05)
    assert group.clock() == before
    group.pause()
    group.resume()
    assert group.paused
    slept = time.monotonic() - paused
    group.resume()
    assert not group.paused
    assert group.clock() - before <= time.monotonic() - paused - slept


def orphan_maker(folder: Path, meanwhile: str = "") -> str:
    return f"""
import os, signal, threading
from pathlib import Path
from deepgen.toolchains import BuildLimits, Group
from deepgen.toolchains.process import run
from deepgen.frontends.cli.processes import descendants

def meanwhile():
    {meanwhile or "pass"}

threading.Thread(target=meanwhile, daemon=True).start()
with Group() as group:
    run(["/bin/sh", "-c", "sleep 1000 & echo $! $$ > pids; wait"], folder=Path({str(folder)!r}),
        limits=BuildLimits(), group=group)
"""


# What a Ray worker does when it is told to exit: its children die first, but not their children.
AS_RAY = """
    while not (Path({folder!r}) / "told").exists():
        pass
    for pid, child in descendants(os.getpid()).items():
        if child.parent == os.getpid():
            os.kill(pid, signal.SIGKILL)
    os._exit(0)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, "as Ray does"])
def test_compilers_die_with_deepgen_however_it_dies(tmp_path: Path, how: signal.Signals | str) -> None:
    meanwhile = AS_RAY.format(folder=str(tmp_path)) if isinstance(how, str) else ""
    deepgen = subprocess.Popen([sys.executable, "-c", orphan_maker(tmp_path, meanwhile)], stderr=subprocess.DEVNULL)
    pids = tmp_path / "pids"
    assert until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    compilers = [int(pid) for pid in pids.read_text().split()]
    assert all(map(alive, compilers))
    if isinstance(how, str):
        (tmp_path / "told").touch()
    else:
        deepgen.send_signal(how)
    deepgen.wait()
    try:
        assert until(lambda: not any(map(alive, compilers)))
    finally:
        for pid in compilers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def guards(group: Group) -> list[int]:
    """The guard of a group, found by the mark that it looks for."""
    [mark] = (value.encode() for value in group.mark.values())
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes()
            if b"guard.py" in words and mark in words and alive(int(entry.name)):
                found.append(int(entry.name))
    return found


def test_a_compiler_that_was_only_being_started_dies_too(tmp_path: Path, group: Group) -> None:
    """For a moment after the fork only a pipe that it holds distinguishes it from its parent."""
    script = f"""
import os, time
from pathlib import Path
from deepgen.toolchains import Group
group = Group()
def start():
    os.environ.update(group.mark)
    if (child := os.fork()) == 0:
        for fd in group.inherited:
            os.set_inheritable(fd, True)
        time.sleep(1.5)
        os.execv("/bin/sleep", ["sleep", "1000"])
    Path({str(tmp_path / "pid")!r}).write_text(str(child) + ".")
    os.kill(os.getpid(), 9)
group.start(start)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
    compiler = int((tmp_path / "pid").read_text().rstrip("."))
    assert until(lambda: not alive(compiler))


def test_a_guard_that_was_killed_is_replaced(tmp_path: Path, group: Group) -> None:
    sh("true", tmp_path, group)
    [first] = guards(group)
    os.kill(first, signal.SIGKILL)
    assert until(lambda: not guards(group))
    assert sh("echo fine", tmp_path, group).log == "fine\n"
    [second] = guards(group)
    assert second != first


def test_nothing_is_left_running_after_a_group(tmp_path: Path) -> None:
    before = descendants(os.getpid())
    with Group() as group:
        sh("true", tmp_path, group)
        assert guards(group)
    assert not guards(group)
    assert descendants(os.getpid()).keys() <= before.keys()
