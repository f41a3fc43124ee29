"""What a kernel changes in its process is seen; what runtimes and users do on purpose is no fault of a kernel's."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from deepgen.measure.harness import Arithmetic
from deepgen.measure.process_state import Watch, differences, read

STATE = read()


@pytest.mark.parametrize("file", ["/dev/nvidia0", "/dev/shm/__KMP_REGISTERED_LIB_7 (deleted)", "anon_inode:[eventfd]"])
def test_what_runtimes_keep_open_is_no_fault(file: str) -> None:
    assert not list(differences(STATE, replace(STATE, files={**STATE.files, 99: file})))


def test_files_are_named(tmp_path: Path) -> None:
    more = {90 + i: str(tmp_path / str(i)) for i in range(5)}
    [told] = differences(STATE, replace(STATE, files={**STATE.files, **more}))
    assert told == f"left files open ({more[90]}, {more[91]}, {more[92]} and 2 more)"
    [told] = differences(replace(STATE, files={**STATE.files, **more}), STATE)
    assert told.startswith("closed files of its process (")
    [told] = differences(replace(STATE, files={**STATE.files, 90: "a"}), replace(STATE, files={**STATE.files, 90: "b"}))
    assert told == "left files open (b)"


def test_openmp_registers_itself_in_the_environment() -> None:
    assert not list(differences(STATE, replace(STATE, variables={**STATE.variables, b"__KMP_REGISTERED_LIB_7": b"1"})))


def test_a_thread_is_pinned_where_the_user_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = replace(STATE, cores=frozenset({-1}))
    assert list(differences(STATE, pinned)) == ["changed the cores that its process may run on"]
    monkeypatch.setenv("OMP_PROC_BIND", "close")
    assert not list(differences(STATE, pinned))


def test_what_a_baseline_changes_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch, before = Watch(lambda: Arithmetic(0)), read()
    monkeypatch.setenv("SET_BY_A_BASELINE", "1")
    with (tmp_path / "kept open").open("w"):
        os.chdir(tmp_path)
        os.umask(0)
        os.sched_setaffinity(0, {min(before.cores)})
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        assert "changed the umask of its process" in (watch.changed() or "")
        watch.accept()
        assert watch.changed() is None, "its file and its variable are its own affair"
    assert not list(differences(before, replace(read(), variables=before.variables)))
