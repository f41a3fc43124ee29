"""SSH to a host: the user's keys, agent, config and known hosts; every failure is explained in a sentence.

A host's key is always checked. A password is tried only if keys are refused, and only at the host it belongs to.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from deepgen.extend import DeepgenError, Missing, install_extra
from deepgen_cluster.model import Host, Secret, password_variable

if TYPE_CHECKING:
    import asyncssh

CONNECT_SECONDS = 20.0
Ask = Callable[[Host], "Secret | None"]


class HostError(DeepgenError):
    """Something is wrong with one host; `host` and `what` make the sentence."""

    def __init__(self, host: Host | None, what: str) -> None:
        self.host, self.what = host, what
        super().__init__(f"{host}: {what}" if host else what)


def library() -> None:
    """Import the SSH library; the error names what to install."""
    try:
        import asyncssh  # noqa: F401
    except ImportError as error:
        remedy = install_extra("cluster")
        raise Missing("asyncssh", blocks="hosts of a cluster cannot be reached", remedy=remedy) from error


def passwords(recorded: Mapping[Host, Secret], *, prompt: bool = True) -> Ask:
    """A function that gets a host's password: from the environment, the file, or the user at the terminal."""
    asked: dict[Host, Secret] = {}

    def ask(host: Host) -> Secret | None:
        if word := os.environ.get(password_variable(host)):
            return Secret(word)
        if host in recorded:
            return recorded[host]
        if host not in asked and prompt and sys.stdin is not None and sys.stdin.isatty():
            asked[host] = Secret(getpass.getpass(f"Password of {host}: "))
        return asked.get(host)

    return ask


def wanting_passwords(hosts: Sequence[Host]) -> list[Host]:
    """The hosts that refuse every key. Other problems are reported when the hosts are used."""
    import asyncssh

    async def refuses(host: Host) -> bool:
        try:
            (await _connect(host, None)).close()
        except asyncssh.PermissionDenied:
            return True
        except HostError:
            pass
        return False

    async def ask() -> list[bool]:
        return list(await asyncio.gather(*map(refuses, hosts)))

    return [host for host, wants in zip(hosts, asyncio.run(ask()), strict=True) if wants]


async def connect(host: Host, password: Ask) -> asyncssh.SSHClientConnection:
    """A connection by key or agent if that works, otherwise by password."""
    import asyncssh

    try:
        return await _connect(host, None)
    except asyncssh.PermissionDenied as error:
        secret = password(host)
        if secret is None:
            what = (
                f"the login was refused: add your key there (ssh-copy-id -p {host.port} {host.user}@{host.address}), "
                f"or set {password_variable(host)}"
            )
            raise HostError(host, what) from error
    try:
        return await _connect(host, secret)
    except asyncssh.PermissionDenied as error:
        raise HostError(host, "the login was refused, with keys and with the password") from error


async def _connect(host: Host, secret: Secret | None) -> asyncssh.SSHClientConnection:
    import asyncssh

    # If there is a password, only that is tried: keys were already refused, and servers limit attempts.
    how = {"password": secret.reveal(), "client_keys": None, "agent_path": None} if secret else {}
    try:
        return await asyncio.wait_for(
            asyncssh.connect(
                host.address,
                host.port,
                username=host.user,
                # To notice lost hosts: four keepalive messages without an answer, ten seconds apart.
                keepalive_interval=10,
                keepalive_count_max=4,
                **how,
            ),
            CONNECT_SECONDS,
        )
    except asyncssh.PermissionDenied:
        raise
    except asyncssh.HostKeyNotVerifiable as error:
        port = f"-p {host.port} " if host.port != 22 else ""
        what = (
            "its host key is not in ~/.ssh/known_hosts. Check it and accept it with: "
            f"ssh {port}{host.user}@{host.address} true"
            f" - or, on a network that you trust: ssh-keyscan {port}{host.address} >> ~/.ssh/known_hosts"
        )
        raise HostError(host, what) from error
    except (TimeoutError, asyncio.TimeoutError) as error:
        raise HostError(host, f"no answer on port {host.port} within {CONNECT_SECONDS:g} s") from error
    except OSError as error:
        raise HostError(host, f"cannot be reached on port {host.port}: {error.strerror or error}") from error
    except asyncssh.Error as error:
        raise HostError(host, f"the SSH connection failed: {error.reason}") from error
