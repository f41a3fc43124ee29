"""The devices that measure a study, from the driver's view: detected, opened, lost, and recovered."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from deepgen.extend import DeepgenError, Kernel, Task
from deepgen_cluster.ray import connection, devices
from deepgen_cluster.ray.connection import NAMESPACE
from deepgen_cluster.ray.devices import Device, Node, choose_kind
from deepgen_cluster.ray.lease import CONTROL
from deepgen_cluster.ray.tester import Tester

AT_ONCE = 2  # calls in flight per device: one running, and one whose binary is being transferred
LATE_SECONDS = 20.0  # how long to wait for a node to report its device after another node has reported
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Opening:
    """The arguments for opening a measuring actor."""

    session: str
    task: Task
    setting: str  # JSON: cache folder and toolchains on the node
    arrays: Sequence[Any]  # of each timed shape, packed by `measure.handed`, if nodes lack an operator's code
    helpers: Mapping[str, tuple[Kernel, Any]]  # our own code for the device, built on a building node


@dataclass
class Member:
    """One device."""

    node: Node
    slot: int
    handle: Any
    device: Device | None = None  # None until it has answered
    peak: float | None = None
    bandwidth: float | None = None
    ready: bool = False
    trials: deque[Any] = field(default_factory=deque)  # sent to it, the first one running

    @property
    def free(self) -> int:
        return AT_ONCE - len(self.trials) if self.ready else 0

    @property
    def place(self) -> tuple[str, int]:
        return self.node.id, self.slot


Later = Callable[[Any, Callable[[Any], None]], None]


def gone(errors: Any) -> tuple[type[Exception], ...]:
    """The exceptions for a lost device; a node that dies while its actor starts raises a different one."""
    return errors.RayActorError, errors.ActorUnschedulableError


class DevicePool:
    """The devices of a session. The session's lock ensures that only one thread calls a method at a time."""

    def __init__(
        self,
        ray: Any,
        opening: Opening,
        later: Later,
        *,
        group: str | None,
        most: int | None,
        wanted: str | None,
        give_back: Callable[[Member], None],
    ) -> None:
        """`later(ref, heard)` calls `heard(ref)` when ref is ready; `give_back` takes the trials of a lost member."""
        self._ray, self._opening, self._later, self._give_back = ray, opening, later, give_back
        self._group, self._most, self._wanted = group, most, wanted
        self._actor = ray.remote(concurrency_groups={CONTROL: 1})(Tester)
        self._began = time.monotonic()
        self._unusable: dict[tuple[str, int], str] = {}  # places, and why
        self.members: dict[tuple[str, int], Member] = {}
        self.kind: str | None = None

    @property
    def session(self) -> str:
        return self._opening.session

    @property
    def ready(self) -> list[Member]:
        return [member for member in list(self.members.values()) if member.ready]  # also called from other threads

    def refresh(self, nodes: Sequence[Node]) -> None:
        """Follow changes of the cluster: forget devices whose node is lost, start actors for new ones."""
        places = {(node.id, slot): node for node in nodes for slot in range(node.count(devices.MEASURE, self._group))}
        for place in [place for place in self.members if place not in places]:
            self.lose(self.members[place])
        for place, node in places.items():
            if place not in self.members and place not in self._unusable:
                self._send_for(node, place[1])
        self._settle()

    def lose(self, member: Member) -> None:
        """Its process or its node was lost. The next refresh restarts it, if its node is up."""
        if self.members.pop(member.place, None) is not None:
            member.ready = False
            self._give_back(member)

    def set_aside(self, member: Member, why: str) -> None:
        """It is up, but this study cannot use it."""
        self._unusable[member.place] = why
        self.lose(member)

    def reopen(self, member: Member) -> None:
        """Its process was restarted, or has closed this study's runner to make room for another."""
        member.ready = False
        opening = self._opening
        task = json.dumps(opening.task.to_json())
        helpers = json.dumps({name: kernel.to_json() for name, (kernel, _) in opening.helpers.items()})
        binaries = [binary for _, binary in opening.helpers.values()]
        # Ray resolves references passed as arguments, but not those inside a list.
        ref = member.handle.open.remote(opening.session, task, opening.setting, helpers, *binaries, *opening.arrays)
        self._later(ref, partial(self._hear_ready, member))

    def hopeless(self) -> str | None:
        """Why there will be no device, once all have answered."""
        return "; ".join(self._unusable.values()) if self._unusable and not self.members else None

    def dismiss(self) -> list[Any]:
        """The study has ended: stop what it runs. Returns references that can be waited for."""
        control = {"concurrency_group": CONTROL}
        return [
            m.handle.close.options(**control).remote(self._opening.session) for m in self.members.values() if m.device
        ]

    def _send_for(self, node: Node, slot: int) -> None:
        """Get the device's actor, or start it; studies share it.

        Ray ends an actor when the driver that started it ends, and the next study that needs it starts another. So
        nothing is left behind when a driver dies.
        """
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node.id, soft=False)
        handle = self._actor.options(
            name=f"tester-{node.id}-{slot}",
            namespace=NAMESPACE,
            get_if_exists=True,
            max_restarts=-1,
            max_task_retries=0,  # we retry trials ourselves, on another device
            max_concurrency=1,
            num_cpus=0,
            num_gpus=1 if node.gpus >= node.count(devices.MEASURE, None) else 0,  # Ray pins the card
            resources={devices.MEASURE: 1},
            scheduling_strategy=strategy,
        ).remote(slot)
        connection.keep(handle)
        member = self.members[node.id, slot] = Member(node, slot, handle)
        ref = handle.describe.options(concurrency_group=CONTROL).remote()
        self._later(ref, partial(self._hear_device, member))

    def _hear_device(self, member: Member, ref: Any) -> None:
        try:
            member.device = Device.from_json(json.loads(self._ray.get(ref)))
        except self._ray.exceptions.RayError as error:
            self._hear_failure(member, error)
            return
        if self.kind is not None:
            self._enlist(member)
        self._settle()

    def _settle(self) -> None:
        """Choose the kind of device, once all have answered or the rest are too late."""
        devices = [m.device for m in self.members.values() if m.device is not None]
        late = time.monotonic() - self._began > LATE_SECONDS
        if self.kind is not None or not devices or (len(devices) < len(self.members) and not late):
            return
        self.kind = choose_kind(self._opening.task.target, devices, self._wanted)
        for member in list(self.members.values()):
            if member.device is not None:
                self._enlist(member)

    def _enlist(self, member: Member) -> None:
        assert member.device is not None
        kind = member.device.kind(self._opening.task.target)
        if kind != self.kind:
            self.set_aside(member, f"{member.device.describe()} is not the {self.kind} that this study is measured on")
        elif self._most is not None and len(self.members) > self._most:
            self.set_aside(member, f"{member.device.describe()} is more than was requested")
        else:
            self.reopen(member)

    def _hear_ready(self, member: Member, ref: Any) -> None:
        try:
            reply = json.loads(self._ray.get(ref))
        except self._ray.exceptions.RayError as error:
            self._hear_failure(member, error)
            return
        if "error" in reply:
            self.set_aside(member, reply["error"])
        else:
            member.peak, member.bandwidth, member.ready = reply["peak"], reply["bandwidth"], True

    def _hear_failure(self, member: Member, error: Exception) -> None:
        """It failed to answer. A lost process is restarted; one that cannot import the code is not."""
        if isinstance(error, gone(self._ray.exceptions)):
            text = str(error)
            if "ModuleNotFoundError" not in text and "ImportError" not in text:
                self.lose(member)
                return
            error = DeepgenError("deepgen cannot be imported there; install the same version on every node")
        _log.warning("the device of %s cannot be used: %s", member.node.host, error)
        self.set_aside(member, f"{member.node.host}: {error}")
