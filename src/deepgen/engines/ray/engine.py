"""The Ray engine: what a user chooses of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from deepgen.build import BuildLimits
from deepgen.engines.base import Look
from deepgen.engines.ray import connection
from deepgen.engines.ray.connection import Local
from deepgen.engines.ray.session import RaySession
from deepgen.measure.base import Task
from deepgen.targets import host


@dataclass(frozen=True)
class RayEngine:
    """Builds and measures on a Ray cluster: the one at `address`, or a small one on this machine."""

    address: str | None = None  # host:port, or auto for the cluster that this machine is a node of
    group: str | None = None  # the work group whose nodes are used; None: all nodes
    build_slots: int | None = None  # at most; of a cluster on this machine exactly, one for each core where not given
    testers: int | None = None  # devices, likewise
    devices: str | None = None  # a part of the device's name, where several kinds could be used
    toolchains: Mapping[str, str] = field(default_factory=dict)  # tool -> executable, on the nodes
    limits: BuildLimits = field(default_factory=BuildLimits)
    cache: Path | None = None  # a folder on the nodes; None: each node's own
    token: Path | None = None  # the file with the cluster's token; None: where Ray itself looks for it
    wait_seconds: float = 600.0  # for lost devices to come back

    def open(self, task: Task, look: Look | None = None) -> RaySession:
        return RaySession(self, task, look)

    @contextmanager
    def connected(self) -> Iterator[None]:
        """While this is held, the connection stays, and so does a cluster on this machine, from study to study."""
        connection.connect(self.cluster(), self.token)
        try:
            yield
        finally:
            connection.disconnect()

    def cluster(self) -> str | Local:
        if self.address is not None:
            return self.address
        return Local(self.build_slots or host.usable_cores(), self.testers or 1)
