"""The server process: its address, its token, and its shutdown."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import secrets
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from deepgen.report.serve.app import GateRules, Stop, make
from deepgen.report.serve.hub import Hub
from deepgen.tuning.study import trust
from deepgen.vocabulary import BadInput, DeepgenError

_LAST_WORDS = 2  # seconds in which streams may end
# Anyone on this machine can connect without a token, so a client that sends no complete request in time, or that idles
# while many others want to connect, is dropped. A browser needs about six connections.
MOST_CONNECTIONS, REQUEST_SECONDS = 128, 20.0
_AT_ONCE = 64  # accepted connections waiting to be handled


def listen(host: str, port: int) -> socket.socket:
    """A socket at that address; raises an error with a readable message if that is not possible."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise BadInput(f"--host {host} is not an address: {error.strerror}", allowed="such as 127.0.0.1") from error
    family, kind, protocol, _, address = addresses[0]
    listening = socket.socket(family, kind, protocol)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            what = f"port {port} of {host} is in use"
            raise DeepgenError(f"{what}: choose another with --port, or --port 0 for a free one") from error
        raise BadInput(f"cannot listen at {host} port {port}: {error.strerror}", allowed="another --host") from error
    return listening


def rules_for(root: Path, listening: socket.socket, host: str, *, read_only: bool) -> GateRules:
    """The rules for serving a folder.

    The token is the same whenever the same user serves the same folder, so that open pages survive a restart. It is
    derived from a key that only this user can read. If there is no place to store a key, each start gets a new token.
    """
    token = trust.sign(["deepgen serve", str(root), "to look" if read_only else "to look and to stop"])
    loopback = ipaddress.ip_address(listening.getsockname()[0]).is_loopback
    names = () if loopback else (host.lower(), socket.gethostname().lower(), socket.getfqdn().lower())
    return GateRules(token or secrets.token_hex(32), names, loopback)


def address(listening: socket.socket, host: str, rules: GateRules) -> str:
    """The address to open in a browser."""
    place, port = listening.getsockname()[:2]
    if ipaddress.ip_address(place).is_unspecified:
        host = socket.gethostname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/?token={rules.token}"


def serve(
    root: Path,
    stop: Stop,
    rules: GateRules,
    listening: socket.socket,
    ready: Callable[[], None],
    end: threading.Event | None = None,
) -> None:
    """Serve until Ctrl-C or SIGTERM, or until the event is set; `ready` is called once it answers."""
    app, hub = make(root, stop, rules)
    config = uvicorn.Config(
        app,
        log_level="critical",
        access_log=False,  # addresses contain the token
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=_LAST_WORDS,
        http=_Connection,
        backlog=_AT_ONCE,
    )
    asyncio.run(_Server(config, hub, ready, end or threading.Event()).serve(sockets=[listening]))


class _Connection(H11Protocol):
    """A connection that is dropped if a complete request takes too long, or if there are too many idle ones."""

    idle_since = 0.0  # by the loop's clock

    @property
    def idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.idle_since = self.loop.time()
        if len(self.connections) > MOST_CONNECTIONS:
            waiting = [one for one in self.connections if isinstance(one, _Connection) and one.idle]
            min(waiting, key=lambda one: one.idle_since, default=self).drop()

    def look(self) -> None:
        """Called a few times a second."""
        now = self.loop.time()
        if not self.idle:
            self.idle_since = now
        elif now - self.idle_since > REQUEST_SECONDS:
            self.drop()

    def drop(self) -> None:
        self.connections.discard(self)
        self.transport.abort()


class _Server(uvicorn.Server):
    """Ends its streams first, because shutdown would wait for them otherwise."""

    def __init__(self, config: uvicorn.Config, hub: Hub, ready: Callable[[], None], end: threading.Event) -> None:
        super().__init__(config)
        self._hub, self._ready, self._end = hub, ready, end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def on_tick(self, counter: int) -> bool:
        for one in list(self.server_state.connections):
            if isinstance(one, _Connection):
                one.look()
        return await super().on_tick(counter) or self._end.is_set()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit  # the second time
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._hub.close()
        await super().shutdown(sockets)
