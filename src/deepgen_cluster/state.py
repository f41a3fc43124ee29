"""The record of a cluster that was started from this machine: kept with the user's data, readable only to the user."""

from __future__ import annotations

import getpass
import json
import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepgen.vocabulary import BadInput, digest
from deepgen.vocabulary.folders import user_folder
from deepgen_cluster.model import Cluster, Host


@dataclass(frozen=True)
class Up:
    """A cluster that was started: its head's address, and the hosts with its nodes."""

    cluster: str  # a new random one each time
    address: str  # ip:port of the head
    hosts: tuple[Host, ...]


class State:
    """The folder that belongs to one task file."""

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
    found = user_folder("XDG_DATA_HOME", ".local/share")
    if found is None:
        raise BadInput("there is no home folder to keep clusters in", allowed="set XDG_DATA_HOME")
    return found
