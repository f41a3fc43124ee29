"""Processes on a node whose driver or node is gone exit by themselves, whether Ray notices or not."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deepgen_cluster.ray import connection, lease
from deepgen_cluster.ray import tester as testers
from deepgen_cluster.ray.lease import HANGS_ROUNDS, RENEW_SECONDS, SILENT_SECONDS, Lease, Renewals

SECONDS = 300.0
PID = 4321


def until(condition: Any) -> bool:
    end = time.monotonic() + SECONDS
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return bool(condition())


def test_a_process_that_no_driver_speaks_to_ends() -> None:
    ended = threading.Event()
    Lease(ended.set, seconds=0.03, tick=0.01)
    assert ended.wait(SECONDS)


def test_a_process_that_a_driver_speaks_to_stays() -> None:
    ended = threading.Event()
    lease = Lease(ended.set, seconds=4.0, tick=0.01)
    for _ in range(10):
        lease.renew()
        assert not ended.wait(0.5), "it was renewed all the while"


def test_a_driver_speaks_often_enough() -> None:
    assert SILENT_SECONDS >= 5 * RENEW_SECONDS, "some words may be late or lost"


ORPHAN = """
import os, time
from deepgen_cluster.ray import lease
lease.TICK_SECONDS = 0.01
if os.fork():
    time.sleep(60)
os.environ["RAY_RAYLET_PID"] = str(os.getppid())
lease.end_with_node()
print("begins", flush=True)
time.sleep(120)
print("is still there", flush=True)
"""


def test_a_process_whose_raylet_was_killed_ends() -> None:
    """Ray's own check for this stops while a clock is set back."""
    raylet = subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True)
    assert raylet.stdout is not None
    with raylet.stdout as said:
        assert said.readline() == "begins\n"
        raylet.kill()
        raylet.wait()
        assert said.read() == "", "the pipe ends with the last process that holds it"


class RayError(Exception):
    pass


class ActorDiedError(RayError):
    pass


class Actor:
    """Counts how often it is renewed."""

    def __init__(self, answer: Exception | None = None) -> None:
        self.renew = self
        self._actor_id = self
        self.answer = answer
        self.renewed = 0
        self.silent = False
        self.waits = False  # for a process
        self.pid = PID

    def hex(self) -> Actor:
        return self

    def options(self, concurrency_group: str) -> Actor:
        return self

    def remote(self) -> Actor:
        self.renewed += 1
        return self


def ask(actor: Actor) -> tuple[int, str]:
    if actor.answer is not None:
        raise actor.answer
    return actor.pid, "node"


def table(actor: Actor) -> dict[str, Any]:
    return {"Pid": actor.pid, "Address": {"NodeID": "node", "Port": int(not actor.waits)}}


RAY = SimpleNamespace(
    exceptions=SimpleNamespace(RayError=RayError, ActorDiedError=ActorDiedError),
    wait=lambda refs, timeout: ([ref for ref in refs if not ref.silent], [ref for ref in refs if ref.silent]),
    get=ask,
    _private=SimpleNamespace(state=SimpleNamespace(actors=table)),
    nodes=lambda: [{"NodeID": "node", "NodeManagerHostname": socket.gethostname()}],
)


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that were killed."""
    pids: list[int] = []
    monkeypatch.setattr(lease, "_kill", pids.append)
    return pids


@pytest.fixture
def renewals(killed: list[int]) -> Iterator[Renewals]:
    """A driver's renewals, in quick succession."""
    made = Renewals(RAY, seconds=0.01)
    yield made
    made.close()


def test_a_driver_renews_its_devices_until_it_closes(killed: list[int], renewals: Renewals) -> None:
    well, restarting, dead, silent = Actor(), Actor(RayError()), Actor(ActorDiedError()), Actor()
    silent.silent = silent.waits = restarting.waits = True
    for actor in (well, restarting, dead, silent):
        renewals.add(actor)
    assert until(lambda: well.renewed > 5 and restarting.renewed > 5)
    renewals.close()
    assert dead.renewed == 1, "nobody asks the dead again"
    assert silent.renewed == 1, "one call waits there, and not a growing heap of them"
    assert not killed, "they may wait for their node"
    count = well.renewed
    time.sleep(0.05)
    assert well.renewed == count


