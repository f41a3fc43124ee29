"""The nodes of a cluster and their roles; the devices that measuring processes detected, and which of them a study
uses.

A node declares its roles through custom resources: `build` counts its build slots, `measure` its devices. A node of a
work group G also has `build:G` and `measure:G`, with the same counts.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import deepgen
from deepgen.extend import BadInput, DeepgenError, Json, JsonObject, Target, targets


@dataclass(frozen=True)
class Device:
    """One place where kernels are measured: the `slot`-th of its node, as detected there, not as labelled."""

    host: str
    slot: int
    version: str  # of deepgen, on that node
    targets: tuple[Target, ...]
    card: str | None = None  # its number on the node, if Ray assigned a card to the process

    def kind(self, target: Target) -> str | None:
        """The kind of device for kernels of this target; None if they cannot be measured here."""
        if self.version != deepgen.__version__:
            return None
        if not target.computes:
            return "simulated device"
        # A node has one CPU, whatever the number of its cards.
        if target.shares_cores_with_builds and self.slot > 0:
            return None
        return next((one.device_kind for one in self.targets if target.runs_on(one)), None)

    def describe(self) -> str:
        """A one-line description."""
        has = ", ".join(one.describe().partition(": ")[2] for one in self.targets) or "no device that deepgen supports"
        other = "" if self.version == deepgen.__version__ else f" with deepgen {self.version}"
        return f"{self.host} slot {self.slot}{other}: {has}"

    def to_json(self) -> JsonObject:
        rows: list[Json] = [one.to_json() for one in self.targets]
        return {"host": self.host, "slot": self.slot, "version": self.version, "found": rows, "card": self.card}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Device:
        if data["version"] != deepgen.__version__:  # it may describe its targets differently
            return Device(data["host"], data["slot"], data["version"], ())
        own = tuple(map(targets.from_json, data["found"]))
        return Device(data["host"], data["slot"], data["version"], own, data["card"])


def pin(cards: Sequence[str]) -> str | None:
    """Make only the card that Ray assigned visible to this process; returns its number. For NVIDIA Ray does this."""
    if not cards:
        return None
    os.environ["HIP_VISIBLE_DEVICES"] = cards[0]
    return cards[0]


def probe(slot: int, card: str | None = None) -> Device:
    """The devices on which this process can measure."""
    return Device(platform.node(), slot, deepgen.__version__, tuple(targets.devices()), card)


def choose_kind(target: Target, devices: Sequence[Device], wanted: str | None) -> str:
    """The kind of device for a study: times of different kinds must not be mixed in one study."""
    kinds = sorted({kind for device in devices if (kind := device.kind(target)) is not None})
    listed = "; ".join(device.describe() for device in devices)
    if not kinds:
        raise DeepgenError(f"no node of the Ray cluster can measure kernels for {target.name} ({listed})")
    if wanted is not None:
        kinds = [kind for kind in kinds if wanted.lower() in kind.lower()]
        if len(kinds) != 1:
            raise BadInput(f"{wanted!r} names {len(kinds)} kinds of device", allowed=listed)
    model = getattr(target, "model", None)
    same = [kind for kind in kinds if model is not None and kind.startswith(model)]
    if len(kinds) > 1 and len(same) != 1:
        what = f"kernels for {target.name} could be measured on {' or '.join(kinds)}"
        raise BadInput(what, allowed="a study needs one kind: name a card as target, or a work group with one kind")
    return same[0] if len(kinds) > 1 else kinds[0]


BUILD = "build"
MEASURE = "measure"


def resource(role: str, group: str | None = None) -> str:
    """The name of a role's resource, in the whole cluster or in one work group."""
    return role if group is None else f"{role}:{group}"


def of_node(build_slots: int, devices: int, groups: Sequence[str] = ()) -> dict[str, float]:
    """The resources of a node, for `ray start --resources` or `ray.init`."""
    names: list[str | None] = [None, *groups]
    counts = {BUILD: build_slots, MEASURE: devices}
    return {resource(role, group): float(n) for role, n in counts.items() for group in names if n > 0}


def taken_by_a_build(group: str | None) -> dict[str, float]:
    """One slot of the node, which all groups share, and one of the group's."""
    return {resource(BUILD): 1.0} | {resource(BUILD, group): 1.0}


@dataclass(frozen=True)
class Node:
    """A living node of the cluster."""

    id: str
    host: str
    resources: Mapping[str, float]

    def count(self, role: str, group: str | None) -> int:
        return int(self.resources.get(resource(role, group), 0.0))

    @property
    def gpus(self) -> int:
        return int(self.resources.get("GPU", 0.0))

    def describe(self) -> str:
        """One line: its address and its resources."""
        # Ray adds its own resources: a name that is not ours, then a colon.
        ours = [f"{name} {n:g}" for name, n in sorted(self.resources.items()) if name.partition(":")[0] in _SHOWN]
        return f"{self.host}: {', '.join(ours) or 'no role'}"


_SHOWN = (BUILD, MEASURE, "GPU")


def living(nodes: Sequence[Mapping[str, Any]]) -> list[Node]:
    """The nodes that are up, from the list of `ray.nodes()`, in a fixed order."""
    up = [
        Node(str(n["NodeID"]), str(n["NodeManagerAddress"]), dict(n["Resources"]))
        for n in nodes
        if n["Alive"] and n["Resources"]
    ]
    return sorted(up, key=lambda node: (node.host, node.id))


def require(nodes: Sequence[Node], group: str | None) -> None:
    """Raises an error that lists the nodes if none has a required role."""
    for role in (BUILD, MEASURE):
        if not any(node.count(role, group) for node in nodes):
            listed = "; ".join(node.describe() for node in nodes) or "none is up"
            raise DeepgenError(
                f"no node of the Ray cluster has the resource {resource(role, group)!r} (nodes: {listed}); start one "
                f"with: ray start --address=HEAD:PORT --resources='{{\"{resource(role, group)}\": 1}}'"
            )
