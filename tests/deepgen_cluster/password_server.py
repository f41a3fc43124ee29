"""An SSH server that takes passwords and records every one it was offered; commands run as real processes."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import asyncssh


class PasswordServer:
    """Runs in a thread. `offered` holds the passwords that clients tried."""

    def __init__(self, address: str, password: str, host_key: Path) -> None:
        self.address, self.port, self.offered = address, 0, list[str]()
        self._password, self._key = password, host_key
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> PasswordServer:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(60)
        return self

    def __exit__(self, *exc: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _listen(self) -> None:
        outer = self

        class Server(asyncssh.SSHServer):
            def password_auth_supported(self) -> bool:
                return True

            def validate_password(self, username: str, password: str) -> bool:
                outer.offered.append(password)
                return password == outer._password

        self._server = await asyncssh.listen(
            self.address, 0, server_factory=Server, server_host_keys=[str(self._key)], process_factory=_run
        )
        self.port = self._server.get_port()

    async def _close(self) -> None:
        self._server.close()
        await self._server.wait_closed()


async def _run(process: asyncssh.SSHServerProcess) -> None:
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_shell(str(process.command), stdin=pipe, stdout=pipe, stderr=pipe)
    await process.redirect(stdin=child.stdin, stdout=child.stdout, stderr=child.stderr)
    code = await child.wait()
    await process.stdout.drain()
    process.exit(code)