@pytest.mark.parametrize("unavailable", [False, True], ids=["silent", "its connection is lost first"])
def test_a_device_that_answers_no_more_is_killed(unavailable: bool, killed: list[int], renewals: Renewals) -> None:
    """For example after it was suspended: its trial, and a lock that it may hold, would wait for ever."""
    actor = Actor()
    renewals.add(actor)
    assert until(lambda: actor.renewed > 5)
    assert not killed
    if unavailable:
        actor.answer = RayError()
        before = actor.renewed
        assert until(lambda: actor.renewed > before + 2)
    actor.silent = True
    assert until(lambda: len(killed) > 1), "again, as long as nothing is heard of its end"
    renewals.close()
    assert set(killed) == {PID}


def test_a_device_that_stays_unavailable_is_killed(killed: list[int], renewals: Renewals) -> None:
    """Every call to a suspended process may fail at once if its connection is lost: that is no sign of life."""
    actor = Actor()
    renewals.add(actor)
    assert until(lambda: actor in renewals._renewed)
    actor.answer = RayError()
    assert until(lambda: len(killed) > 1)
    renewals.close()
    assert set(killed) == {PID}


def test_a_device_that_hangs_before_its_first_answer_is_killed(killed: list[int], renewals: Renewals) -> None:
    """As a restarted one may do: the process that had answered before it ended long ago."""
    actor = Actor()
    renewals.add(actor)
    assert until(lambda: actor.renewed > 5)
    actor.waits, actor.answer = True, RayError()
    before = actor.renewed
    assert until(lambda: actor.renewed > before + 3 * HANGS_ROUNDS)
    assert not killed, "that process has ended, and its number may be another's"
    actor.silent = True
    actor.pid, actor.waits = PID + 1, False
    assert until(lambda: len(killed) > 1)
    renewals.close()
    assert set(killed) == {PID + 1}


def test_a_device_that_was_started_again_has_its_time_to_answer(killed: list[int]) -> None:
    """The earlier silence was not its own."""
    actor = Actor()
    renewals = Renewals(RAY)  # its first round is seconds away: the test runs the rounds
    renewals.add(actor)
    for _ in range(2):
        renewals._renew(actor)
    actor.silent = True
    for _ in range(HANGS_ROUNDS - 1):
        renewals._renew(actor)
    actor.pid += 1
    for _ in range(HANGS_ROUNDS):
        renewals._renew(actor)
    assert not killed
    renewals._renew(actor)
    assert killed == [PID + 1]
    renewals.close()


def test_actors_are_renewed_as_long_as_there_is_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "imported", lambda: RAY)
    monkeypatch.setattr(connection, "_held", held := connection._Held())
    held.sessions = 2
    connection.keep(Actor())
    renewals = held.renewals
    assert renewals is not None
    connection.disconnect()
    assert held.renewals is renewals, "another session is left"
    connection.disconnect()
    assert held.renewals is None and not renewals._thread.is_alive()


HOLDER = """
import subprocess, sys, time
from pathlib import Path
from deepgen_cluster.ray import lease
with lease.timing(Path(sys.argv[1])):
    child = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
    print(child.pid, flush=True)
    time.sleep(60)
"""


def test_a_turn_ends_with_its_process_and_not_with_what_that_started(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    with holder.stdout as said:
        child = int(said.readline())
    try:
        holder.kill()
        holder.wait()
        began = time.monotonic()
        with lease.timing(tmp_path):
            assert time.monotonic() - began < SECONDS
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_measuring_process_has_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(get_accelerator_ids=dict, get_node_id=lambda: "node")
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get_runtime_context=lambda: context))
    words: list[str] = []
    monkeypatch.setattr(testers, "Lease", lambda: SimpleNamespace(renew=lambda: words.append("renewed")))
    monkeypatch.setattr(testers, "end_with_node", lambda: words.append("ends with its node"))
    assert testers.Tester(0).renew() == (os.getpid(), "node")
    assert words == ["ends with its node", "renewed"]
