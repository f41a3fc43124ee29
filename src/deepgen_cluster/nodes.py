"""Start, inspect and stop the Ray nodes of a cluster: the head on this machine, and a node at every place of the file.

The head runs here because Ray needs a node on the driver's machine, where the driver keeps the journals.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deepgen_cluster.check import basic_problems, ray_version
from deepgen_cluster.folder import State, Up
from deepgen_cluster.machines import Here, Remote, on_each, own_code, raise_errors
from deepgen_cluster.model import Cluster, Host
from deepgen_cluster.ray import devices
from deepgen_cluster.ssh import Ask, HostError

# Artifacts are small; by default Ray would take a third of the memory of shared machines.
_STORE_BYTES = 256 << 20
_HEAD = "head"
# Tasks and actors request roles instead of CPUs: otherwise Ray would start a process for each CPU.
_ALWAYS = ("--disable-usage-stats", "--num-cpus", "0", "--object-store-memory", str(_STORE_BYTES))


@dataclass(frozen=True)
class Wanted:
    """A node to start: a host's work for one group. On a shared host, each group has its own node."""

    name: str  # of the group
    builds: int
    devices: tuple[int, ...]
    gpus: bool

    @property
    def resources(self) -> dict[str, float]:
        return devices.of_node(self.builds, len(self.devices), [self.name])

    def roles(self) -> str:
        """The roles as text."""
        devices = f"measure {self.name} [{' '.join(map(str, self.devices))}]" if self.devices else ""
        return ", ".join(filter(None, [f"build {self.name}" if self.builds else "", devices]))

    def words(self) -> list[str]:
        gpus = len(self.devices) if self.gpus else 0
        return ["--resources", json.dumps(self.resources), "--num-gpus", str(gpus)]

    def variables(self) -> dict[str, str]:
        """The cards of the node: it gives each measuring process one of them."""
        shown = ",".join(map(str, self.devices))
        return {"CUDA_VISIBLE_DEVICES": shown, "HIP_VISIBLE_DEVICES": shown} if self.gpus and self.devices else {}


def wanted(cluster: Cluster, host: Host) -> list[Wanted]:
    """The nodes of a host."""
    return [
        Wanted(
            group.name,
            group.jobs if group.builder == host else 0,
            group.devices if group.tester == host else (),
            group.target.startswith(("cuda", "hip")) and group.tester == host,
        )
        for group in cluster.groups
        if host in group.places
    ]


@dataclass(frozen=True)
class Node:
    """The state of a node. `host` is None for the head."""

    host: Host | None
    roles: str
    up: bool
    processes: int = 0
    since: float | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Started:
    """The result of `up`."""

    up: Up
    fresh: tuple[Host, ...]  # hosts whose node was not up before


def up(
    cluster: Cluster,
    password: Ask,
    *,
    head: str | None = None,
    force: bool = False,
    hosts: Sequence[Host] | None = None,
) -> Started:
    """Start every node that is not up, or only those of some hosts.

    All hosts are checked first, so that nothing is started if one of them cannot be used.
    """
    ray_version()
    return asyncio.run(_up(cluster, password, head or cluster.head, force, tuple(hosts or cluster.hosts)))


def status(cluster: Cluster, password: Ask) -> list[Node]:
    """The head and every host's node."""
    return asyncio.run(_status(cluster, password))


def down(cluster: Cluster, password: Ask, *, force: bool = False) -> dict[Host | None, int | HostError]:
    """Stop all nodes, including those on hosts that the file named when they were started.

    Returns for each the number of processes that were ended. The record is kept until every host has answered.
    """
    return asyncio.run(_down(cluster, password, force))


def lost(cluster: Cluster) -> list[Host]:
    """Hosts whose roles are missing in the cluster that this process is connected to."""
    import ray

    if not ray.is_initialized():
        return []
    alive: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    missing = [
        host
        for host in cluster.hosts
        for node in wanted(cluster, host)
        if any(alive.get(name, 0.0) < amount for name, amount in node.resources.items() if ":" in name)
    ]
    return list(dict.fromkeys(missing))


async def _up(cluster: Cluster, password: Ask, head: str | None, force: bool, hosts: tuple[Host, ...]) -> Started:
    state, code = State(cluster), own_code()

    async def prepare(machine: Remote) -> str:
        facts = await machine.call("facts")
        problems = basic_problems(facts) + ([] if force else _foreign(facts["nodes"], cluster, machine.host, state))
        if problems:
            raise HostError(machine.host, "; ".join(problems))
        if code.name not in facts["codes"]:
            await machine.call("install", name=code.name, code=code.archive)
        return machine.seen_from

    seen = raise_errors(await on_each(hosts, password, prepare))
    now = await _head(state, head or _address(seen), cluster)
    token = state.token()

    async def start(machine: Remote) -> bool:
        fresh = False
        for node in wanted(cluster, machine.host):
            fresh |= await machine.call(
                "start",
                name=node.name,
                cluster=now.cluster,
                owner=state.owner,
                label=state.label,
                words=["--address", now.address, *node.words(), *_ALWAYS],
                variables=node.variables(),
                ip=_ip(machine.host),
                token=token,
                code=code.name,
            )
        return fresh

    started = raise_errors(await on_each(hosts, password, start))
    return Started(now, tuple(host for host, fresh in started.items() if fresh))


