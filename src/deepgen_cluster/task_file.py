"""Cluster task files: legacy JSON, unchanged, and TOML with the same content.

Their tables are read key by key, so that errors name the location and the allowed values.
"""

from __future__ import annotations

import getpass
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from deepgen.extend import KINDS, BadInput, read_json, read_toml, search
from deepgen_cluster.model import Cluster, GroupTask, Host, Secret, WorkGroup, password_variable

Check = Callable[[Any], Any]  # returns the value in the form used; None: not allowed


@dataclass(frozen=True)
class Kind:
    """The allowed values of a key."""

    check: Check
    allowed: str


def _count(least: int) -> Check:
    return lambda value: value if type(value) is int and value >= least else None


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and value and "\n" not in value and "\0" not in value else None


def _folder(value: Any) -> str | None:
    word = _word(value)
    return word.rstrip("/") or "/" if word and word.startswith(("/", "~/")) else None


def _words(value: Any) -> tuple[str, ...] | None:
    good = isinstance(value, list) and value and all(_word(v) for v in value)
    return tuple(value) if good else None


def _devices(value: Any) -> tuple[int, ...] | None:
    good = isinstance(value, list) and value and all(type(v) is int and v >= 0 for v in value)
    return tuple(value) if good and len(set(value)) == len(value) else None


def _seconds(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and 0 < value < float("inf") else None


WORD = Kind(_word, "a word")
WORDS = Kind(_words, "a list of at least one string")
FOLDER = Kind(_folder, "a folder's absolute path, such as /home/me/deepgen")
COUNT = Kind(_count(1), "must be an integer of at least 1")
COUNT0 = Kind(_count(0), "an integer of at least 0")
PORT = Kind(lambda v: v if type(v) is int and 0 < v < 65536 else None, "a port, 1 to 65535")
DEVICES = Kind(_devices, "a list of device numbers, each once, such as [0, 1]")
STRATEGY = Kind(lambda v: v if type(v) is int and v in (0, 1) else None, "0 or 1")
TABLE = Kind(lambda v: v if isinstance(v, dict) else None, "a table")
TABLES = Kind(lambda v: v if isinstance(v, list) and v and all(isinstance(t, dict) for t in v) else None, "tables")
SECONDS = Kind(_seconds, "a positive number of seconds")


@dataclass(frozen=True)
class Table:
    """A table and its location, such as `tasks.json: workgroups[0].compiler`."""

    where: str
    items: Mapping[str, Any]
    keys: Mapping[str, Kind]

    def __post_init__(self) -> None:
        for key in self.items:
            if key not in self.keys:
                raise BadInput(f"unknown key {key!r}", where=self.where, allowed="one of " + ", ".join(self.keys))

    def need(self, key: str) -> Any:
        if key not in self.items:
            raise BadInput(f"key {key!r} is missing", where=self.where, allowed=self.keys[key].allowed)
        return self.get(key)

    def get(self, key: str, default: Any = None) -> Any:
        if key not in self.items:
            return default
        value = self.keys[key].check(self.items[key])
        if value is None:
            # The value is shown, except where it might be a password.
            shown = "not that" if key == "password" else repr(self.items[key])[:60]
            raise BadInput(f"key {key!r} is {shown}", where=self.where, allowed=self.keys[key].allowed)
        return value

    def present(self, *keys: str) -> dict[str, Any]:
        """The given keys that are in the file."""
        return {key: self.get(key) for key in keys if key in self.items}


_PREFIX = {"CUDA": "cuda:sm_", "HIP": "hip:gfx"}
_SSH = {"ip_addr": WORD, "ssh_port": PORT, "cwd": FOLDER, "user_name": WORD, "password": WORD}
_COMPILER: Mapping[str, Kind] = {
    **_SSH,
    "tuning_config_relative_paths": WORDS,
    "tuning_space_relative_paths": WORDS,
    "perflog_prefix_list": WORDS,
    "max_process_count": COUNT,
    "tuning_space_generate_strategy": STRATEGY,
    "backendType": Kind(lambda v: v.upper() if isinstance(v, str) and v.upper() in _PREFIX else None, "CUDA or HIP"),
    "arch": Kind(
        lambda v: str(v) if type(v) is int or (isinstance(v, str) and v.isalnum()) else None,
        'the part after sm_ or gfx, such as "80" or "906"',
    ),
}
_TESTER: Mapping[str, Kind] = {
    **_SSH,
    "devids": DEVICES,
    "benchmark_count": COUNT,
    "warmup_count": COUNT0,
    "keep_top": COUNT,
}
_PORT_NOTE = "master_port is not needed and ignored: Ray finds its ports itself"


def cluster_of(data: Mapping[str, Any], name: str, file: str) -> Cluster:
    """The cluster that a file's content describes; `name` is the file's name in messages."""
    top = Table(name, data, {"workgroups": TABLES, "master_port": PORT})
    passwords: dict[Host, Secret] = {}
    groups = [_older_group(i, entry, name, passwords) for i, entry in enumerate(top.need("workgroups"))]
    notes = (_PORT_NOTE,) if top.get("master_port") is not None else ()
    return Cluster(file, tuple(groups), notes=notes, passwords=passwords)


def _older_group(number: int, entry: Mapping[str, Any], name: str, passwords: dict[Host, Secret]) -> WorkGroup:
    where = f"{name}: workgroups[{number}]"
    both = Table(where, entry, {"compiler": TABLE, "perf_tester": TABLE})
    compiler = Table(f"{where}.compiler", both.need("compiler"), _COMPILER)
    tester = Table(f"{where}.perf_tester", both.need("perf_tester"), _TESTER)
    return WorkGroup(
        name=f"wg{number}",
        target=_PREFIX[compiler.need("backendType")] + compiler.need("arch"),
        builder=_older_host(compiler, passwords),
        tester=_older_host(tester, passwords),
        tasks=_tasks(compiler),
        jobs=compiler.get("max_process_count", 1),
        devices=tester.need("devids"),
        space_strategy=compiler.get("tuning_space_generate_strategy", 1),
        samples=tester.get("benchmark_count"),
        keep_top=tester.get("keep_top", 100),
    )


def _older_host(table: Table, passwords: dict[Host, Secret]) -> Host:
    host = Host(
        address=table.need("ip_addr"),
        folder=table.need("cwd"),
        user=table.get("user_name") or getpass.getuser(),
        port=table.get("ssh_port", 22),
    )
    if (password := table.get("password")) is not None:
        passwords[host] = Secret(password)
    return host


def _tasks(compiler: Table) -> tuple[GroupTask, ...]:
    """Entries at the same index of the three lists describe one task."""
    configs = compiler.need("tuning_config_relative_paths")
    prefixes = compiler.need("perflog_prefix_list")
    spaces = compiler.get("tuning_space_relative_paths") or (None,) * len(configs)
    if not len(configs) == len(prefixes) == len(spaces):
        counts = {"tuning_config_relative_paths": configs, "tuning_space_relative_paths": spaces}
        counted = ", ".join(f"{len(v)} in {k}" for k, v in {**counts, "perflog_prefix_list": prefixes}.items())
        raise BadInput(f"the lists of tasks differ in length: {counted}", where=compiler.where, allowed="one per task")
    return tuple(GroupTask(c, p, s) for c, p, s in zip(configs, prefixes, spaces, strict=True))


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
_TOP: Mapping[str, Kind] = {"head": WORD, "hosts": TABLE, "groups": TABLES}
_HOST: Mapping[str, Kind] = {
    "address": WORD,
    "port": PORT,
    "user": WORD,
    "folder": FOLDER,
    "python": WORD,
    "password": WORD,
}
_TUNING: Mapping[str, Kind] = {
    "trials": COUNT,
    "time_budget": SECONDS,
    "strategy": _STRATEGY,
    "seed": COUNT0,
}
_GROUP: Mapping[str, Kind] = {
    "name": _NAME,
    "target": _TARGET,
    "build_host": WORD,
    "measure_host": WORD,
    "jobs": COUNT,
    "devices": DEVICES,
    "space_strategy": STRATEGY,
    "samples": COUNT,
    "keep_top": COUNT,
    "tasks": TABLES,
    **_TUNING,
}
_TASK: Mapping[str, Kind] = {"config": WORD, "space": WORD, "results": WORD}


def read(path: Path) -> Cluster:
    """Read a task file; checks every key and value, and that no two groups conflict."""
    if path.suffix == ".toml":
        cluster = _own(read_toml(path), str(path), str(path.absolute()))
    elif path.suffix == ".json":
        cluster = cluster_of(read_json(path, allowed='{"workgroups": [...]}'), str(path), str(path.absolute()))
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
        **table.present("jobs", "devices", "space_strategy", "samples", "keep_top"),
        tuning=table.present(*_TUNING),
    )


