"""Connect to every host and check that it can do its part. Changes nothing there."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from deepgen.extend import JsonObject, Missing, install_extra
from deepgen_cluster import agent
from deepgen_cluster.machines import Remote, on_each, own_code
from deepgen_cluster.model import Cluster, Host
from deepgen_cluster.ssh import Ask, HostError

LEAST_FREE = 1 << 30  # bytes


@dataclass(frozen=True)
class Report:
    """One host. If facts are missing, it could not be queried, and the only problem says why."""

    host: Host
    roles: str
    facts: Mapping[str, Any] | None
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems

    def to_json(self) -> JsonObject:
        facts = dict(self.facts) if self.facts else None
        return {"host": str(self.host), "roles": self.roles, "problems": list(self.problems), "facts": facts}


def check(cluster: Cluster, password: Ask) -> list[Report]:
    """Check all hosts concurrently. One that cannot be reached is reported like any other problem."""
    ray_version()
    code = own_code()

    async def ask(machine: Remote) -> dict[str, Any]:
        build, measure = wanted_targets(cluster, machine.host)
        return dict(await machine.call("facts", code=code.archive, build=build, measure=measure))

    outcomes = asyncio.run(on_each(cluster.hosts, password, ask))
    return [_report(cluster, host, outcome) for host, outcome in outcomes.items()]


def wanted_targets(cluster: Cluster, host: Host) -> tuple[list[str], list[str]]:
    """The targets that a host builds for, and those that it measures."""
    build = dict.fromkeys(group.target for group in cluster.groups if group.builder == host)
    measure = dict.fromkeys(group.target for group in cluster.groups if group.tester == host)
    return list(build), list(measure)


def ray_version() -> str:
    """The version of Ray on this machine, which every host must have too."""
    try:
        return metadata.version("ray")
    except metadata.PackageNotFoundError as error:
        raise Missing("ray", blocks="no cluster can be used", remedy=install_extra("cluster")) from error


def basic_problems(facts: Mapping[str, Any]) -> list[str]:
    """Problems that prevent a host from being a node at all, with remedies."""
    problems = []
    here, there = platform.python_version_tuple(), str(facts["python"]).split(".")
    if tuple(there[:2]) != here[:2]:
        problems.append(
            f"Python {facts['python']} there, {platform.python_version()} here: Ray needs the same {here[0]}.{here[1]};"
            " name the correct one with the key python"
        )
    packages = facts["packages"]
    missing = [name for name in agent.PACKAGES if packages[name] is None]
    wrong = packages["ray"] is not None and packages["ray"] != ray_version()
    if missing or wrong:
        names = [f"ray=={ray_version()}" if name == "ray" else name for name in missing or ["ray"]]
        why = f"{', '.join(missing)} missing" if missing else f"ray {packages['ray']} there, {ray_version()} here"
        problems.append(f"{why}; run there: {facts['executable']} -m pip install {' '.join(names)}")
    if not facts["writable"]:
        problems.append(f"{facts['folder']} cannot be written")
    if facts["free_bytes"] < LEAST_FREE:
        problems.append(f"only {facts['free_bytes'] >> 20} MiB are free in {facts['folder']}")
    return problems


def _report(cluster: Cluster, host: Host, outcome: Mapping[str, Any] | HostError) -> Report:
    roles = cluster.roles(host)
    if isinstance(outcome, HostError):
        return Report(host, roles, None, (outcome.what,))
    problems = basic_problems(outcome)
    if outcome["problem"]:
        problems.append(f"deepgen does not run there: {outcome['problem']}")
    for verdicts in (outcome["targets"] or {}).values():
        problems += [f"{name}: {verdict['problem']}" for name, verdict in verdicts.items() if "problem" in verdict]
    for group in cluster.groups:
        if group.tester == host and group.target.startswith("cuda") and outcome["doctor"]:
            problems += _absent(group.devices, outcome["doctor"]["devices"])
    return Report(host, roles, outcome, tuple(problems))


def _absent(wanted: Sequence[int], devices: Sequence[Mapping[str, Any]]) -> list[str]:
    here = [device["index"] for device in devices if device["kind"] == "cuda"]
    return [f"there is no GPU {number}; nvidia-smi shows {here or 'none'}" for number in wanted if number not in here]
