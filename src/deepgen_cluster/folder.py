"""The folder of a cluster run: its definition, its driver, its progress. No secret is ever written there.

`State` is the record of a cluster that was started from this machine: stored with the user's data, readable only by the
user.
"""

from __future__ import annotations

import getpass
import json
import os
import secrets
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from deepgen.extend import (
    BadInput,
    DeepgenError,
    Json,
    JsonObject,
    Runs,
    Serializable,
    digest,
    file_mark,
    foreign,
    lock,
    shown,
    trust,
    user_folder,
)
from deepgen_cluster.model import Cluster, Host

DEFINITION = "cluster.json"
LOG = "log.txt"
_SIGNATURE = "signature"  # in the definition, over everything else in it
PROGRESS = "progress.json"
_LOCK, _UP = "driver.lock", "up"
ENDED = ("done", "stopped", "failed")


@dataclass(frozen=True)
class Definition(Serializable):
    """Everything that a driver needs, except passwords."""

    cluster: Cluster
    options: Mapping[str, Any] = field(default_factory=dict)  # for every study; options of the groups take precedence
    head: str | None = None
    keep_up: bool = False


@dataclass(frozen=True)
class GroupProgress:
    """The progress of a work group."""

    task: int = 0  # the running one, from 1
    tasks: int = 0
    what: str = ""  # operator and target
    line: str = "waiting"
    ended: bool = False
    problem: str | None = None


@dataclass(frozen=True)
class Row:
    """A result: one task's winner, and where its files are."""

    group: str
    what: str
    study: str
    trials: int
    winner: Mapping[str, Any] | None
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunProgress(Serializable):
    """The progress of a cluster run."""

    state: str = "starting"  # then running, and one of ENDED
    note: str = ""
    groups: Mapping[str, GroupProgress] = field(default_factory=dict)
    results: tuple[Row, ...] = ()


class RunFolder:
    """The folder of a run. Anyone may read it; the driver writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def log(self) -> Path:
        return self.path / LOG

    def definition(self) -> Definition | None:
        data = _read(self.path / DEFINITION)
        if data is None:
            return None
        data.pop(_SIGNATURE, None)
        with foreign.shaped(str(self.path / DEFINITION), "is not the definition of a cluster run"):
            return Definition.from_json(data)

    def define(self, definition: Definition) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        data = definition.to_json()
        _write(self.path / DEFINITION, {**data, _SIGNATURE: trust.sign(data)})

    def require_own(self, *, trusted: bool) -> None:
        """Raises Untrusted unless this user started the run: to resume it is to start programs on its hosts."""
        data = _read(self.path / DEFINITION) or {}
        signature = data.pop(_SIGNATURE, None)
        trust.require(data, signature, trust=trusted, origin=self.path, holds="a cluster run, its hosts and programs,")

    def progress(self) -> RunProgress:
        data = _read(self.path / PROGRESS)
        if data is None:
            return RunProgress()
        with foreign.shaped(str(self.path / PROGRESS), "is not the progress of a cluster run"):
            return RunProgress.from_json(data)

    def tell(self, progress: RunProgress) -> None:
        _write(self.path / PROGRESS, progress.to_json())

    def brought_up(self) -> str | None:
        """The cluster that this run has started and not yet stopped."""
        data = _read(self.path / _UP)
        return None if data is None else str(data.get("cluster"))

    def remember_up(self, cluster: str | None) -> None:
        if cluster is None:
            (self.path / _UP).unlink(missing_ok=True)
        else:
            _write(self.path / _UP, {"cluster": cluster})

    def driver(self) -> int | None:
        """The process that is driving this run, if any."""
        return lock.holder(self.path / _LOCK)

    def end_driver(self) -> int | None:
        """Ask the driver to stop, and return its pid. Raises DeepgenError if it is a process on another machine."""
        held = lock.proven(self.path / _LOCK)
        if held is None:
            return None
        held.signal(signal.SIGTERM)
        return held.pid

    def take(self) -> IO[str]:
        """Take the driver's lock; held as long as the file is open."""
        file = lock.take(self.path / _LOCK)
        if file is None:
            raise DeepgenError(f"{self.path} is already driven by {lock.who(self.path / _LOCK)}")
        return file


