"""Changes that a kernel makes to its process are detected; those made on purpose by runtimes and users are accepted."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from deepgen.run.measure.harness import FloatingMode
from deepgen.run.measure.process_state import Watch, difference, read

STATE, USUAL = read(), FloatingMode(0)


@pytest.mark.parametrize("file", ["/dev/nvidia0", "/dev/shm/__KMP_REGISTERED_LIB_7 (deleted)", "anon_inode:[eventfd]"])
def test_what_runtimes_keep_open_is_no_fault(file: str) -> None:
    assert difference(STATE, replace(STATE, files={**STATE.files, 99: file}), USUAL) is None


def test_files_are_named(tmp_path: Path) -> None:
    more = {90 + i: str(tmp_path / str(i)) for i in range(5)}
    other = replace(STATE, files={**STATE.files, **more})
    named = f"{more[90]}, {more[91]}, {more[92]} and 2 more"
    assert difference(STATE, other, USUAL) == f"left files open ({named})"
    assert difference(other, STATE, USUAL) == f"closed files of its process ({named})"
    reopened = replace(other, files={**other.files, 90: "/another"})
    assert difference(other, reopened, USUAL) == "left files open (/another)"


def test_openmp_registers_itself_in_the_environment() -> None:
    registered = {**STATE.variables, b"__KMP_REGISTERED_LIB_7": b"1"}
    assert difference(STATE, replace(STATE, variables=registered), USUAL) is None


def test_a_thread_is_pinned_where_the_user_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = replace(STATE, cores=frozenset({-1}))
    assert difference(STATE, pinned, USUAL) == "changed the CPU affinity of its process and did not restore it"
    monkeypatch.setenv("OMP_PROC_BIND", "close")
    assert difference(STATE, pinned, USUAL) is None


def test_all_that_was_changed_is_told_in_one_sentence() -> None:
    other = replace(STATE, umask=STATE.umask ^ 1, folder="/elsewhere", children=True)
    assert difference(STATE, other, FloatingMode.ROUNDING) == (
        "changed the rounding mode, the working folder and the umask of its process and did not restore them; "
        "left behind a process that it had started"
    )


def test_a_process_that_ends_later_is_no_fault_of_the_next_kernel() -> None:
    """A process from building the Python call path was still ending when the next contender's turn began."""
    ending = replace(STATE, orphans=frozenset({7}), children=True)
    assert difference(ending, replace(STATE, orphans=frozenset(), children=False), USUAL) is None
    left = "left behind a process that it had started"
    assert difference(ending, replace(ending, orphans=frozenset({8})), USUAL) == left
    assert difference(replace(STATE, children=False), replace(STATE, children=True), USUAL) == left


def test_what_a_baseline_changes_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch, before = Watch(lambda: USUAL), read()
    monkeypatch.setenv("SET_BY_A_BASELINE", "1")
    with (tmp_path / "kept open").open("w"):
        os.chdir(tmp_path)
        os.umask(0)
        os.sched_setaffinity(0, {min(before.cores)})
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        assert "the umask" in (watch.changed() or "")
        watch.accept()
        assert watch.changed() is None, "its file and its variable are its own affair"
    assert difference(before, replace(read(), variables=before.variables), USUAL) is None
