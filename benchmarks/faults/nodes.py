"""A Ray cluster on this machine whose nodes come and go."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from deepgen_cluster.ray import connection, devices
from faults import processes

STORE_BYTES = 96 << 20
_TRIES = 10  # attempts to start a node; Ray waits half a minute each time


class Nodes:
    """A head without a role, and further nodes, each with one build slot and one device."""

    def __init__(self, root: Path, environment: dict[str, str], count: int) -> None:
        """`environment`: for all processes of the cluster, and so also for this one, which starts them."""
        token = root / "token"
        token.write_text(secrets.token_hex(32))
        self.environment = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        os.environ.update({**environment, **self.environment})
        connection.apply_environment(connection.imported())
        from ray.cluster_utils import Cluster

        head = {
            "num_cpus": 0,
            "include_dashboard": False,
            "include_log_monitor": False,
            "object_store_memory": STORE_BYTES,
        }
        self._cluster = Cluster(initialize_head=True, connect=False, head_node_args=head)
        self._nodes = [self._added() for _ in range(count)]

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def lose(self, chance: Random, *, killed: bool) -> Callable[[], object]:
        """One node is lost, abruptly or gracefully. Returns a function that brings one back."""
        node = self._nodes.pop(chance.randrange(len(self._nodes)))
        self._cluster.remove_node(node, allow_graceful=not killed)
        return lambda: self._nodes.append(self._added())

    def close(self) -> None:
        self._cluster.shutdown()  # type: ignore[no-untyped-call]

    def _added(self) -> Any:
        resources = devices.of_node(1, 1, ())
        for tries in range(_TRIES):
            before = processes.children()
            try:
                return self._cluster.add_node(num_cpus=0, resources=resources, object_store_memory=STORE_BYTES)
            except Exception:  # Ray has no specific class for a node that was not up in time, as on a busy machine
                processes.send(processes.children() - before, processes.KILL)
                if tries == _TRIES - 1:
                    raise
        raise AssertionError("the last try returns or raises")