def _read(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    data = foreign.read_json(path, plain=True)
    if not isinstance(data, dict):
        raise BadInput("is not an object", where=str(path), allowed="delete it and run again")
    return data


def _write(path: Path, data: JsonObject) -> None:
    """Write atomically: another process may be reading."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)  # it may be a link
    fresh.write_text(json.dumps(data, indent=2) + "\n")
    fresh.replace(path)


@dataclass(frozen=True)
class Up:
    """A cluster that was started: its head's address, and the hosts with its nodes."""

    cluster: str  # a new random one each time
    address: str  # ip:port of the head
    hosts: tuple[Host, ...]


class State:
    """The folder for the state of one task file."""

    def __init__(self, cluster: Cluster) -> None:
        file = Path(cluster.file)
        self.label = f"{getpass.getuser()}@{socket.gethostname()} with {file.name}"
        self.owner = digest([getpass.getuser(), socket.gethostname(), str(file)], 16)
        self.folder = _data_folder() / "clusters" / f"{file.stem}-{self.owner}"

    @property
    def token_file(self) -> Path:
        return self.folder / "token"

    def read(self) -> Up | None:
        try:
            data: dict[str, Any] = json.loads((self.folder / "up.json").read_text())
            return Up(data["cluster"], data["address"], tuple(Host(**host) for host in data["hosts"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, up: Up) -> None:
        hosts = [vars(host) for host in up.hosts]
        self._private("up.json", json.dumps({"cluster": up.cluster, "address": up.address, "hosts": hosts}))

    def new_token(self) -> str:
        token = secrets.token_hex(32)
        self._private("token", token)
        return token

    def token(self) -> str:
        return self.token_file.read_text()

    def run_folder(self) -> Path | None:
        """The folder of the run that last used this cluster."""
        try:
            return Path((self.folder / "run").read_text())
        except OSError:
            return None

    def remember_run(self, folder: Path) -> None:
        self._private("run", str(folder.absolute()))

    def forget(self) -> None:
        for name in ("up.json", "token", "run"):
            (self.folder / name).unlink(missing_ok=True)

    def _private(self, name: str, text: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = self.folder / f"{name}.new"
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
        fresh.replace(self.folder / name)


def _data_folder() -> Path:
    folder = user_folder("XDG_DATA_HOME", ".local/share")
    if folder is None:
        raise BadInput("there is no home folder to store clusters in", allowed="set XDG_DATA_HOME")
    return folder


def runs() -> Runs:
    """Cluster runs, for reports and for the browser, which shows the same as `deepgen cluster attach`."""

    def mark(path: Path) -> tuple[Any, ...]:
        return RunFolder(path).driver(), file_mark(path / PROGRESS), file_mark(path / DEFINITION)

    def stop(path: Path) -> str:
        from deepgen_cluster.run import stop as stop_run

        stop_run(RunFolder(path))
        return f"stopped. Resume it with: deepgen cluster attach {shown(path)}"

    return Runs(DEFINITION, mark, _row, _summary, stop)


def _row(path: Path) -> JsonObject:
    run = RunFolder(path)
    definition, progress, pid = run.definition(), run.progress(), run.driver()
    groups = definition.cluster.groups if definition is not None else ()
    # A driver that was killed could not record it.
    state = progress.state if pid is not None or progress.state in ENDED else "stopped"
    return {
        "state": state,
        "pid": pid,
        "note": progress.note,
        "groups": [
            {
                **vars(progress.groups.get(group.name, GroupProgress())),
                "name": group.name,
                "target": group.target,
                "builder": str(group.builder),
                "tester": str(group.tester),
                "devices": list(group.devices),
            }
            for group in groups
        ],
    }


def _summary(path: Path) -> JsonObject:
    progress = RunFolder(path).progress()
    groups: list[Json] = [
        [name, f"{group.task} of {group.tasks}" if group.tasks else "-", group.problem or group.line, group.what or "-"]
        for name, group in progress.groups.items()
    ]
    return {"state": progress.state, "note": progress.note, "groups": groups}