async def _head(state: State, ip: str, cluster: Cluster) -> Up:
    """The running head, or a new one; nodes of an older head do not belong to a new one."""
    here = Here(state.folder)
    before, running = state.read(), (await here.call("status")).get(_HEAD)
    # Hosts from an earlier version of the file are kept until they are stopped.
    hosts = tuple(dict.fromkeys((*(before.hosts if before else ()), *cluster.hosts)))
    if before and running and running["up"] and running["cluster"] == before.cluster:
        now = Up(before.cluster, before.address, hosts)
        state.write(now)
        return now
    now = Up(secrets.token_hex(8), f"{ip}:{_free_port()}", hosts)
    # Recorded before anything starts: whatever happens next, `down` knows what to stop.
    state.write(now)
    most = max(node.builds + len(node.devices) for host in cluster.hosts for node in wanted(cluster, host))
    manners = {
        # Every node may keep as many idle processes as it has work for; none is started before there is work.
        "enable_worker_prestart": False,
        "num_workers_soft_limit": most,
        # A dead node is detected after three seconds instead of fifteen; a slow one has half a minute.
        "health_check_period_ms": 1000,
        "health_check_failure_threshold": 3,
    }
    words = ["--head", "--port", now.address.rpartition(":")[2], "--include-dashboard", "false"]
    words += ["--system-config", json.dumps(manners)]
    await here.call(
        "start",
        name=_HEAD,
        cluster=now.cluster,
        owner=state.owner,
        label=state.label,
        words=[*words, "--num-gpus", "0", *_ALWAYS],
        variables={},
        ip=ip,
        token=state.new_token(),
        code=None,
    )
    return now


async def _status(cluster: Cluster, password: Ask) -> list[Node]:
    async def ask(machine: Remote) -> dict[str, Any]:
        return dict(await machine.call("status"))

    head = await Here(State(cluster).folder).call("status")
    nodes = [_node(None, _HEAD, head.get(_HEAD))]
    for host, outcome in (await on_each(cluster.hosts, password, ask)).items():
        if isinstance(outcome, HostError):
            nodes.append(Node(host, cluster.roles(host), up=False, problem=outcome.what))
        else:
            nodes += [_node(host, node.roles(), outcome.get(node.name)) for node in wanted(cluster, host)]
    return nodes


async def _down(cluster: Cluster, password: Ask, force: bool) -> dict[Host | None, int | HostError]:
    state = State(cluster)
    before = state.read()
    hosts = tuple(dict.fromkeys((*cluster.hosts, *(before.hosts if before else ()))))

    async def stop(machine: Remote) -> int:
        answer = await machine.call("stop", owner=state.owner, force=force)
        if answer["others"] and not answer["ended"]:
            who = ", ".join(answer["others"])
            raise HostError(machine.host, f"the node there was started by {who}; --force stops it too")
        return int(answer["ended"])

    ended: dict[Host | None, int | HostError] = {}
    for host, outcome in (await on_each(hosts, password, stop)).items():
        ended[host] = outcome
    ended[None] = int((await Here(state.folder).call("stop", owner=state.owner, force=True))["ended"])
    if not any(isinstance(outcome, HostError) for outcome in ended.values()):
        state.forget()
    return ended


def _foreign(running: Mapping[str, Any], cluster: Cluster, host: Host, state: State) -> list[str]:
    """Nodes of other users that prevent ours from starting."""
    ours = [node.name for node in wanted(cluster, host)]
    others = [
        record["label"]
        for name, record in running.items()
        if name in ours and record["owner"] != state.owner and record["up"]
    ]
    return [
        f"a node that {label} started is running in {host.folder}; use another folder, or --force" for label in others
    ]


def _node(host: Host | None, roles: str, record: Mapping[str, Any] | None) -> Node:
    if record is None:
        return Node(host, roles, up=False)
    problem = None if record["up"] else "the node died; `deepgen cluster up` starts it again"
    return Node(host, roles, record["up"], record["processes"], record["since"], problem)


def _address(seen: Mapping[Host, str]) -> str:
    addresses = {"127.0.0.1" if address.startswith("127.") else address for address in seen.values()}
    if len(addresses) > 1:
        listed = ", ".join(sorted(addresses))
        raise HostError(
            None, f"the hosts see this machine as {listed}; give an address that all of them can reach: --head ADDRESS"
        )
    return addresses.pop()


def _ip(host: Host) -> str:
    try:
        return socket.gethostbyname(host.address)
    except OSError as error:
        raise HostError(host, f"its host name cannot be resolved here: {error.strerror}") from error


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
