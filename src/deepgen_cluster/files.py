"""Cluster task files: the older tool's JSON, unchanged, and our own TOML form of the same content."""

from __future__ import annotations

import getpass
import re
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

from deepgen.settings import read_json, read_toml
from deepgen.targets import KINDS
from deepgen.tuning import search
from deepgen.vocabulary import BadInput
from deepgen_cluster import keys, older
from deepgen_cluster.keys import Kind, Table
from deepgen_cluster.model import Cluster, GroupTask, Host, Secret, WorkGroup, password_variable

_NAME = Kind(
    lambda v: v if isinstance(v, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", v) else None,
    "letters, digits, dots, dashes and underscores",
)
_TARGET = Kind(
    lambda v: v if isinstance(v, str) and v.partition(":")[0] in KINDS else None,
    "kind:arch with a kind of " + ", ".join(KINDS.names()),
)
_STRATEGY = Kind(
    lambda v: v if v in search.STRATEGIES else None, "one of " + ", ".join(search.STRATEGIES.names())
)  # of the search
_TOP: Mapping[str, Kind] = {"head": keys.WORD, "hosts": keys.TABLE, "groups": keys.TABLES}
_HOST: Mapping[str, Kind] = {
    "address": keys.WORD,
    "port": keys.PORT,
    "user": keys.WORD,
    "folder": keys.FOLDER,
    "python": keys.WORD,
    "password": keys.WORD,
}
_TUNING: Mapping[str, Kind] = {
    "trials": keys.COUNT,
    "time_budget": keys.SECONDS,
    "strategy": _STRATEGY,
    "seed": keys.COUNT0,
}
_GROUP: Mapping[str, Kind] = {
    "name": _NAME,
    "target": _TARGET,
    "build_host": keys.WORD,
    "measure_host": keys.WORD,
    "jobs": keys.COUNT,
    "devices": keys.DEVICES,
    "space_strategy": keys.STRATEGY,
    "samples": keys.COUNT,
    "keep_top": keys.COUNT,
    "tasks": keys.TABLES,
    **_TUNING,
}
_TASK: Mapping[str, Kind] = {"config": keys.WORD, "space": keys.WORD, "results": keys.WORD}


def read(path: Path) -> Cluster:
    """Read a task file; checks every key and value, and that no two groups conflict."""
    if path.suffix == ".toml":
        cluster = _own(read_toml(path), str(path), str(path.absolute()))
    elif path.suffix == ".json":
        cluster = older.cluster_of(read_json(path, allowed='{"workgroups": [...]}'), str(path), str(path.absolute()))
    else:
        raise BadInput(f"{path} is not a cluster task file", allowed="its name must end in .toml or .json")
    _check_groups(cluster, str(path))
    notes = (*cluster.notes, *_notes(cluster, str(path)))
    return Cluster(cluster.file, cluster.groups, cluster.head, notes, cluster.passwords)


# Our own form ---------------------------------------------------------------------------------------------------


def _own(data: Mapping[str, Any], name: str, file: str) -> Cluster:
    top = Table(name, data, _TOP)
    hosts: dict[str, Host] = {}
    passwords: dict[Host, Secret] = {}
    for word, entry in top.need("hosts").items():
        where = f"{name}: hosts.{word}"
        if not isinstance(entry, dict):
            raise BadInput(f"is {entry!r}", where=where, allowed=f"a table: [hosts.{word}]")
        table = Table(where, entry, _HOST)
        hosts[word] = Host(
            address=table.need("address"),
            folder=table.need("folder"),
            user=table.get("user") or getpass.getuser(),
            port=table.get("port", 22),
            python=table.get("python"),
        )
        if (password := table.get("password")) is not None:
            passwords[hosts[word]] = Secret(password)
    groups = [_group(entry, f"{name}: groups[{i}]", hosts) for i, entry in enumerate(top.need("groups"))]
    return Cluster(file, tuple(groups), top.get("head"), passwords=passwords)


def _group(entry: Mapping[str, Any], where: str, hosts: Mapping[str, Host]) -> WorkGroup:
    table = Table(where, entry, _GROUP)

    def host(key: str) -> Host:
        word = table.need(key)
        if word not in hosts:
            raise BadInput(f"{key} is {word!r}", where=where, allowed="one of hosts: " + ", ".join(hosts))
        return hosts[word]

    tasks = [Table(f"{where}.tasks[{i}]", task, _TASK) for i, task in enumerate(table.need("tasks"))]
    return WorkGroup(
        name=table.need("name"),
        target=table.need("target"),
        builder=host("build_host"),
        tester=host("measure_host"),
        tasks=tuple(GroupTask(t.need("config"), t.need("results"), t.get("space")) for t in tasks),
        **table.given("jobs", "devices", "space_strategy", "samples", "keep_top"),
        tuning=table.given(*_TUNING),
    )


# What holds for both --------------------------------------------------------------------------------------------


def _check_groups(cluster: Cluster, where: str) -> None:
    for one, other in combinations(cluster.groups, 2):
        names = f"{one.name} and {other.name}"
        if one.name == other.name:
            raise BadInput(f"two groups are called {one.name}", where=where, allowed="a name for each")
        if one.builder.place == other.builder.place:
            what = f"groups {names} share the compiler {_place(one.builder)}"
            raise BadInput(what, where=where, allowed="another address or folder for one of them")
        if one.tester.place == other.tester.place and set(one.devices) == set(other.devices):
            what = f"groups {names} share the tester {_place(one.tester)}, devices {_listed(one.devices)}"
            raise BadInput(what, where=where, allowed="another address, folder or devices for one of them")
    for one_host, other_host in combinations(cluster.hosts, 2):
        if one_host.place == other_host.place:
            what = f"{_place(one_host)} is reached in two ways: {one_host} and {other_host}"
            raise BadInput(what, where=where, allowed="the same user, port and python for one place")
    for group in cluster.groups:
        prefixes = [task.results for task in group.tasks]
        twice = [p for p in prefixes if prefixes.count(p) > 1]
        if twice:
            raise BadInput(f"group {group.name} has two tasks with results {twice[0]!r}", where=where)


def _notes(cluster: Cluster, name: str) -> list[str]:
    notes = [
        f"{name} holds the password of {host}: better a key, or {password_variable(host)} in the environment"
        for host in cluster.passwords
    ]
    for one, other in combinations(cluster.groups, 2):
        shared = set(one.devices) & set(other.devices)
        if one.tester.address == other.tester.address and shared and one.target.partition(":")[0] != "sim":
            devices = _listed(tuple(sorted(shared)))
            notes.append(
                f"groups {one.name} and {other.name} both measure on devices {devices} of {one.tester.address} "
                "and will disturb each other"
            )
    return notes


def _place(host: Host) -> str:
    return f"{host.address} {host.folder}"


def _listed(devices: tuple[int, ...]) -> str:
    return ", ".join(map(str, devices))
