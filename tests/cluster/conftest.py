"""Hosts for tests: real SSH servers on loopback addresses, each with a working folder of its own."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from deepgen.cluster.model import Host

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
CONFIG = """
Port {port}
ListenAddress {address}
HostKey {key}
AuthorizedKeysFile {authorized}
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
MaxStartups 100
"""


@dataclass(frozen=True)
class Servers:
    """Makes hosts; `home` is the user's, with a key that they accept and their host keys known."""

    home: Path
    folder: Path
    started: list[subprocess.Popen[bytes]]

    def host(self, address: str, name: str, *, known: bool = True) -> Host:
        """A server at a loopback address, and a working folder with a virtual environment as users have one."""
        place = self.folder / name
        (place / ".venv").parent.mkdir(parents=True, exist_ok=True)
        if not (place / ".venv").exists():
            (place / ".venv").symlink_to(Path(sys.prefix))
        key = self.folder / f"key-{address}"
        if not key.exists():
            _keygen(key)
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        # A port that is free now may be taken by the time the server binds it.
        port = next(port for _ in range(5) if self._serves(address, port := _free_port(address), key))
        if known:
            public = key.with_name(key.name + ".pub").read_text()
            with (self.home / ".ssh/known_hosts").open("a") as file:
                file.write(f"[{address}]:{port} {public}")
        return Host(address, str(place), getpass.getuser(), port)

    def _serves(self, address: str, port: int, key: Path) -> bool:
        """Whether a server that was started there answers."""
        config = self.folder / f"sshd-{address}-{port}"
        authorized = self.home / ".ssh/id_ed25519.pub"
        config.write_text(CONFIG.format(port=port, address=address, key=key, authorized=authorized))
        with config.with_suffix(".log").open("wb") as log:
            server = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL, stderr=log)
        self.started.append(server)
        deadline = time.monotonic() + 60
        while server.poll() is None:
            try:
                socket.create_connection((address, port), timeout=1).close()
                return True
            except OSError:
                assert time.monotonic() < deadline, f"no SSH server came up at {address}:{port}"
                time.sleep(0.05)
        return False


@pytest.fixture
def servers(tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    if not Path(SSHD).exists():
        pytest.skip("there is no SSH server to play the hosts: install openssh-server")
    for package in ("asyncssh", "ray"):  # not imported here: whether Ray has tokens is decided when it is imported
        if find_spec(package) is None:
            pytest.skip(f"there is no cluster without {package}: pip install -e '.[cluster]'")
    home = own_home / "user"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    _keygen(home / ".ssh/id_ed25519")
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


def _keygen(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
