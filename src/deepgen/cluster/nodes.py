"""Start, look at and stop the Ray nodes of a cluster: the head on this machine, a node at every place of the file.

The head is here because Ray wants a node beside the driver, and the driver keeps the journals here.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deepgen.cluster.check import basic_problems, ray_version
from deepgen.cluster.code import own_code
from deepgen.cluster.machines import Here, Remote, on_each, raise_errors
from deepgen.cluster.model import Cluster, Host
from deepgen.cluster.ssh import Ask, HostError
from deepgen.cluster.state import State, Up

# Artifacts are small; Ray would otherwise take a third of the memory of machines that others use too.
_STORE_BYTES = 256 << 20
_ALWAYS = ("--disable-usage-stats", "--num-gpus", "0", "--object-store-memory", str(_STORE_BYTES))


@dataclass(frozen=True)
class Node:
    """A node as it stands. `host` is None for the head."""

    host: Host | None
    roles: str
    up: bool
    processes: int = 0
    since: float | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Started:
    """What `up` did."""

    up: Up
    fresh: tuple[Host, ...]  # hosts whose node was not up before


def up(cluster: Cluster, password: Ask, *, head: str | None = None, force: bool = False) -> Started:
    """Bring every node up that is not; all hosts are asked first, so that nothing starts where one cannot."""
    ray_version()
    return asyncio.run(_up(cluster, password, head or cluster.head, force))


def status(cluster: Cluster, password: Ask) -> list[Node]:
    """The head and every host's node."""
    return asyncio.run(_status(cluster, password))


def down(cluster: Cluster, password: Ask, *, force: bool = False) -> dict[Host | None, int | HostError]:
    """Stop all nodes, also those on hosts that the file named when they were started.

    Gives for each the number of processes that were ended. What is remembered stays until every host answered.
    """
    return asyncio.run(_down(cluster, password, force))


async def _up(cluster: Cluster, password: Ask, head: str | None, force: bool) -> Started:
    state, code = State(cluster), own_code()

    async def prepare(machine: Remote) -> str:
        if problems := basic_problems(await machine.call("facts")):
            raise HostError(machine.host, "; ".join(problems))
        if not await machine.call("install", name=code.name):
            await machine.call("install", name=code.name, code=code.archive)
        return machine.seen_from

    seen = raise_errors(await on_each(cluster.hosts, password, prepare))
    now = await _head(state, head or _address(seen), cluster.hosts)
    token = state.token()

    async def start(machine: Remote) -> bool:
        answer = await machine.call(
            "start",
            cluster=now.cluster,
            owner=state.owner,
            label=state.label,
            words=["--address", now.address, "--resources", json.dumps(resources(cluster, machine.host)), *_ALWAYS],
            ip=_ip(machine.host),
            token=token,
            code=code.name,
            force=force,
        )
        return bool(answer["started"])

    started = raise_errors(await on_each(cluster.hosts, password, start))
    return Started(now, tuple(host for host, fresh in started.items() if fresh))


async def _head(state: State, ip: str, hosts: tuple[Host, ...]) -> Up:
    """The head that is up, or a new one, to which nodes of an older one do not belong any more."""
    here = Here(state.folder)
    before, found = state.read(), await here.call("status")
    # Hosts that an earlier form of the file named are kept until they were stopped.
    known = tuple(dict.fromkeys((*(before.hosts if before else ()), *hosts)))
    if before and found and found["up"] and found["cluster"] == before.cluster:
        now = Up(before.cluster, before.address, known)
        state.write(now)
        return now
    now = Up(secrets.token_hex(8), f"{ip}:{_free_port()}", known)
    # Remembered before anything starts: whatever happens next, `down` knows where to look.
    state.write(now)
    words = ["--head", "--port", now.address.rpartition(":")[2], "--num-cpus", "0", "--include-dashboard", "false"]
    await here.call(
        "start",
        cluster=now.cluster,
        owner=state.owner,
        label=state.label,
        words=[*words, *_ALWAYS],
        ip=ip,
        token=state.new_token(),
        code=None,
        force=True,
    )
    return now


async def _status(cluster: Cluster, password: Ask) -> list[Node]:
    async def ask(machine: Remote) -> Any:
        return await machine.call("status")

    state = State(cluster)
    head = await Here(state.folder).call("status")
    nodes = [_node(None, "head", head)]
    for host, outcome in (await on_each(cluster.hosts, password, ask)).items():
        if isinstance(outcome, HostError):
            nodes.append(Node(host, cluster.roles(host), up=False, problem=outcome.what))
        else:
            nodes.append(_node(host, cluster.roles(host), outcome))
    return nodes


async def _down(cluster: Cluster, password: Ask, force: bool) -> dict[Host | None, int | HostError]:
    state = State(cluster)
    before = state.read()
    hosts = tuple(dict.fromkeys((*cluster.hosts, *(before.hosts if before else ()))))

    async def stop(machine: Remote) -> int:
        return int((await machine.call("stop", owner=state.owner, force=force))["ended"])

    ended: dict[Host | None, int | HostError] = {**await on_each(hosts, password, stop)}
    ended[None] = int((await Here(state.folder).call("stop", owner=state.owner, force=True))["ended"])
    if not any(isinstance(outcome, HostError) for outcome in ended.values()):
        state.forget()
    return ended


def resources(cluster: Cluster, host: Host) -> dict[str, int]:
    """The roles of a host as Ray schedules by them."""
    found: dict[str, int] = {}
    for group in cluster.groups:
        for role, at, amount in (("build", group.builder, group.jobs), ("measure", group.tester, len(group.devices))):
            if at == host:
                found[role] = found.get(role, 0) + amount
                found[f"{role}:{group.name}"] = amount
    return found


def _node(host: Host | None, roles: str, said: Mapping[str, Any] | None) -> Node:
    if said is None:
        return Node(host, roles, up=False)
    problem = None if said["up"] else "the node died; `deepgen cluster up` starts it again"
    return Node(host, roles, said["up"], said["processes"], said["since"], problem)


def _address(seen: Mapping[Host, str]) -> str:
    addresses = {"127.0.0.1" if address.startswith("127.") else address for address in seen.values()}
    if len(addresses) > 1:
        said = ", ".join(sorted(addresses))
        raise HostError(None, f"the hosts see this machine as {said}; say which all can reach: --head ADDRESS")
    return addresses.pop()


def _ip(host: Host) -> str:
    try:
        return socket.gethostbyname(host.address)
    except OSError as error:
        raise HostError(host, f"its name is not known here: {error.strerror}") from error


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
