"""Roles, kinds of device, alternation on a host: what the Ray engine decides before there is a cluster."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import deepgen
from deepgen import targets
from deepgen.kernels.sim import SimTiles
from deepgen.operators import gemm
from deepgen.run.measure.base import Task
from deepgen.targets import X86
from deepgen.toolchains import BuildLimits, Group
from deepgen.vocabulary import BadInput, DeepgenError, Missing
from deepgen_cluster.ray import RayEngine, builder, connection, devices, flow, lease
from deepgen_cluster.ray import tester as testers
from deepgen_cluster.ray.device_pool import Member
from deepgen_cluster.ray.devices import Device, Node, choose_kind, pin

PLAIN = X86("x86:native", "Plain", ("sse2", "avx2", "fma"), 8, 32 << 10, 1 << 20, 8 << 20)
WIDE = replace(PLAIN, model="Wide", isa=(*PLAIN.isa, "avx512f"))


def device(*found: targets.Target, host: str = "a", slot: int = 0, version: str = deepgen.__version__) -> Device:
    return Device(host, slot, version, found)


def test_a_node_of_a_group_also_serves_studies_without_one() -> None:
    node = Node("1", "a", devices.of_node(build_slots=4, devices=2, groups=["night"]))
    assert node.count(devices.BUILD, None) == node.count(devices.BUILD, "night") == 4
    assert node.count(devices.MEASURE, "night") == 2 and node.count(devices.MEASURE, "day") == 0
    assert devices.taken_by_a_build("night") == {"build": 1.0, "build:night": 1.0}


def test_a_role_that_no_node_has_is_told_with_all_nodes() -> None:
    with pytest.raises(DeepgenError, match=r"'measure'.*10\.0\.0\.1: build 4; 10\.0\.0\.2: no role"):
        devices.require([Node("1", "10.0.0.1", {"build": 4.0}), Node("2", "10.0.0.2", {"CPU": 8.0})], None)


def test_a_study_uses_the_devices_that_run_its_kernels() -> None:
    h200, a100 = targets.resolve("cuda:h200"), targets.resolve("cuda:sm_80")
    both = [device(PLAIN, h200), device(PLAIN, a100, host="b")]
    assert choose_kind(targets.resolve("cuda:sm_90a"), both, None) == "NVIDIA H200"
    assert choose_kind(PLAIN, both[:1], None) == "Plain, 8 cores"
    assert choose_kind(targets.resolve("sim"), both, None) == "simulated device"
    with pytest.raises(DeepgenError, match=r"no node .* hip:gfx906 \(a slot 0: .*H200.*; b slot 0: "):
        choose_kind(targets.resolve("hip:gfx906"), both, None)


def test_times_of_different_devices_are_not_mixed_in_one_study() -> None:
    both = [device(PLAIN), device(WIDE, host="b")]
    common = replace(PLAIN, model="Other")
    with pytest.raises(BadInput, match="Plain, 8 cores or Wide, 8 cores"):
        choose_kind(common, both, None)
    assert choose_kind(common, both, "wide") == "Wide, 8 cores"
    assert choose_kind(PLAIN, both, None) == "Plain, 8 cores", "the very processor that the target describes"
    assert choose_kind(WIDE, both, None) == "Wide, 8 cores", "the other one lacks an instruction set"


def test_a_processor_is_one_device_however_many_cards_its_node_has() -> None:
    assert device(PLAIN, slot=1).kind(PLAIN) is None


def test_a_node_with_another_version_measures_nothing_and_says_so() -> None:
    other = Device.from_json({"host": "a", "slot": 0, "version": "0.0.1", "found": [{"name": "quantum"}]})
    assert other.kind(targets.resolve("sim")) is None
    assert "with deepgen 0.0.1" in other.describe()


def test_compilers_stand_still_while_a_kernel_is_timed(tmp_path: Path) -> None:
    with Group() as group, lease.building(group, tmp_path):
        with lease.timing(tmp_path):
            assert group.paused
        until = time.monotonic() + 60.0
        while group.paused and time.monotonic() < until:
            time.sleep(0.01)
        assert not group.paused


def test_two_kernels_are_not_timed_at_once_on_a_host(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with lease.timing(tmp_path):
            order.append("second")

    with lease.timing(tmp_path):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.1)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_without_ray_the_user_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Missing, match="pip install 'deepgen-kernels\\[cluster\\]'"):
        connection.imported()


def test_an_engine_without_an_address_is_a_cluster_of_its_own() -> None:
    assert RayEngine(build_slots=3, testers=2).cluster() == connection.Local(3, 2)
    assert RayEngine(address="auto").cluster() == "auto"


def test_a_process_sees_its_own_card_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "6,7")
    assert pin([]) is None and os.environ["HIP_VISIBLE_DEVICES"] == "6,7"
    assert pin(["7"]) == "7" and os.environ["HIP_VISIBLE_DEVICES"] == "7"


class RayError(Exception):
    pass


class ActorGone(RayError):
    pass


class NodeGone(RayError):
    pass


@pytest.mark.parametrize("told", [ActorGone, NodeGone])
def test_a_trial_whose_device_is_gone_is_measured_elsewhere(told: type[RayError]) -> None:
    """Ray reports a node that was lost while an actor started on it in a different way."""

    def get(ref: object) -> str:
        raise told

    errors = SimpleNamespace(RayError=RayError, RayActorError=ActorGone, ActorUnschedulableError=NodeGone)
    ray = SimpleNamespace(exceptions=errors, get=get)
    follower = flow.Flow(ray, Any, None, group=None, build_slots=None, wait_seconds=1.0)  # type: ignore[arg-type]
    lost: list[Member] = []

    def lose(member: Member) -> None:
        lost.append(member)
        follower.take_back(member)

    follower._pool = SimpleNamespace(lose=lose, ready=[])  # type: ignore[assignment]
    trial, member = flow._Trial(7, "{}"), Member(Node("1", "a", {}), 0, None, ready=True)
    member.trials.append(trial)
    follower._hear_measurement(trial, member, None)
    assert lost == [member] and list(follower._built) == [trial]
    assert follower.ended.empty(), "the study hears nothing of it"


@pytest.mark.parametrize("place", ["/tmp", "/home/someone/of/us", "/home/someone/else/", f"/scratch/{'far' * 20}"])
def test_sockets_of_a_cluster_on_this_machine_have_names_that_fit(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setattr(tempfile, "tempdir", place)
    session = "session_2026-11-15_19-37-21_487429_4194304"  # with the largest process id
    longest = Path(connection._short_folder(), "deepgen-ray-12345678", "r", session, "sockets", "plasma_store")
    assert len(str(longest)) <= 107, "a longer one Ray refuses"


def full(*_: object, **__: object) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device", "/tmp/deepgen")


def test_a_node_of_a_busy_host_may_take_longer_than_ray_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray asks for the node until it is registered, or half a minute has passed."""
    answers = iter(
        [RuntimeError("GCS cannot find the node"), RuntimeError("GCS cannot find the node"), {"NodeID": "1"}]
    )

    def get_node(*_: Any) -> Any:
        answer = next(answers)
        if isinstance(answer, RuntimeError):
            raise answer
        return answer

    services = SimpleNamespace(get_node=get_node)
    ray = SimpleNamespace(_private=SimpleNamespace(services=services))
    with connection._patience(ray):
        assert services.get_node("127.0.0.1:1", "1") == {"NodeID": "1"}
    assert services.get_node is get_node
    answers = iter([RuntimeError("GCS cannot find the node")])
    monkeypatch.setattr(connection, "_REGISTERS", 0.0)
    with connection._patience(ray), pytest.raises(RuntimeError, match="cannot find"):
        services.get_node("127.0.0.1:1", "1")