# Checks for both formats ----------------------------------------------------------------------------------------


def _check_groups(cluster: Cluster, where: str) -> None:
    for one, other in combinations(cluster.groups, 2):
        names = f"{one.name} and {other.name}"
        if one.name == other.name:
            raise BadInput(f"two groups are called {one.name}", where=where, allowed="give each its own name")
        if one.builder.place == other.builder.place:
            what = f"groups {names} share the compiler {_place(one.builder)}"
            raise BadInput(what, where=where, allowed="another address or folder for one of them")
        if one.tester.place == other.tester.place and set(one.devices) == set(other.devices):
            what = f"groups {names} share the tester {_place(one.tester)}, devices {_listed(one.devices)}"
            raise BadInput(what, where=where, allowed="another address, folder or devices for one of them")
    for one_host, other_host in combinations(cluster.hosts, 2):
        if one_host.place == other_host.place:
            what = f"{_place(one_host)} is reachable in two ways: {one_host} and {other_host}"
            raise BadInput(what, where=where, allowed="the same user, port and python for one place")
    for group in cluster.groups:
        prefixes = [task.results for task in group.tasks]
        twice = [p for p in prefixes if prefixes.count(p) > 1]
        if twice:
            raise BadInput(f"group {group.name} has two tasks with results {twice[0]!r}", where=where)


def _notes(cluster: Cluster, name: str) -> list[str]:
    notes = [
        f"{name} contains the password of {host}: use a key, or {password_variable(host)} in the environment, instead"
        for host in cluster.passwords
    ]
    for one, other in combinations(cluster.groups, 2):
        shared = set(one.devices) & set(other.devices)
        if one.tester.address == other.tester.address and shared and one.target.partition(":")[0] != "sim":
            devices = _listed(tuple(sorted(shared)))
            notes.append(
                f"groups {one.name} and {other.name} both measure on devices {devices} of {one.tester.address} "
                "and will disturb each other's timings"
            )
    return notes


def _place(host: Host) -> str:
    return f"{host.address} {host.folder}"


def _listed(devices: tuple[int, ...]) -> str:
    return ", ".join(map(str, devices))
