"""Real SSH servers on loopback addresses, which act as the hosts and boards of tests and benchmarks."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path

from deepgen.vocabulary import Missing

_CONFIG = """
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
_SECONDS = 300.0  # for a server to start


def make_key(path: Path) -> None:
    """A private key, and the public one next to it as `path`.pub."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


def serve(
    sshd: str, folder: Path, *, key: Path, authorized: Path, address: str = "127.0.0.1", more: str = ""
) -> tuple[subprocess.Popen[bytes], int]:
    """A running server, and its port. `key` is its own, `more` are lines of its configuration."""
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # the server requires it
    for _ in range(5):
        with socket.create_server((address, 0)) as probe:
            port = int(probe.getsockname()[1])
        config = folder / f"sshd-{address}-{port}"
        config.write_text(_CONFIG.format(port=port, address=address, key=key, authorized=authorized) + more)
        with config.with_name(f"{config.name}.log").open("wb") as log:
            server = subprocess.Popen([sshd, "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL, stderr=log)
        if _answers(server, address, port):
            return server, port
        said = Path(log.name).read_text()  # most likely the free port has been taken meanwhile
    raise Missing("an SSH server", blocks=f"{address} cannot play a host: {said[-300:]}", remedy="")


def _answers(server: subprocess.Popen[bytes], address: str, port: int) -> bool:
    """Whether it has started; if not, it has ended."""
    deadline = time.monotonic() + _SECONDS
    while server.poll() is None:
        try:
            socket.create_connection((address, port), timeout=1).close()
            return True
        except OSError:
            if time.monotonic() > deadline:
                server.kill()
                server.wait()
            time.sleep(0.05)
    return False