def test_a_node_whose_disk_is_full_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a sentence, not as an exception that Ray would show with its traceback."""
    said = lease.refusal(OSError(errno.ENOSPC, "No space left on device", "/tmp/deepgen"))
    assert said.startswith(f"{platform.node()}: /tmp/deepgen: No space left on device; finished trials are kept")
    operator, target = gemm(8, 8, 8), targets.resolve("sim")
    tester = object.__new__(testers.Tester)
    tester._benches = {"session": cast("Any", SimpleNamespace(used=0.0))}
    assert json.loads(tester._answer("session", full)) == {"error": said}
    monkeypatch.setattr(tester, "_opened", full)
    assert json.loads(tester.open("another", json.dumps(Task(operator, target).to_json()), "{}", "{}")) == {
        "error": said
    }
    monkeypatch.setattr(builder, "make_artifact", full)
    kernel = SimTiles().emit(operator, target, SimTiles().default(operator, target))
    ordered = builder.order(target, {}, BuildLimits(), tmp_path)
    with pytest.raises(DeepgenError, match=re.escape(said)):
        builder.read(builder.build(json.dumps(kernel.to_json()), ordered)[0])


def test_a_binary_that_was_cut_off_by_a_full_disk_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kernel.so"

    def cut_off(self: Path, content: bytes) -> int:
        with self.open("wb") as file:
            file.write(content[:2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(Path, "write_bytes", cut_off)
        lease.kept(path, b"binary")
    assert lease.kept(path, b"binary").read_bytes() == b"binary"
