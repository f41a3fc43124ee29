"""Hosts for tests: real SSH servers on loopback addresses, each with its own working folder."""

from __future__ import annotations

import getpass
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from deepgen_cluster.model import Host
from loopback_ssh import make_key, serve

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


@dataclass(frozen=True)
class Servers:
    """Creates hosts; `home` is the user's home, with a key that the hosts accept and their host keys known."""

    home: Path
    folder: Path
    started: list[subprocess.Popen[bytes]]

    def host(self, address: str, name: str, *, known: bool = True) -> Host:
        """A server at a loopback address, with a working folder and a virtual environment as a user would have."""
        place = self.folder / name
        (place / ".venv").parent.mkdir(parents=True, exist_ok=True)
        if not (place / ".venv").exists():
            (place / ".venv").symlink_to(Path(sys.prefix))
        key = self.folder / f"key-{address}"
        if not key.exists():
            make_key(key)
        authorized = self.home / ".ssh/id_ed25519.pub"
        server, port = serve(SSHD, self.folder, key=key, authorized=authorized, address=address)
        self.started.append(server)
        if known:
            public = key.with_name(key.name + ".pub").read_text()
            with (self.home / ".ssh/known_hosts").open("a") as file:
                file.write(f"[{address}]:{port} {public}")
        return Host(address, str(place), getpass.getuser(), port)


@pytest.fixture
def servers(tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    if not Path(SSHD).exists():
        pytest.skip("there is no SSH server to play the hosts: install openssh-server")
    for package in ("asyncssh", "ray"):  # not imported here: Ray decides whether to use tokens at import
        if find_spec(package) is None:
            pytest.skip(f"there is no cluster without {package}: pip install -e '.[cluster]'")
    home = own_home / "user"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    make_key(home / ".ssh/id_ed25519")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    made = Servers(home, tmp_path / "hosts", [])
    made.folder.mkdir()
    yield made
    for server in made.started:
        server.terminate()
        server.wait()


@pytest.fixture
def own_file(tmp_path: Path) -> Callable[..., Path]:
    """Write a task file in our TOML form: hosts by name, then groups as text."""

    def write(hosts: dict[str, Host], groups: str) -> Path:
        text = ""
        for name, host in hosts.items():
            text += f'[hosts.{name}]\naddress = "{host.address}"\nport = {host.port}\nfolder = "{host.folder}"\n'
        path = tmp_path / "cluster.toml"
        path.write_text(text + groups)
        return path

    return write
