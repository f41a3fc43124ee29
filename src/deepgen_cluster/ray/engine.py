"""The Ray engine: its options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from deepgen.extend import BuildLimits, Look, Task, host
from deepgen_cluster.ray import connection
from deepgen_cluster.ray.connection import Local
from deepgen_cluster.ray.session import RaySession


@dataclass(frozen=True)
class RayEngine:
    """Builds and measures on a Ray cluster: the one at `address`, or a small one on this machine."""

    address: str | None = None  # host:port, or auto for the cluster that this machine is a node of
    group: str | None = None  # the work group whose nodes are used; None: all nodes
    build_slots: int | None = None  # maximum; on a cluster on this machine exactly this many, by default one per core
    testers: int | None = None  # number of devices, in the same way
    devices: str | None = None  # a part of the device's name, if several kinds could be used
    toolchains: Mapping[str, str] = field(default_factory=dict)  # tool -> executable, on the nodes
    limits: BuildLimits = field(default_factory=BuildLimits)
    cache: Path | None = None  # a folder on the nodes; None: each node's own
    token: Path | None = None  # the file with the cluster's token; None: Ray's default location
    wait_seconds: float = 600.0  # how long to wait for lost devices

    def open(self, task: Task, look: Look | None = None) -> RaySession:
        return RaySession(self, task, look)

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Keep the connection, and a cluster on this machine, open across studies."""
        connection.connect(self.cluster(), self.token)
        try:
            yield
        finally:
            connection.disconnect()

    def cluster(self) -> str | Local:
        if self.address is not None:
            return self.address
        return Local(self.build_slots or host.usable_cores(), self.testers or 1)
