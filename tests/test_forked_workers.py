"""A forked worker behaves like one that was started."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from deepgen import targets
from deepgen.operators import gemm
from deepgen.run.measure import spawn
from deepgen.run.measure.base import Contender, Policy, Task
from deepgen.run.measure.supervisor import Supervisor
from forked_workers import Forked, Forks


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Forks]:
    """The second worker of its kind is a fork; the first one is started, as it might stay the only one."""
    forks = Forks()
    monkeypatch.setattr(spawn, "subprocess", forks)
    first = spawn.Spawned(1)
    assert isinstance(first.keeper, subprocess.Popen)
    first.end()
    yield forks
    forks.end()


@pytest.mark.usefixtures("forks")
def test_it_has_surroundings_and_a_session_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    task = Task(gemm(4, 4, 4), targets.resolve("cpu"), policy=Policy(threads=1))
    with closing(Supervisor(task)) as runner:
        assert runner.compare([Contender("numpy")], rounds=1, seed=1)[0].ok
        assert runner.worker_pid is not None
        worker = Path("/proc", str(runner.worker_pid))
        keeper = int((worker / "stat").read_text().rpartition(")")[2].split()[1])
        assert (worker / "cwd").readlink() != Path.cwd()
        assert len({os.getsid(pid) for pid in (0, keeper, runner.worker_pid)}) == 3
        assert (worker / "fd/0").readlink() == Path("/dev/null")
        assert (worker / "fd/1").readlink() == (worker / "fd/2").readlink()
    assert not worker.exists()


@pytest.mark.usefixtures("forks")
def test_how_it_ends_is_told() -> None:
    gc.collect()  # collect objects that earlier tests have dropped
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        ended, killed = spawn.Spawned(1), spawn.Spawned(1)
        assert isinstance(ended.keeper, Forked) and ended.keeper.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            ended.keeper.wait(0.01)
        ended.end()
        assert ended.keeper.poll() == 0
        killed.keeper.kill()
        assert killed.keeper.wait(60.0) == -signal.SIGKILL
        killed.keeper.send_signal(signal.SIGCONT)  # to nobody
        killed.end()
        gc.collect()
    assert not [one for one in seen if "subprocess" in str(one.message)], "the process that is forked is held"


@pytest.mark.usefixtures("forks")
def test_where_something_is_inherited_that_differs_it_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOMETHING", "else")
    started = spawn.Spawned(1)
    assert isinstance(started.keeper, subprocess.Popen)
    started.end()
