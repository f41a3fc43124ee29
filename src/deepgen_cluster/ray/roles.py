"""What the nodes of a cluster are for.

A node says so by custom resources: `build` counts its build slots, `measure` its devices. A node that belongs to a work
group G carries `build:G` and `measure:G` beside them, with the same counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deepgen.vocabulary import DeepgenError

BUILD = "build"
MEASURE = "measure"


def resource(role: str, group: str | None = None) -> str:
    """The name of a role's resource, in the whole cluster or in one work group."""
    return role if group is None else f"{role}:{group}"


def of_node(build_slots: int, devices: int, groups: Sequence[str] = ()) -> dict[str, float]:
    """What a node is started with, for `ray start --resources` or `ray.init`."""
    names: list[str | None] = [None, *groups]
    counts = {BUILD: build_slots, MEASURE: devices}
    return {resource(role, group): float(n) for role, n in counts.items() for group in names if n > 0}


def taken_by_a_build(group: str | None) -> dict[str, float]:
    """A slot of the node, which all groups share, and one of the group's."""
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
        # Ray adds resources of its own: a name that is not ours, then a colon.
        ours = [f"{name} {n:g}" for name, n in sorted(self.resources.items()) if name.partition(":")[0] in _SHOWN]
        return f"{self.host}: {', '.join(ours) or 'no role'}"


_SHOWN = (BUILD, MEASURE, "GPU")


def living(nodes: Sequence[Mapping[str, Any]]) -> list[Node]:
    """The nodes that are up, of those that `ray.nodes()` lists, in a fixed order."""
    up = [
        Node(str(n["NodeID"]), str(n["NodeManagerAddress"]), dict(n["Resources"]))
        for n in nodes
        if n["Alive"] and n["Resources"]
    ]
    return sorted(up, key=lambda node: (node.host, node.id))


def require(nodes: Sequence[Node], group: str | None) -> None:
    """Raises an error that lists the nodes if none has this role."""
    for role in (BUILD, MEASURE):
        if not any(node.count(role, group) for node in nodes):
            told = "; ".join(node.describe() for node in nodes) or "none is up"
            raise DeepgenError(
                f"no node of the Ray cluster has the resource {resource(role, group)!r} (nodes: {told}); start one "
                f"with: ray start --address=HEAD:PORT --resources='{{\"{resource(role, group)}\": 1}}'"
            )
