"""The content of a cluster task file: hosts, work groups and their tasks. Pure data without secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deepgen.extend import JsonObject, Serializable


@dataclass(frozen=True)
class Host:
    """A machine reached over SSH, and the folder there that holds all of deepgen's files."""

    address: str
    folder: str
    user: str
    port: int = 22
    python: str | None = None  # the interpreter; None: the virtual environment in the folder, or else python3

    @property
    def place(self) -> tuple[str, str]:
        """The identity of the place: hosts with the same one share a Ray node."""
        return self.address, self.folder

    def __str__(self) -> str:
        return f"{self.user}@{self.address}" + (f":{self.port}" if self.port != 22 else "")


@dataclass(frozen=True)
class GroupTask:
    """One tuning config; the group's next task starts when it has finished."""

    config: str  # a tuning config, in the builder's folder or next to the task file
    results: str  # prefix of <prefix>_card<device>.json
    space: str | None = None  # a space file of the legacy tool, used instead of the config's space if it exists


@dataclass(frozen=True)
class WorkGroup(Serializable):
    """A host that builds, a host that measures, and their tasks in order."""

    name: str
    target: str
    builder: Host
    tester: Host
    tasks: tuple[GroupTask, ...]
    jobs: int = 1  # concurrent builds
    devices: tuple[int, ...] = (0,)
    space_strategy: int = 1  # how a tuning config of the legacy tool is converted to a space
    samples: int | None = None  # timed runs per kernel; None: as many as the spread of its times requires
    keep_top: int = 8  # rows of a result file
    tuning: Mapping[str, Any] = field(default_factory=dict)  # trials, time_budget, strategy, seed, if given

    @property
    def places(self) -> tuple[Host, ...]:
        return (self.builder,) if self.builder == self.tester else (self.builder, self.tester)


class Secret:
    """A password. Printing, formatting or serialising it by mistake gives asterisks or an error."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The actual password, only for the SSH library."""
        return self._value

    def __repr__(self) -> str:
        return "***"


@dataclass(frozen=True)
class Cluster:
    """A task file after parsing and checking."""

    file: str  # absolute
    groups: tuple[WorkGroup, ...]
    head: str | None = None  # this machine's address as seen by the hosts; None: determined automatically
    notes: tuple[str, ...] = field(default=(), compare=False)  # what the user should know about the file
    passwords: Mapping[Host, Secret] = field(default_factory=dict, repr=False, compare=False)

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Each place once, in the order of the file."""
        return tuple(dict.fromkeys(host for group in self.groups for host in group.places))

    def roles(self, host: Host) -> str:
        """A host's roles, such as `build wg0, measure wg0 [7]`."""
        words = []
        for group in self.groups:
            if group.builder == host:
                words.append(f"build {group.name}")
            if group.tester == host:
                words.append(f"measure {group.name} [{' '.join(map(str, group.devices))}]")
        return ", ".join(words)

    def to_json(self) -> JsonObject:
        """Without passwords."""
        return {"file": self.file, "head": self.head, "groups": [group.to_json() for group in self.groups]}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Cluster:
        return Cluster(data["file"], tuple(WorkGroup.from_json(g) for g in data["groups"]), data["head"])


def password_variable(host: Host) -> str:
    """The environment variable that may hold a host's password: one per host, so that it is never sent to another."""
    return "DEEPGEN_SSH_PASSWORD_" + re.sub(r"[^A-Za-z0-9]", "_", host.address).upper()
